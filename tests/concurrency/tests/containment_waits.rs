//! A call that waits for many transactions (a seek, a purge, a deletion, a change of ordering)
//! makes no other call wait meanwhile. It gets done where many short transactions follow each
//! other, and can be interrupted like any wait for a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::{Fails, Session, TestDb, at_once, eventually};
use tokio::task::JoinHandle;
use tokio_postgres::Error;

/// Calls that wait for a transaction that has popped for group `g`.
const CALLS: [&str; 6] = [
    "SELECT queen_seek('q', 'g', 'start')",
    "SELECT queen_seek('q', 'g', 'end', partition => 'held')",
    "SELECT queen_unsubscribe('q', 'g')",
    "SELECT queen_purge('q')",
    "SELECT queen_delete_queue('q')",
    "SELECT queen_configure('q', ordering => $$other$$)",
];
const ORDERINGS: [(&str, &str); 2] = [("partition", "none"), ("none", "partition")];

/// The calls, with this ordering. In a group without order, unsubscribing does not wait for a
/// transaction that has only claimed messages for the first time.
fn calls(ordering: &str, other: &str) -> Vec<String> {
    let calls =
        CALLS.iter().filter(|call| ordering == "partition" || !call.contains("unsubscribe"));
    calls.map(|call| call.replace("$$other$$", &format!("'{other}'"))).collect()
}

/// A deadline for a busy server.
const SOON: Duration = Duration::from_secs(30);
const WINDOW: Duration = Duration::from_secs(2);

const HOLD: &str =
    "SELECT count(*) FROM queen_pop('q', 'g', partition => 'held', auto_ack => true)";
const POP: &str = "SELECT count(*) FROM queen_pop('q', 'g', auto_ack => true)";

/// A pop that waits until there is a message to pop again.
const WAIT: &str = "SELECT count(*) FROM queen_pop('q', 'g', auto_ack => true, wait => '20 s')";

/// Queue `q` with groups `g` and `other`, a partition `held`, and others with many messages.
async fn prepared(ordering: &str) -> Result<TestDb> {
    let db = TestDb::alone().await?;
    let session = db.session().await?;
    session
        .run(&format!(
            "SELECT queen_configure('q', ordering => '{ordering}');
             SELECT queen_subscribe('q', 'g', 'all');
             SELECT queen_subscribe('q', 'other', 'all');
             SELECT queen_push_batch('q', array_fill('1'::jsonb, ARRAY[2000]), partition => 'held');
             SELECT queen_push_batch('q', array_fill('1'::jsonb, ARRAY[2000]),
                 partition => 'p' || i)
             FROM generate_series(1, 4) i"
        ))
        .await?;
    // Every partition has been read, the held one last: locks are taken in this order.
    for partition in ["p1", "p2", "p3", "p4", "held"] {
        let pop =
            format!("SELECT queen_pop('q', 'g', partition => '{partition}', auto_ack => true)");
        session.run(&pop).await?;
    }
    Ok(db)
}

/// Begin a call, and wait until it waits for a lock.
async fn begin(db: &TestDb, call: &str) -> Result<(i32, JoinHandle<Result<(), Error>>)> {
    let session = db.session().await?;
    let (pid, call) = (session.pid(), call.to_owned());
    let task = tokio::spawn(async move { session.run(&call).await });
    let watcher = db.session().await?;
    eventually("wait for a lock", SOON, async || {
        let row = watcher
            .row("SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)", &[&pid])
            .await?;
        Ok(row.get::<_, bool>(0).then_some(()))
    })
    .await?;
    Ok((pid, task))
}

/// How many messages come within this time, and the longest time without one.
async fn pops_within(session: &Session, window: Duration) -> Result<(i64, Duration)> {
    run_within(session, window, POP).await
}

async fn run_within(
    session: &Session,
    window: Duration,
    pop: &'static str,
) -> Result<(i64, Duration)> {
    let (began, mut last) = (Instant::now(), Instant::now());
    let (mut count, mut longest) = (0, Duration::ZERO);
    while began.elapsed() < window {
        let came = session.rows(pop, &[]).await?[0].get::<_, i64>(0);
        if came > 0 {
            longest = longest.max(last.elapsed());
            last = Instant::now();
            count += came;
        }
    }
    Ok((count, longest.max(last.elapsed())))
}

#[tokio::test(flavor = "multi_thread")]
async fn others_pop_while_a_call_waits_for_an_open_pop() -> Result<()> {
    for (ordering, other) in ORDERINGS {
        for call in calls(ordering, other) {
            let db = prepared(ordering).await?;
            let [open, consumer] = db.sessions().await?;
            let (before, _) = pops_within(&consumer, WINDOW / 4).await?;
            open.run("BEGIN").await?;
            ensure!(open.count(HOLD).await? == 1, "{ordering}: nothing was popped to wait for");
            let (_, task) = begin(&db, &call).await?;
            let (during, longest) = pops_within(&consumer, WINDOW).await?;
            // The second measurement is four times as long. At least half as many messages come as
            // in the first, and no gap is longer than half of the window.
            ensure!(
                during * 2 >= before && longest < WINDOW / 2,
                "{ordering}, {call}: {before} in a quarter of the time before, then {during}, \
                    none in {longest:?}"
            );
            ensure!(!task.is_finished(), "{ordering}, {call}: it did not wait");
            open.run("COMMIT").await?;
            tokio::time::timeout(SOON, task).await???;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn others_pop_while_a_call_waits_for_an_open_ack() -> Result<()> {
    for (ordering, _) in ORDERINGS {
        let db = prepared(ordering).await?;
        let [open, consumer] = db.sessions().await?;
        let pop = "SELECT lease_id::text FROM queen_pop('q', 'g', partition => 'held')";
        let lease: String = open.query_one(pop, &[]).await?.get(0);
        open.run(&format!("BEGIN; SELECT queen_ack('{lease}')")).await?;
        let (_, task) = begin(&db, "SELECT queen_seek('q', 'g', 'start')").await?;
        let (during, longest) = run_within(&consumer, WINDOW, WAIT).await?;
        ensure!(during > 0 && longest < WINDOW / 2, "{ordering}: {during}, none in {longest:?}");
        open.run("COMMIT").await?;
        tokio::time::timeout(SOON, task).await???;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seek_has_nothing_to_do_with_other_groups() -> Result<()> {
    for (ordering, _) in ORDERINGS {
        let db = prepared(ordering).await?;
        let [open, seeking, consumer] = db.sessions().await?;
        open.run("BEGIN").await?;
        ensure!(open.count(HOLD).await? == 1, "{ordering}: nothing was popped");
        seeking.run("SET statement_timeout = '5s'; BEGIN").await?;
        seeking.run("SELECT queen_seek('q', 'other', 'end')").await?;
        seeking.run("SELECT queen_seek('q', 'other', 'end', partition => 'held')").await?;
        // A partition that the group has not read.
        consumer.run("SELECT queen_push('q', '1', partition => 'new')").await?;
        let pop = "SELECT count(*) FROM queen_pop('q', 'g', partition => 'new', auto_ack => true)";
        assert_eq!(
            consumer.count(pop).await?,
            1,
            "{ordering}: beside an open seek of another group"
        );
        seeking.run("COMMIT").await?;
        open.run("COMMIT").await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_get_through_many_short_transactions() -> Result<()> {
    for (ordering, other) in ORDERINGS {
        let db = prepared(ordering).await?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut consumers = Vec::new();
        for session in db.crowd(4).await? {
            let stop = stop.clone();
            consumers.push(tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    session.run(&format!("BEGIN; {POP}; SELECT pg_sleep(0.01); COMMIT")).await?;
                }
                Ok::<_, Error>(())
            }));
        }
        let session = db.session().await?;
        for call in calls(ordering, other) {
            // The call before may have removed the group.
            session.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
            let began = Instant::now();
            session.run(&call).await?;
            ensure!(began.elapsed() < SOON, "{ordering}, {call}: {:?}", began.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
        for consumer in consumers {
            consumer.await??;
        }
    }
    Ok(())
}

/// The object locks that a session has or waits for.
async fn named(pid: i32, watcher: &Session) -> Result<i64> {
    let sql = "SELECT count(*) FROM pg_locks WHERE pid = $1 \
        AND (NOT granted OR locktype IN ('object', 'tuple'))";
    Ok(watcher.row(sql, &[&pid]).await?.get(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_ends_early_leaves_nothing_behind() -> Result<()> {
    for (ordering, other) in ORDERINGS {
        let db = prepared(ordering).await?;
        let [open, session, watcher, consumer] = db.sessions().await?;
        open.run("BEGIN").await?;
        ensure!(open.count(HOLD).await? == 1, "{ordering}: nothing was popped to wait for");
        for call in calls(ordering, other) {
            for (limit, sqlstate) in [
                ("SET LOCAL lock_timeout = '30ms'", "55P03"),
                ("SET LOCAL lock_timeout = '400ms'", "55P03"),
                ("SET LOCAL statement_timeout = '50ms'", "57014"),
                ("SET LOCAL statement_timeout = '500ms'", "57014"),
            ] {
                session.run(&format!("BEGIN; {limit}; SAVEPOINT s")).await?;
                let began = Instant::now();
                session.run(&call).await.fails_with(sqlstate)?;
                ensure!(began.elapsed() < SOON, "{call} with {limit}: {:?}", began.elapsed());
                session.run("ROLLBACK TO s").await?;
                assert_eq!(named(session.pid(), &watcher).await?, 0, "{call} with {limit}");
                let shown = session.query_one("SHOW lock_timeout", &[]).await?;
                let timeout: String = shown.get(0);
                assert!(limit.contains(&timeout) || timeout == "0", "{limit}: {timeout}");
                assert_eq!(consumer.count(POP).await?, 1, "beside {call} with {limit}");
                session.run("ROLLBACK").await?;
            }
        }
    }
    Ok(())
}

/// A statement_timeout is not lost when it passes together with the time limit of one attempt (100,
/// 200, 400 ms).
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_timeout_that_passes_with_an_attempt_ends_the_call() -> Result<()> {
    for (ordering, _) in ORDERINGS {
        let db = prepared(ordering).await?;
        let open = db.session().await?;
        open.run("BEGIN").await?;
        ensure!(open.count(HOLD).await? == 1, "{ordering}: nothing was popped to wait for");
        let crowd = db.crowd(12).await?;
        for ended in at_once(crowd, |at, session| async move {
            for timeout in [99, 100, 101, 299, 300, 301] {
                let limit = format!("SET statement_timeout = '{}ms'", timeout + at % 2);
                session.run(&limit).await?;
                let began = Instant::now();
                session.run("SELECT queen_purge('q')").await.fails_with("57014")?;
                ensure!(began.elapsed() < SOON, "{limit}: {:?}", began.elapsed());
            }
            anyhow::Ok(())
        })
        .await?
        {
            ended?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_can_be_cancelled() -> Result<()> {
    for (ordering, _) in ORDERINGS {
        let db = prepared(ordering).await?;
        let [open, watcher] = db.sessions().await?;
        open.run("BEGIN").await?;
        ensure!(open.count(HOLD).await? == 1, "{ordering}: nothing was popped to wait for");
        for pause in [0, 300] {
            let (pid, task) = begin(&db, "BEGIN; SELECT queen_purge('q')").await?;
            tokio::time::sleep(Duration::from_millis(pause)).await;
            watcher.row("SELECT pg_cancel_backend($1)", &[&pid]).await?;
            tokio::time::timeout(SOON, task).await??.fails_with("57014")?;
            assert_eq!(named(pid, &watcher).await?, 0);
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_goes_on_after_a_wait_that_ended_early() -> Result<()> {
    for (ordering, _) in ORDERINGS {
        let db = prepared(ordering).await?;
        let [open, session] = db.sessions().await?;
        open.run("BEGIN").await?;
        ensure!(open.count(HOLD).await? == 1, "{ordering}: nothing was popped to wait for");
        session
            .run(
                "CREATE TABLE t (a int);
                 SET lock_timeout = '300ms';
                 DO $$ BEGIN
                   INSERT INTO t VALUES (1);
                   BEGIN
                     INSERT INTO t VALUES (2);
                     PERFORM queen_purge('q');
                   EXCEPTION WHEN lock_not_available THEN
                     INSERT INTO t VALUES (3);
                   END;
                 END $$",
            )
            .await?;
        assert_eq!(session.count("SELECT sum(a) FROM t").await?, 4);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_is_detected() -> Result<()> {
    for (ordering, _) in ORDERINGS {
        for call in ["SELECT queen_seek('q', 'g', 'start')", "SELECT queen_purge('q')"] {
            let db = prepared(ordering).await?;
            let [open, session] = db.sessions().await?;
            session.run("CREATE TABLE t (a int); INSERT INTO t VALUES (1)").await?;
            session.run("BEGIN; UPDATE t SET a = 2").await?;
            open.run("BEGIN").await?;
            ensure!(open.count(HOLD).await? == 1, "{ordering}: nothing was popped to wait for");
            let waiting = tokio::spawn(async move { open.run("UPDATE t SET a = 3; COMMIT").await });
            let began = Instant::now();
            let outcome = session.run(&format!("{call}; COMMIT")).await;
            let other = match outcome {
                Ok(()) => waiting.await?.fails_with("40P01")?,
                Err(_) => outcome.fails_with("40P01")?,
            };
            ensure!(
                began.elapsed() < SOON,
                "{ordering}, {call}: {:?} after {other:?}",
                began.elapsed()
            );
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_transaction_is_waited_for_like_any_other() -> Result<()> {
    for (ordering, _) in ORDERINGS {
        let db = prepared(ordering).await?;
        let [open, consumer] = db.sessions().await?;
        let name = db.name();
        open.run("BEGIN").await?;
        ensure!(open.count(HOLD).await? == 1, "{ordering}: nothing was popped to wait for");
        open.run(&format!("PREPARE TRANSACTION '{name}'")).await?;
        let (_, task) = begin(&db, "SELECT queen_purge('q')").await?;
        let (during, longest) = pops_within(&consumer, WINDOW).await?;
        ensure!(during > 0 && longest < WINDOW / 2, "{ordering}: {during}, none in {longest:?}");
        open.run(&format!("COMMIT PREPARED '{name}'")).await?;
        tokio::time::timeout(SOON, task).await???;
    }
    Ok(())
}
