//! Many sessions wait for one queue: what comes wakes as many as it is worth, and no wake-up is
//! lost.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use queen_tests::waiting::{SOON, Waiting, are_asleep, wait_in_task};
use queen_tests::{
    Ack, Fails, Message, Pop, Push, Session, TestDb, complete, eventually, n, numbers,
};

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all")
}

async fn crowd(db: &TestDb, count: usize, pop: &Pop) -> Result<Vec<Waiting>> {
    let admin = db.session().await?;
    admin.run("SELECT queen_subscribe('q', 'g', 'all'), queen_configure('q')").await?;
    let sessions = db.crowd(count).await?;
    let waiting = sessions.into_iter().map(|session| wait_in_task(session, pop.clone())).collect();
    are_asleep(&admin, count as i64).await?;
    Ok(waiting)
}

/// The first of the waiting sessions that has ended with messages, taken out of the list.
async fn served_soon(waiting: &mut Vec<Waiting>) -> Result<(Vec<Message>, Instant, Session)> {
    let found = eventually("a session that is served", SOON, async || {
        Ok(waiting.iter().position(tokio::task::JoinHandle::is_finished))
    });
    let place = found.await?;
    waiting.remove(place).await?
}

/// The waiting sessions return soon after `began`. Together they have the messages 1 to as many as
/// there are sessions, each once.
async fn each_comes_once(waiting: Vec<Waiting>, began: Instant) -> Result<()> {
    let count = waiting.len() as i64;
    let mut all = Vec::new();
    for waiter in waiting {
        let (came, at, _) = waiter.await??;
        ensure!(at - began < SOON, "{:?}", at - began);
        all.extend(numbers(&came));
    }
    all.sort_unstable();
    assert_eq!(all, Vec::from_iter(1..=count));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_push_serves_one_of_many_and_leaves_the_others_asleep() -> Result<()> {
    let db = TestDb::alone().await?;
    let pusher = db.session().await?;
    let mut waiting = crowd(&db, 40, &pop().wait("60 s")).await?;
    for round in 0..30 {
        let began = Instant::now();
        Push::new("q", n(round)).partition(format!("p{}", round % 7)).run(&pusher).await?;
        let (came, at, session) = served_soon(&mut waiting).await?;
        assert_eq!(numbers(&came), [round]);
        ensure!(at - began < SOON, "{:?}", at - began);
        complete(&session, &came).await?;
        waiting.push(wait_in_task(session, pop().wait("60 s")));
        are_asleep(&pusher, 40).await?;
    }
    waiting.iter().for_each(Waiting::abort);
    Ok(())
}

/// Buffers that the database has read for `messages` messages, which so many sessions wait for.
async fn buffers_for(waiters: usize, messages: i64) -> Result<i64> {
    let db = TestDb::alone().await?;
    let [admin, pusher] = db.sessions().await?;
    let mut waiting = crowd(&db, waiters, &pop().wait("4 s")).await?;
    let sql = "SELECT pg_stat_clear_snapshot(), blks_hit FROM pg_stat_database
               WHERE datname = current_database()";
    for round in 0..messages {
        Push::new("q", n(round)).partition(format!("p{}", round % 7)).run(&pusher).await?;
        let (came, _, session) = served_soon(&mut waiting).await?;
        complete(&session, &came).await?;
        waiting.push(wait_in_task(session, pop().wait("4 s")));
    }
    // A session tells its figures when its transaction ends, and once more when it leaves.
    for waiter in waiting {
        waiter.await??;
    }
    pusher.run("SELECT pg_stat_force_next_flush()").await?;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    Ok(admin.row(sql, &[]).await?.get(1))
}

/// How much is read for a message depends on what happens, hardly on how many wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_costs_little_more_with_many_that_wait() -> Result<()> {
    let few = buffers_for(4, 150).await?;
    let many = buffers_for(40, 150).await?;
    ensure!(many < 3 * few, "{few} buffers with 4 sessions, {many} with 40");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_without_order_serves_all_it_is_enough_for() -> Result<()> {
    let db = TestDb::alone().await?;
    let pusher = db.session().await?;
    pusher.run("SELECT queen_configure('q', ordering => 'none')").await?;
    let waiting = crowd(&db, 20, &pop().wait("60 s")).await?;
    let began = Instant::now();
    pusher
        .run(
            "SELECT count(*) FROM queen_push_batch('q', ARRAY(
                 SELECT jsonb_build_object('n', i) FROM generate_series(1, 20) AS i))",
        )
        .await?;
    each_comes_once(waiting, began).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pushes_to_many_partitions_in_one_transaction_serve_as_many_sessions() -> Result<()> {
    let db = TestDb::alone().await?;
    let pusher = db.session().await?;
    let waiting = crowd(&db, 20, &pop().wait("60 s")).await?;
    let began = Instant::now();
    pusher
        .run(
            "SELECT queen_push('q', jsonb_build_object('n', i), 'p' || i)
              FROM generate_series(1, 20) AS i",
        )
        .await?;
    each_comes_once(waiting, began).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_group_is_served_and_each_partition_that_is_waited_for() -> Result<()> {
    let db = TestDb::alone().await?;
    let pusher = db.session().await?;
    pusher.run("SELECT queen_configure('q')").await?;
    // Three groups, of which one is not registered yet, and three sessions that want one partition.
    let pops = [
        Pop::new("q").group("a").mode("all"),
        Pop::new("q").group("a").mode("all"),
        Pop::new("q").group("b").mode("all"),
        Pop::new("q").group("b").mode("all"),
        Pop::new("q").mode("all"),
    ];
    pusher.run("SELECT queen_subscribe('q', 'a', 'all'), queen_subscribe('q', 'b', 'all')").await?;
    let mut waiting = Vec::new();
    for pop in pops {
        waiting.push(wait_in_task(db.session().await?, pop.wait("60 s")));
    }
    for partition in ["x", "y", "z"] {
        let pop = Pop::new("q").group("c").mode("all").partition(partition).wait("60 s");
        waiting.push(wait_in_task(db.session().await?, pop));
    }
    are_asleep(&pusher, 8).await?;
    let began = Instant::now();
    Push::new("q", n(1)).partition("y").run(&pusher).await?;
    let mut served = Vec::new();
    for _ in 0..4 {
        let (came, at, _session) = served_soon(&mut waiting).await?;
        ensure!(at - began < SOON, "{:?}", at - began);
        assert_eq!(numbers(&came), [1]);
        served.push(came[0].consumer_group.clone());
    }
    served.sort();
    let named = |name: &str| Some(name.to_owned());
    assert_eq!(served, [None, named("a"), named("b"), named("c")]);
    assert_eq!(waiting.len(), 4);
    waiting.iter().for_each(Waiting::abort);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_that_is_rolled_back_wakes_another() -> Result<()> {
    let db = TestDb::alone().await?;
    for ordering in ["partition", "none"] {
        let [ref holder, ref pusher] = db.sessions().await?;
        pusher.run(&format!("SELECT queen_configure('q', ordering => '{ordering}')")).await?;
        for end in ["ROLLBACK", "ROLLBACK TO SAVEPOINT before"] {
            Push::new("q", n(1)).run(pusher).await?;
            holder.run("BEGIN; SAVEPOINT before").await?;
            assert_eq!(numbers(&pop().run(holder).await?), [1]);
            let waiting = wait_in_task(db.session().await?, pop().wait("60 s"));
            are_asleep(pusher, 1).await?;
            let began = Instant::now();
            holder.run(end).await?;
            let (came, at, session) = waiting.await??;
            ensure!(at - began < Duration::from_secs(1), "{end}: {:?}", at - began);
            assert_eq!(numbers(&came), [1]);
            complete(&session, &came).await?;
            holder.run("ROLLBACK").await?;
        }
    }
    Ok(())
}

/// A session that is cancelled, or ended, just when it was woken hands the wake-up on.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_gives_up_hands_its_wake_up_on() -> Result<()> {
    let db = TestDb::alone().await?;
    let [ref pusher, ref admin] = db.sessions().await?;
    admin.run("SELECT queen_subscribe('q', 'g', 'all'), queen_configure('q')").await?;
    for round in 0..20 {
        let mut waiting = Vec::new();
        let mut pids = Vec::new();
        for session in db.crowd(6).await? {
            pids.push(session.pid());
            waiting.push(wait_in_task(session, pop().wait("60 s")));
        }
        are_asleep(admin, 6).await?;
        // All but the last are ended at the moment of the push, in either way.
        let function = ["pg_cancel_backend", "pg_terminate_backend"][round as usize % 2];
        let (of_last, others) = (pids[5], format!("{:?}", &pids[..5]));
        let end = format!("SELECT {function}(pid) FROM unnest(ARRAY{others}) AS pid");
        let push = Push::new("q", n(round)).partition(format!("p{}", round % 3));
        let began = Instant::now();
        let (pushed, ended) = tokio::join!(push.run(pusher), admin.run(&end));
        pushed?;
        ended?;
        let last = waiting.pop().context("the last")?;
        let mut got = Vec::new();
        for waiter in waiting {
            match waiter.await? {
                Ok((came, ..)) => got.extend(numbers(&came)),
                Err(error) => ensure!(format!("{error:#}").contains("db error"), "{error:#}"),
            }
        }
        if got.is_empty() {
            // The lease of a pop that was cancelled after it had got the message is rolled back.
            let (came, at, session) = last.await??;
            ensure!(at - began < SOON, "round {round}: {:?}", at - began);
            assert_eq!(numbers(&came), [round]);
            complete(&session, &came).await?;
        } else {
            assert_eq!(got, [round]);
            admin.run(&format!("SELECT pg_terminate_backend({of_last})")).await?;
            ensure!(last.await?.is_err(), "a message came twice");
            admin.run("SELECT queen_seek('q', 'g', 'end')").await?;
        }
        eventually("no session waits", Duration::from_secs(20), async || {
            let sql = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND query LIKE '%queen_pop%'
                         AND pid <> pg_backend_pid() AND state = 'active'";
            Ok((admin.count(sql).await? == 0).then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// One of the crowd keeps the time; where it leaves, another one does.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_without_a_commit_is_not_missed() -> Result<()> {
    let db = TestDb::alone().await?;
    let [ref holder, ref admin] = db.sessions().await?;
    admin.run("SELECT queen_subscribe('q', 'g', 'all'), queen_configure('q')").await?;
    Push::new("q", n(1)).run(holder).await?;
    let held = pop().lease("2 s").one(holder).await?;
    let began = Instant::now();
    let mut pids = Vec::new();
    let mut waiting = Vec::new();
    for session in db.crowd(8).await? {
        pids.push(session.pid());
        waiting.push(wait_in_task(session, pop().wait("60 s")));
    }
    are_asleep(admin, 8).await?;
    // Whichever of them keeps the time is cancelled.
    for pid in &pids[..7] {
        admin.run(&format!("SELECT pg_cancel_backend({pid})")).await?;
    }
    let last = waiting.pop().context("the last")?;
    let (came, at, _) = last.await??;
    assert_eq!(numbers(&came), [1]);
    let after = at - began;
    ensure!(after > Duration::from_millis(1900), "{after:?}");
    ensure!(after < Duration::from_secs(2) + SOON / 2, "{after:?}");
    Ack::all(held.lease()?).run(holder).await.fails_with("QN002")?;
    Ok(())
}
