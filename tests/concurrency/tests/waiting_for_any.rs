//! Sessions that wait for several queues: no wake-up is lost between those that wait for different
//! lists, and none is swallowed by a session that takes from another queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::waiting::{SOON, Waiting, are_asleep, first_served, wait_in_task};
use queen_tests::{Pop, Push, Session, TestDb, complete, eventually, n, numbers};

fn any(queues: &[&str]) -> Pop {
    Pop::any(queues).group("g").mode("all")
}

async fn register(session: &Session, queues: &[&str]) -> Result<()> {
    for queue in queues {
        session
            .run(&format!(
                "SELECT queen_configure('{queue}'), queen_subscribe('{queue}', 'g', 'all')"
            ))
            .await?;
    }
    Ok(())
}

/// One of the waiting sessions comes back with this message; it and the session are returned.
async fn served(waiting: &mut Vec<Waiting>, queue: &str, number: i64) -> Result<Session> {
    let began = Instant::now();
    let (came, _, session) = first_served(waiting).await?;
    ensure!(began.elapsed() < SOON, "{:?}", began.elapsed());
    ensure!(came.len() == 1 && came[0].queue == queue && numbers(&came) == [number], "{came:?}");
    complete(&session, &came).await?;
    Ok(session)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_pop_is_woken_by_each_of_its_queues_and_by_what_comes_without_a_commit()
-> Result<()> {
    let db = TestDb::alone().await?;
    let [pusher, mut waiter] = db.sessions().await?;
    register(&pusher, &["a", "b", "c"]).await?;
    let pop = any(&["a", "b", "c", "not there yet"]).wait("60 s");
    let mut round = 0;
    for queue in ["a", "c", "b", "not there yet", "b", "a"] {
        round += 1;
        let mut waiting = vec![wait_in_task(waiter, pop.clone())];
        are_asleep(&pusher, 1).await?;
        Push::new(queue, n(round)).run(&pusher).await?;
        waiter = served(&mut waiting, queue, round).await.context(queue)?;
    }
    // A lease in one queue ends, a timer of another one is due, a failed message comes back.
    for queue in ["a", "b", "c"] {
        Push::new(queue, n(7)).run(&pusher).await?;
        Pop::new(queue).group("g").lease("400 ms").one(&pusher).await?;
        let mut waiting = vec![wait_in_task(waiter, pop.clone())];
        waiter = served(&mut waiting, queue, 7).await.context("the end of a lease")?;
        let mut waiting = vec![wait_in_task(waiter, pop.clone())];
        are_asleep(&pusher, 1).await?;
        let timer = format!("SELECT queen_schedule('{queue}', 'k', '{{\"n\": 8}}', '300 ms')");
        pusher.run(&timer).await?;
        waiter = served(&mut waiting, queue, 8).await.context("a timer")?;
        Push::new(queue, n(9)).run(&pusher).await?;
        let held = Pop::new(queue).group("g").one(&pusher).await?;
        let mut waiting = vec![wait_in_task(waiter, pop.clone())];
        are_asleep(&pusher, 1).await?;
        let failed = format!("SELECT queen_ack('{}', status => 'failed')", held.lease()?);
        pusher.run(&failed).await?;
        waiter = served(&mut waiting, queue, 9).await.context("a failure")?;
    }
    Ok(())
}

/// A session that waits for two queues, and another one that waits for the second alone: a commit
/// brings something to both, and each gets one message, whichever was woken for what.
#[tokio::test(flavor = "multi_thread")]
async fn a_wake_up_for_a_queue_that_the_session_does_not_take_from_is_handed_on() -> Result<()> {
    let db = TestDb::alone().await?;
    let pusher = db.session().await?;
    register(&pusher, &["a", "b"]).await?;
    let mut sessions = db.crowd(4).await?;
    for round in 0..25 {
        let mut waiting = Vec::new();
        // In either order on the list: those for both queues first, or last.
        for place in 0..4 {
            let both = (place < 2) == (round % 2 == 0);
            let pop = any(if both { &["a", "b"] } else { &["b"] }).wait("60 s");
            waiting.push(wait_in_task(sessions.pop().context("a session")?, pop));
        }
        are_asleep(&pusher, 4).await?;
        let began = Instant::now();
        pusher
            .run(&format!(
                "SELECT queen_push(q, jsonb_build_object('n', {round}), 'p' || p)
                 FROM unnest(ARRAY['b', 'a']) AS q, generate_series(1, 2) AS p"
            ))
            .await?;
        let mut came = Vec::new();
        for _ in 0..4 {
            let (messages, at, session) = first_served(&mut waiting).await?;
            ensure!(at - began < SOON, "round {round}: {:?}", at - began);
            ensure!(messages.len() == 1 && numbers(&messages) == [round], "{messages:?}");
            complete(&session, &messages).await?;
            came.push((messages[0].queue.clone(), messages[0].partition.clone()));
            sessions.push(session);
        }
        came.sort();
        let all = ["a", "b"].map(|q| ["p1", "p2"].map(|p| (q.to_owned(), p.to_owned())));
        assert_eq!(came, all.concat());
    }
    Ok(())
}

/// Of each kind one: a session that waits for both queues is cancelled, terminated, or its client
/// goes, at the moment at which it is woken.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_ended_hands_on_what_it_was_woken_for() -> Result<()> {
    let db = TestDb::alone().await?;
    let [ref pusher, ref admin] = db.sessions().await?;
    register(pusher, &["a", "b"]).await?;
    for round in 0..12 {
        let [first, last] = db.sessions().await?;
        let (pid, client) = (first.pid(), first.connection());
        let first = wait_in_task(first, any(&["a", "b"]).wait("60 s"));
        are_asleep(admin, 1).await?;
        let last = wait_in_task(last, any(&["b"]).wait("60 s"));
        are_asleep(admin, 2).await?;
        let push = Push::new("b", n(round));
        let began = Instant::now();
        match round % 3 {
            // The server finds out that the client has gone when it wakes the session.
            2 => {
                client.abort();
                push.run(pusher).await?;
            }
            kind => {
                let end = ["pg_cancel_backend", "pg_terminate_backend"][kind as usize];
                let end = format!("SELECT {end}({pid})");
                let (pushed, ended) = tokio::join!(push.run(pusher), admin.run(&end));
                pushed?;
                ended?;
            }
        }
        match first.await? {
            // It was faster than its end. The other one is served by the next push.
            Ok((came, ..)) => {
                assert_eq!(numbers(&came), [round]);
                Push::new("b", n(round)).partition("other").run(pusher).await?;
            }
            Err(error) => ensure!(
                format!("{error:#}").contains("connection")
                    || format!("{error:#}").contains("db error"),
                "{error:#}"
            ),
        }
        let (came, at, session) = last.await??;
        ensure!(at - began < 2 * SOON, "round {round}: {:?}", at - began);
        assert_eq!(numbers(&came), [round]);
        complete(&session, &came).await?;
        // What a session got that was ended then is leased for a while.
        pusher.run("SELECT queen_seek('b', 'g', 'end')").await?;
    }
    Ok(())
}

/// Push so many messages, in short and in long transactions, some of which roll back first.
async fn produce(session: Session, queue: &str, total: i64) -> Result<()> {
    for number in 0..total {
        let push = Push::new(queue, n(number)).partition(format!("p{}", number % 9));
        session.run("BEGIN").await?;
        push.run(&session).await?;
        if number % 10 == 9 {
            tokio::time::sleep(Duration::from_millis(30)).await;
            session.run("ROLLBACK; BEGIN").await?;
            push.run(&session).await?;
        }
        session.run("COMMIT").await?;
        if number % 4 == 0 {
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
    Ok(())
}

/// Consumers that wait for lists in different orders, producers in short and in long transactions,
/// some of which roll back: each message comes once, to a consumer that keeps it.
async fn crowd(db: &TestDb, total: i64) -> Result<()> {
    let admin = db.session().await?;
    register(&admin, &["a", "b", "c"]).await?;
    admin.run("SELECT queen_configure('c', ordering => 'none')").await?;
    let lists: [&[&str]; 6] =
        [&["a", "b", "c"], &["c", "b", "a"], &["b"], &["b", "c"], &["a", "c"], &["c", "a", "b"]];
    let taken = Arc::new(AtomicUsize::new(0));
    let mut consumers = Vec::new();
    for (number, session) in db.crowd(12).await?.into_iter().enumerate() {
        let (pop, taken) = (any(lists[number % 6]).wait("1 s"), taken.clone());
        consumers.push(tokio::spawn(async move {
            let mut all: Vec<(String, i64)> = Vec::new();
            let mut pops = 0;
            while taken.load(Ordering::Relaxed) < total as usize * 3 {
                session.run("BEGIN").await?;
                let came = pop.run(&session).await?;
                pops += 1;
                // Some give back what they got, now and then.
                if came.is_empty() || (number % 4 == 3 && pops % 3 == 2) {
                    session.run("ROLLBACK").await?;
                    continue;
                }
                complete(&session, &came).await?;
                session.run("COMMIT").await?;
                taken.fetch_add(came.len(), Ordering::Relaxed);
                all.extend(
                    came.iter()
                        .map(|one| (one.queue.clone(), numbers(std::slice::from_ref(one))[0])),
                );
            }
            anyhow::Ok(all)
        }));
    }
    let producers = ["a", "b", "c"].map(|queue| {
        let session = db.session();
        async move { produce(session.await?, queue, total).await }
    });
    for pushed in futures_of(producers).await {
        pushed?;
    }
    eventually("all messages", Duration::from_secs(60), async || {
        Ok((taken.load(Ordering::Relaxed) >= total as usize * 3).then_some(()))
    })
    .await?;
    let mut all = Vec::new();
    for consumer in consumers {
        all.extend(consumer.await??);
    }
    all.sort();
    let expected: Vec<(String, i64)> = ["a", "b", "c"]
        .iter()
        .flat_map(|queue| (0..total).map(move |number| ((*queue).to_owned(), number)))
        .collect();
    ensure!(all == expected, "{} of {} came", all.len(), expected.len());
    Ok(())
}

async fn futures_of<F: Future<Output = Result<()>>>(three: [F; 3]) -> [Result<()>; 3] {
    let [a, b, c] = three;
    tokio::join!(a, b, c).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_with_different_lists_gets_each_message_once() -> Result<()> {
    crowd(&TestDb::alone().await?, 150).await
}

#[tokio::test(flavor = "multi_thread")]
async fn so_it_does_without_preload() -> Result<()> {
    let _alone = TestDb::alone().await?;
    let cluster = Cluster::start_with("shared_preload_libraries = ''")?;
    let db = TestDb::create(&cluster.config()).await?;
    crowd(&db, 50).await?;
    let [ref waiter, ref pusher] = db.sessions().await?;
    let pop = any(&["a", "b", "c"]).wait("20 s").auto_ack();
    for queue in ["c", "b", "a"] {
        let pushing = async {
            tokio::time::sleep(Duration::from_millis(150)).await;
            Push::new(queue, n(-1)).run(pusher).await.map(|_| Instant::now())
        };
        let popping = async { pop.run(waiter).await.map(|came| (came, Instant::now())) };
        let (came, pushed) = tokio::join!(popping, pushing);
        let ((came, at), pushed) = (came?, pushed?);
        assert_eq!((came[0].queue.as_str(), came.len()), (queue, 1));
        ensure!(at.saturating_duration_since(pushed) < SOON, "{:?}", at - pushed);
    }
    Ok(())
}

/// A session that waits holds no lock and no snapshot of a look, and has registered nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_waits_for_several_queues_holds_nothing() -> Result<()> {
    let db = TestDb::alone().await?;
    let [waiter, admin] = db.sessions().await?;
    register(&admin, &["a", "b"]).await?;
    let pid = waiter.pid();
    let pop = Pop::any(&["a", "b", "c"]).group("fresh").mode("all").wait("60 s");
    let mut waiting = vec![wait_in_task(waiter, pop)];
    are_asleep(&admin, 1).await?;
    let locks = format!(
        "SELECT count(*) FROM pg_locks WHERE pid = {pid} AND locktype NOT IN ('virtualxid')
           AND mode <> 'AccessShareLock'"
    );
    assert_eq!(admin.count(&locks).await?, 0);
    let groups = "SELECT count(*) FROM queen_groups WHERE consumer_group = 'fresh'";
    assert_eq!(admin.count(groups).await?, 0);
    admin.be_prompt().await?;
    admin.run("SELECT queen_purge('a'), queen_delete_queue('b')").await?;
    Push::new("c", n(1)).run(&admin).await?;
    served(&mut waiting, "c", 1).await?;
    assert_eq!(admin.count(groups).await?, 3);
    Ok(())
}
