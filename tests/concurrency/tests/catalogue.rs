//! A session works with the current catalogue after any change: relations that were replaced,
//! dropped or created again, queues and groups with other options, or removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use chrono::TimeDelta;
use queen_tests::{Ack, Fails, Pop, PushBatch, Session, TestDb, complete, n, numbers};
use tokio::task::JoinSet;
use tokio_postgres::Error;

const LONG: Duration = Duration::from_secs(60);

fn pop() -> Pop {
    Pop::new("q").group("g").mode("all").batch(10)
}

/// Push, pop and ack once, which uses most tables.
async fn goes_around(session: &Session, number: i64) -> Result<()> {
    PushBatch::new("q", vec![n(number)]).run(session).await?;
    let came = pop().run(session).await?;
    assert_eq!(numbers(&came), [number]);
    complete(session, &came).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_extension_can_be_dropped_and_created_anew() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [session, other] = db.sessions().await?;
    goes_around(&session, 1).await?;
    goes_around(&other, 2).await?;
    other.run("DROP EXTENSION queen_mq").await?;
    other.run("CREATE EXTENSION queen_mq").await?;
    for (session, number) in [(&session, 3), (&other, 4)] {
        goes_around(session, number).await?;
    }

    // The transaction is rolled back, so the first relations are there again.
    session.run("BEGIN; DROP EXTENSION queen_mq; CREATE EXTENSION queen_mq").await?;
    goes_around(&session, 5).await?;
    session.run("SAVEPOINT s; DROP EXTENSION queen_mq").await?;
    session.query("SELECT * FROM queen_pop('q')", &[]).await.fails_with("42883")?;
    session.run("ROLLBACK TO SAVEPOINT s").await?;
    goes_around(&session, 6).await?;
    session.run("ROLLBACK").await?;
    goes_around(&session, 7).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_and_tables_are_rebuilt_while_sessions_work() -> Result<()> {
    const WORKERS: i64 = 4;
    let db = TestDb::fresh().await?;
    let admin = db.session().await?;
    for (queue, ordering) in [("ordered", "partition"), ("unordered", "none")] {
        admin.run(&format!("SELECT queen_configure('{queue}', ordering => '{ordering}')")).await?;
        admin.run(&format!("SELECT queen_subscribe('{queue}', 'g', 'all')")).await?;
    }
    let (mut workers, is_done) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
    let rounds = Arc::new(AtomicUsize::new(0));
    for worker in 0..WORKERS {
        let (session, is_done) = (db.session().await?, is_done.clone());
        let rounds = rounds.clone();
        workers.spawn(async move {
            let mut round = 0;
            while !is_done.load(Ordering::Relaxed) {
                round += 1;
                for queue in ["ordered", "unordered"] {
                    let partition = format!("p{worker}");
                    let push = PushBatch::new(queue, vec![n(round)]).partition(&partition);
                    push.run(&session).await?;
                    let pop = Pop::new(queue).group("g").partition(partition);
                    let came = pop.one(&session).await?;
                    assert_eq!(came.payload, n(round), "{queue}");
                    Ack::all(came.lease()?).run(&session).await?;
                }
                rounds.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(round)
        });
    }
    let rebuilding = async {
        let sql = "SELECT c.relname::text, c.relkind = 'i' FROM pg_class c \
                   WHERE c.relnamespace = 'queen_mq'::regnamespace AND c.relkind IN ('i', 'r')";
        let relations = admin.query(sql, &[]).await?;
        for row in &relations {
            let (name, is_index): (String, bool) = (row.get(0), row.get(1));
            let kind = if is_index { "INDEX" } else { "TABLE" };
            admin.run(&format!("REINDEX {kind} CONCURRENTLY queen_mq.{name}")).await?;
        }
        anyhow::Ok(relations.len())
    };
    let rebuilt = rebuilding.await;
    // A slow machine needs more time for so many rounds.
    let began = Instant::now();
    while rounds.load(Ordering::Relaxed) < 50 * WORKERS as usize && began.elapsed() < LONG {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    is_done.store(true, Ordering::Relaxed);
    assert!(rebuilt? > 30);
    while let Some(worker) = workers.join_next().await {
        assert!(worker?? > 20);
    }
    let left = "SELECT sum(pending)::bigint FROM queen_groups";
    assert_eq!(admin.count(left).await?, 0);
    Ok(())
}

const PARTITIONS: usize = 200;

/// The lease time of the next message, in hours. It shows which options the session uses.
async fn lease_hours(session: &Session) -> Result<i64> {
    // Each call uses a partition of its own.
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let partition = format!("p{}", NEXT.fetch_add(1, Ordering::Relaxed) % PARTITIONS);
    let pop = Pop::new("q").group("g").partition(partition);
    let now = session.now().await?;
    let came = pop.one(session).await?;
    let length = came.lease_expires_at.context("a lease has an end")? - now;
    Ok((length + TimeDelta::minutes(1)).num_hours())
}

async fn set_lease_time(session: &Session, hours: i64) -> Result<(), Error> {
    session.run(&format!("SELECT queen_configure('q', lease_time => '{hours} hours')")).await
}

/// Make a queue with a lease time of one hour that all sessions have used, with messages for each
/// of them.
async fn known_to_all<const N: usize>() -> Result<(TestDb, [Session; N])> {
    let db = TestDb::fresh().await?;
    let sessions: [Session; N] = db.sessions().await?;
    set_lease_time(&sessions[0], 1).await?;
    sessions[0].run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    for number in 0..PARTITIONS as i64 {
        let push = PushBatch::new("q", vec![n(number)]).partition(format!("p{number}"));
        push.run(&sessions[0]).await?;
    }
    for session in &sessions {
        assert_eq!(lease_hours(session).await?, 1);
    }
    Ok((db, sessions))
}

#[tokio::test(flavor = "multi_thread")]
async fn options_hold_from_the_commit_on_also_in_open_transactions() -> Result<()> {
    let (_db, [admin, open, repeatable, other]) = known_to_all().await?;
    open.run("BEGIN").await?;
    repeatable.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
    for session in [&open, &repeatable] {
        assert_eq!(lease_hours(session).await?, 1);
    }
    admin.run("BEGIN").await?;
    set_lease_time(&admin, 2).await?;
    assert_eq!(lease_hours(&admin).await?, 2, "its own change");
    for session in [&open, &repeatable, &other] {
        assert_eq!(lease_hours(session).await?, 1, "not committed");
    }
    admin.run("COMMIT").await?;
    assert_eq!(lease_hours(&open).await?, 2);
    assert_eq!(lease_hours(&repeatable).await?, 1, "as of its snapshot");
    assert_eq!(lease_hours(&other).await?, 2);
    for session in [&open, &repeatable] {
        session.run("COMMIT").await?;
        assert_eq!(lease_hours(session).await?, 2);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn options_that_are_rolled_back_never_held() -> Result<()> {
    let (_db, [admin, other]) = known_to_all().await?;
    admin.run("BEGIN; SAVEPOINT s").await?;
    set_lease_time(&admin, 2).await?;
    assert_eq!(lease_hours(&admin).await?, 2);
    admin.run("ROLLBACK TO SAVEPOINT s").await?;
    assert_eq!(lease_hours(&admin).await?, 1);
    set_lease_time(&admin, 3).await?;
    assert_eq!(lease_hours(&admin).await?, 3);
    admin.run("ROLLBACK").await?;
    assert_eq!(lease_hours(&admin).await?, 1);

    admin.run("BEGIN").await?;
    set_lease_time(&admin, 4).await?;
    assert_eq!(lease_hours(&admin).await?, 4);
    admin.run("PREPARE TRANSACTION 'options'").await?;
    for session in [&admin, &other] {
        assert_eq!(lease_hours(session).await?, 1, "prepared");
    }
    other.run("COMMIT PREPARED 'options'").await?;
    for session in [&admin, &other] {
        assert_eq!(lease_hours(session).await?, 4);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_removed_is_gone_for_those_who_knew_it() -> Result<()> {
    let (_db, [admin, open, other]) = known_to_all().await?;
    let group = "SELECT id FROM queen_mq.consumer_group WHERE name = 'g'";
    let first = admin.count(group).await?;
    other.run("SET queen_mq.auto_create = off").await?;
    open.run("BEGIN; SET LOCAL queen_mq.auto_create = off").await?;
    assert_eq!(lease_hours(&other).await?, 1);
    // The transaction has read the queue, and holds no lock on it.
    open.run("SELECT queen_cancel('q', 'no such timer')").await?;

    // Inside a transaction that goes on, and outside of one.
    let refused = async |sql: &str| -> Result<()> {
        open.run("SAVEPOINT s").await?;
        open.query(sql, &[]).await.fails_with("42704")?;
        open.run("ROLLBACK TO SAVEPOINT s").await?;
        other.query(sql, &[]).await.fails_with("42704").map(drop)
    };
    admin.run("SELECT queen_unsubscribe('q', 'g')").await?;
    refused("SELECT queen_seek('q', 'g', 'start')").await?;
    admin.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    assert_ne!(admin.count(group).await?, first);
    assert_eq!(Pop::new("q").group("g").partition("p0").one(&other).await?.payload, n(0));

    admin.run("SELECT queen_delete_queue('q')").await?;
    refused("SELECT queen_push('q', '1')").await?;
    refused("SELECT queen_pop('q', 'g')").await?;
    set_lease_time(&admin, 5).await?;
    open.run("SELECT queen_push('q', '1'); COMMIT").await?;
    admin.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    let now = other.now().await?;
    let came = Pop::new("q").group("g").one(&other).await?;
    assert!(came.lease_expires_at.context("an end")? - now >= TimeDelta::hours(5));
    Ok(())
}
