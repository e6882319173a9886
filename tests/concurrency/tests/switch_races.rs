//! Calls that read the queue before its ordering changes, and go on afterwards.

use std::collections::BTreeMap;
use std::future::Future;

use anyhow::Result;
use queen_tests::unordered::{SOON, figures, pop_all, push};
use queen_tests::{
    Ack, Message, Pop, Session, TestDb, complete, eventually, expiry, numbers, sorted,
};
use tokio::task::JoinSet;

const ORDERINGS: [(&str, &str); 2] = [("none", "partition"), ("partition", "none")];

/// How many sessions wait for a lock on the table of queues.
async fn waiting(watcher: &Session) -> Result<i64> {
    let sql = "SELECT count(*) FROM pg_locks WHERE NOT granted \
               AND relation = 'queen_mq.queue'::regclass AND database = \
                   (SELECT oid FROM pg_database WHERE datname = current_database())";
    Ok(watcher.count(sql).await?)
}

/// Let `call` begin and take its first snapshot before the ordering of `q` changes, and read the
/// table of queues after that.
async fn overtaken<T: Send + 'static>(
    db: &TestDb,
    to: &str,
    call: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let [changer, locker, watcher] = db.sessions().await?;
    changer.run(&format!("BEGIN; SELECT queen_configure('q', ordering => '{to}')")).await?;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        locker.run("BEGIN; LOCK TABLE queen_mq.queue IN ACCESS EXCLUSIVE MODE; COMMIT").await
    });
    let wait_for = async |count| {
        eventually("wait for the lock", SOON, async || {
            Ok((waiting(&watcher).await? == count).then_some(()))
        })
        .await
    };
    wait_for(1).await?;
    let call = tokio::spawn(call);
    wait_for(2).await?;
    changer.run("COMMIT").await?;
    while let Some(locker) = tasks.join_next().await {
        locker??;
    }
    call.await?
}

/// A queue with messages 1 to 6, of which the first ones have been completed.
async fn prepared(ordering: &str, completed: i32) -> Result<(TestDb, Session)> {
    let db = TestDb::fresh().await?;
    let session = db.session().await?;
    session.run(&format!("SELECT queen_configure('q', ordering => '{ordering}')")).await?;
    session.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    push(&session, "Default", 1, 6).await?;
    if completed > 0 {
        complete(&session, &pop_all().batch(completed).run(&session).await?).await?;
    }
    Ok((db, session))
}

/// Pop and complete everything.
async fn all(session: &Session) -> Result<Vec<Message>> {
    let mut all = Vec::new();
    loop {
        let came = pop_all().run(session).await?;
        if came.is_empty() {
            return Ok(all);
        }
        complete(session, &came).await?;
        all.extend(came);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_delivers_nothing_twice_and_loses_nothing() -> Result<()> {
    for (from, to) in ORDERINGS {
        for completed in [0, 2] {
            let (db, session) = prepared(from, completed).await?;
            let popping = db.session().await?;
            let pop = pop_all().batch(2).lease("500 ms");
            let held =
                overtaken(&db, to, async move { pop.run(&popping).await.map_err(Into::into) });
            let held = held.await?;
            let others = all(&session).await?;
            if let Some(first) = held.first() {
                // The consumer has gone away.
                expiry(&session, first).await?;
            }
            let rest = all(&session).await?;
            let came = sorted(&[others.as_slice(), &rest].concat());
            let expected: Vec<i64> = (i64::from(completed) + 1..=6).collect();
            assert_eq!(came, expected, "{from} to {to} after {completed}");
            let twice = numbers(&others).into_iter().filter(|one| numbers(&held).contains(one));
            assert_eq!(twice.count(), 0, "{from} to {to}: while its lease was live");
            assert_eq!(figures(&session).await?, (0, 0, 0));
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_registers_reads_as_the_queue_has_it_now() -> Result<()> {
    for (from, to) in ORDERINGS {
        let (db, session) = prepared(from, 0).await?;
        let popping = db.session().await?;
        let pop = Pop::new("q").group("new").mode("all").batch(2);
        let sent = pop.clone();
        let held = overtaken(&db, to, async move { sent.run(&popping).await.map_err(Into::into) });
        let held = held.await?;
        let others = pop.run(&session).await?;
        assert_eq!(numbers(&held), [1, 2], "{from} to {to}");
        let expected: &[i64] = if to == "none" { &[3, 4] } else { &[] };
        assert_eq!(numbers(&others), expected, "{from} to {to}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seek_moves_the_group_as_it_is_now() -> Result<()> {
    for (from, to) in ORDERINGS {
        for partition in ["", ", partition => 'Default'"] {
            let (db, session) = prepared(from, 3).await?;
            session.run("SELECT queen_configure('q', retry_delay => '1 hour')").await?;
            let held = pop_all().batch(2).run(&session).await?;
            Ack::all(held[0].lease()?).status("failed").run(&session).await?;
            let seeking = db.session().await?;
            let sql = format!("SELECT queen_seek('q', 'g', 'start'{partition})::bigint");
            let seek = overtaken(&db, to, async move { Ok(seeking.count(&sql).await?) });
            assert_eq!(seek.await?, 1, "{from} to {to}{partition}");
            let came = all(&session).await?;
            assert_eq!(sorted(&came), [1, 2, 3, 4, 5, 6], "{from} to {to}{partition}");
            assert!(came.iter().all(|one| one.delivery_attempt == 1));
            assert_eq!(figures(&session).await?, (0, 0, 0));
        }
    }
    Ok(())
}

/// Here no open transaction delays the switches.
#[tokio::test(flavor = "multi_thread")]
async fn consumers_beside_many_switches_get_each_message_once() -> Result<()> {
    const MESSAGES: i64 = 2500;
    let (db, admin) = prepared("none", 6).await?;
    push(&admin, "Default", 1, MESSAGES).await?;
    let mut workers = JoinSet::new();
    for _ in 0..3 {
        let session = db.session().await?;
        workers.spawn(async move {
            let (mut came, mut idle) = (Vec::new(), 0);
            while idle < 50 {
                let one = pop_all().batch(1).auto_ack().run(&session).await?;
                idle = if one.is_empty() { idle + 1 } else { 0 };
                came.extend(numbers(&one));
            }
            anyhow::Ok(came)
        });
    }
    let mut switches = 0;
    while admin.count("SELECT pending FROM queen_groups WHERE consumer_group = 'g'").await? > 0 {
        let to = ORDERINGS[switches % 2].1;
        admin.run(&format!("SELECT queen_configure('q', ordering => '{to}')")).await?;
        switches += 1;
    }
    let mut came = Vec::new();
    while let Some(worker) = workers.join_next().await {
        came.extend(worker??);
    }
    let mut times = BTreeMap::new();
    for number in came {
        *times.entry(number).or_insert(0) += 1;
    }
    let wrong: Vec<_> = (1..=MESSAGES)
        .map(|number| (number, times.remove(&number).unwrap_or(0)))
        .filter(|(_, times)| *times != 1)
        .collect();
    assert_eq!(wrong, [], "numbers and how often each came, after {switches} switches");
    assert!(switches > 20, "only {switches} switches");
    Ok(())
}
