//! Moments that come while sessions sleep, and sessions that cannot use what they are woken for:
//! what a crowd waits for comes as soon as if one session waited.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use queen_tests::waiting::{SOON, Waiting, are_asleep, first_served, wait_in_task};
use queen_tests::{Pop, Push, Session, TestDb, complete, eventually, n, numbers};

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all")
}

async fn prepare(db: &TestDb, ordering: &str) -> Result<Session> {
    let admin = db.session().await?;
    admin.run(&format!("SELECT queen_configure('q', ordering => '{ordering}')")).await?;
    admin.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    Ok(admin)
}

/// Clock ticks (10 ms) that the backend has spent.
fn ticks(pid: i32) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let rest = stat.rsplit(')').next().context("stat")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
}

/// The lease is given while the others sleep; its end wakes one of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_given_while_others_sleep_ends_in_time() -> Result<()> {
    for ordering in ["partition", "none"] {
        let db = TestDb::alone().await?;
        let admin = prepare(&db, ordering).await?;
        let mut waiting = Vec::new();
        for session in db.crowd(3).await? {
            waiting.push(wait_in_task(session, pop().lease("1 s").wait("60 s")));
        }
        are_asleep(&admin, 3).await?;
        Push::new("q", n(1)).run(&admin).await?;
        let (_, first_at, _first) = first_served(&mut waiting).await?;
        let (came, at, session) = first_served(&mut waiting).await?;
        assert_eq!(numbers(&came), [1]);
        let late = (at - first_at).saturating_sub(Duration::from_secs(1));
        complete(&session, &came).await.ok();
        waiting.iter().for_each(Waiting::abort);
        ensure!(late < SOON, "{ordering}: {late:?}");
    }
    Ok(())
}

/// Three leases end at one moment, and one a second later; five sessions wait.
#[tokio::test(flavor = "multi_thread")]
async fn the_time_is_kept_when_those_who_were_woken_for_it_are_served() -> Result<()> {
    let mut worst = Duration::ZERO;
    for _ in 0..3 {
        let db = TestDb::alone().await?;
        let admin = prepare(&db, "partition").await?;
        for i in 0..3 {
            Push::new("q", n(i)).partition(format!("p{i}")).run(&admin).await?;
        }
        let held = pop().batch(3).partitions(3).lease("2 s").run(&admin).await?;
        assert_eq!(held.len(), 3);
        Push::new("q", n(9)).partition("last").run(&admin).await?;
        let late = pop().lease("3 s").run(&admin).await?;
        assert_eq!(numbers(&late), [9]);
        let began = Instant::now();
        let mut waiting = Vec::new();
        for session in db.crowd(5).await? {
            waiting.push(wait_in_task(session, pop().lease("60 s").wait("60 s")));
        }
        are_asleep(&admin, 5).await?;
        for _ in 0..4 {
            let (came, at, _) = first_served(&mut waiting).await?;
            if numbers(&came) == [9] {
                worst = worst.max((at - began).saturating_sub(Duration::from_secs(3)));
            }
        }
        waiting.iter().for_each(Waiting::abort);
    }
    ensure!(worst < SOON, "{worst:?}");
    Ok(())
}

/// A session in REPEATABLE READ sees nothing new, and takes no wake-up from the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_with_an_old_snapshot_takes_no_wake_up() -> Result<()> {
    let db = TestDb::alone().await?;
    let admin = prepare(&db, "partition").await?;
    let blind = db.session().await?;
    blind.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
    let blind = wait_in_task(blind, pop().wait("20 s"));
    are_asleep(&admin, 1).await?;
    let seeing = wait_in_task(db.session().await?, pop().wait("20 s"));
    are_asleep(&admin, 2).await?;
    let began = Instant::now();
    Push::new("q", n(1)).run(&admin).await?;
    let (came, at, _) = seeing.await??;
    assert_eq!(numbers(&came), [1]);
    blind.abort();
    ensure!(at - began < SOON, "{:?}", at - began);
    Ok(())
}

/// queen_wait pops nothing, so what it is woken for is still there for a pop.
#[tokio::test(flavor = "multi_thread")]
async fn queen_wait_takes_no_wake_up_from_a_pop() -> Result<()> {
    let db = TestDb::alone().await?;
    let admin = prepare(&db, "partition").await?;
    let peeking = db.session().await?;
    let peek = tokio::spawn(async move {
        peeking.run("CALL queen_wait('q', 'g', '20 s')").await?;
        anyhow::Ok(peeking)
    });
    are_asleep(&admin, 1).await?;
    let popping = wait_in_task(db.session().await?, pop().wait("20 s"));
    are_asleep(&admin, 2).await?;
    let began = Instant::now();
    Push::new("q", n(1)).run(&admin).await?;
    let (came, at, _) = popping.await??;
    assert_eq!(numbers(&came), [1]);
    peek.abort();
    ensure!(at - began < SOON, "{:?}", at - began);
    Ok(())
}

/// A transaction that has popped, and waits for more, sleeps.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_pop_of_a_transaction_sleeps_while_it_waits() -> Result<()> {
    let db = TestDb::alone().await?;
    let admin = prepare(&db, "partition").await?;
    let mut worst = 0;
    for crowd in [1, 2] {
        let mut pids = Vec::new();
        let mut waiting = Vec::new();
        for i in 0..crowd {
            let session = db.session().await?;
            Push::new("q", n(i)).partition(format!("c{crowd}-{i}")).run(&admin).await?;
            session.run("BEGIN").await?;
            pop().one(&session).await?;
            pids.push(session.pid());
            waiting.push(wait_in_task(session, pop().wait("4 s")));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = pids.iter().map(|pid| ticks(*pid)).sum::<Result<u64>>()?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let spent = pids.iter().map(|pid| ticks(*pid)).sum::<Result<u64>>()? - before;
        for waiter in waiting {
            waiter.await??;
        }
        worst = worst.max(spent);
    }
    ensure!(worst < 30, "{worst} ticks of 200");
    Ok(())
}

/// A group that is not registered yet, and a message that is too young for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_new_sleeps_while_a_message_ripens() -> Result<()> {
    let db = TestDb::alone().await?;
    let admin = db.session().await?;
    admin.run("SELECT queen_configure('q', delay => '30 s')").await?;
    Push::new("q", n(1)).run(&admin).await?;
    for crowd in [1, 3] {
        let mut pids = Vec::new();
        let mut waiting = Vec::new();
        for session in db.crowd(crowd).await? {
            pids.push(session.pid());
            waiting.push(wait_in_task(session, Pop::new("q").group("new").mode("all").wait("4 s")));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = pids.iter().map(|pid| ticks(*pid)).sum::<Result<u64>>()?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let spent = pids.iter().map(|pid| ticks(*pid)).sum::<Result<u64>>()? - before;
        waiting.iter().for_each(Waiting::abort);
        for pid in pids {
            admin.run(&format!("SELECT pg_terminate_backend({pid})")).await?;
        }
        ensure!(spent < 60, "{crowd}: {spent} ticks of 200");
    }
    Ok(())
}

/// A look waits for a table that is locked, and a commit wakes the session meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_wake_up_during_a_look_that_waits_for_a_table_is_kept() -> Result<()> {
    let db = TestDb::alone().await?;
    let admin = prepare(&db, "partition").await?;
    let [locker, waiter] = db.sessions().await?;
    Push::new("q", n(1)).partition("held").run(&admin).await?;
    pop().lease("60 s").one(&admin).await?;
    // A pop that waits keeps shares of the tables that it looks up outside of a look; `cursor` it
    // reads within looks alone.
    let waiting = wait_in_task(waiter, pop().wait("20 s"));
    are_asleep(&admin, 1).await?;
    locker.run("BEGIN; LOCK TABLE queen_mq.cursor IN ACCESS EXCLUSIVE MODE").await?;
    Push::new("q", n(2)).partition("held").run(&admin).await?;
    let blocked = "SELECT count(*) FROM pg_stat_activity
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    eventually("a look that waits", Duration::from_secs(3), async || {
        Ok((admin.count(blocked).await? == 1).then_some(()))
    })
    .await?;
    Push::new("q", n(3)).partition("free").run(&admin).await?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let began = Instant::now();
    locker.run("COMMIT").await?;
    let (came, at, _) = waiting.await??;
    assert_eq!(numbers(&came), [3]);
    // PostgreSQL's alarm for deadlocks, after a second, would wake it by accident.
    ensure!(at - began < SOON / 3, "{:?}", at - began);
    Ok(())
}

/// One session waits for any partition, one for one of the two that a transaction pushes to.
#[tokio::test(flavor = "multi_thread")]
async fn what_one_leaves_wakes_the_session_that_waits_for_that_partition() -> Result<()> {
    let db = TestDb::alone().await?;
    let mut worst = Duration::ZERO;
    for ordering in ["partition", "none"] {
        let admin = prepare(&db, ordering).await?;
        let [mut any, mut choosy] = db.sessions().await?;
        for _ in 0..60 {
            let one = wait_in_task(any, pop().wait("20 s"));
            let other = wait_in_task(choosy, pop().partition("p1").wait("20 s"));
            are_asleep(&admin, 2).await?;
            let began = Instant::now();
            admin
                .run(
                    "SELECT queen_push('q', '{\"n\": 1}', 'p1'), \
                     queen_push('q', '{\"n\": 2}', 'p2')",
                )
                .await?;
            let (came, at, session) = one.await??;
            ensure!(at - began < SOON, "any: {:?}", at - began);
            complete(&session, &came).await?;
            any = session;
            if numbers(&came) == [1] {
                // The other one goes on waiting; give it a message.
                Push::new("q", n(1)).partition("p1").run(&admin).await?;
                let (came, at, session) = other.await??;
                worst = worst.max(at - began);
                complete(&session, &came).await?;
                choosy = session;
                let came = pop().run(&any).await?;
                complete(&any, &came).await?;
            } else {
                let (came, at, session) = other.await??;
                worst = worst.max(at - began);
                complete(&session, &came).await?;
                choosy = session;
            }
        }
        admin.run("SELECT queen_delete_queue('q')").await?;
    }
    ensure!(worst < SOON, "{worst:?}");
    Ok(())
}
