//! What a sleeping worker has to notice: what changes without a call of a function, or in another
//! session than the one that wrote it; and what it has not to notice: what others write.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::{Pop, Push, Session, TestDb, complete, eventually, n};

/// What tells of itself is noticed in a round, the rest in ten seconds. The rest of this limit is
/// for a machine that is busy.
const SOON: Duration = Duration::from_secs(60);
const SERVE_ALL: &str = "queen_mq.databases = ''\nautovacuum = off\nfsync = off";

const MARKERS: &str = "SELECT count(*) FROM queen_mq.marker";
const MESSAGES: &str = "SELECT count(*) FROM queen_messages";
const WORKERS: &str = "SELECT count(*) FROM pg_stat_activity
                       WHERE backend_type = 'queen_mq worker' AND datname = current_database()";

/// Wait until a query counts so many; returns how long that took.
async fn counts(session: &Session, sql: &str, expected: i64) -> Result<Duration> {
    let began = Instant::now();
    let what = format!("{expected} from {sql}");
    eventually(&what, SOON, async || Ok((session.count(sql).await? == expected).then_some(())))
        .await?;
    Ok(began.elapsed())
}

/// A database whose worker has looked at everything, and sleeps.
async fn asleep(cluster: &Cluster) -> Result<(TestDb, Session)> {
    let db = TestDb::create(&cluster.config()).await?;
    let session = db.session().await?;
    session.run("SELECT queen_kv_put('n', 'k', '1', ttl => '1 ms')").await?;
    counts(&session, MARKERS, 0).await?;
    Ok((db, session))
}

/// Write to a table of no concern, over and over, for this time.
async fn write(session: &Session, time: Duration) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < time {
        session.run("UPDATE other SET n = n + 1").await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn it_does_not_look_at_queues_because_others_write() -> Result<()> {
    const QUEUES: i64 = 200;
    const SCANS: &str = "SELECT sum(coalesce(idx_scan, 0) + seq_scan)::bigint
                         FROM pg_stat_all_tables WHERE schemaname = 'queen_mq'";
    let cluster = Cluster::start_with(SERVE_ALL)?;
    let (db, session) = asleep(&cluster).await?;
    let elsewhere = TestDb::create_empty(&cluster.config()).await?;
    for queue in 0..QUEUES {
        let queue = format!("q{queue}");
        Push::new(&queue, n(1)).run(&session).await?;
        let pop = Pop::new(&queue).group("g").mode("all");
        complete(&session, &pop.run(&session).await?).await?;
        Push::new(&queue, n(2)).run(&session).await?;
    }
    for writer in [db.session().await?, elsewhere.session().await?] {
        writer.run("CREATE TABLE other AS SELECT 1 AS n").await?;
        let began = Instant::now();
        // The worker may be in the middle of its last look at what this test has written.
        let scans = loop {
            let before = session.count(SCANS).await?;
            write(&writer, Duration::from_secs(5)).await?;
            let scans = session.count(SCANS).await? - before;
            if scans < QUEUES * 5 {
                break scans;
            }
            println!("{scans}");
            ensure!(began.elapsed() < SOON, "the worker scans all the time: {scans}");
        };
        println!("{scans} scans in five seconds");
    }
    // It is awake all the same.
    session.run("SELECT queen_kv_put('n', 'k', '1', ttl => '1 ms')").await?;
    counts(&session, MARKERS, 0).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn it_notices_a_prepared_transaction_that_is_committed() -> Result<()> {
    let cluster = Cluster::start_with(SERVE_ALL)?;
    let (db, session) = asleep(&cluster).await?;
    session.run("SELECT queen_configure('q')").await?;
    for (number, is_restarted) in [(1, false), (2, true)] {
        let other = db.session().await?;
        other.run("BEGIN").await?;
        other.run("SELECT queen_schedule('q', 'k', '1', delay => '0 s')").await?;
        other.run("SELECT queen_kv_put('n', 'k', '1', ttl => '1 ms')").await?;
        other.run("PREPARE TRANSACTION 'p'").await?;
        drop(other);
        tokio::time::sleep(Duration::from_secs(2)).await;
        if is_restarted {
            cluster.crash()?;
            cluster.start()?;
            let session = db.session().await?;
            counts(&session, WORKERS, 1).await?;
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let session = db.session().await?;
        assert_eq!(session.count(MESSAGES).await?, number - 1);
        session.run("COMMIT PREPARED 'p'").await?;
        let took = counts(&session, MESSAGES, number).await?;
        counts(&session, MARKERS, 0).await?;
        ensure!(took < Duration::from_secs(15), "{took:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn it_notices_what_ends_later_and_what_is_written_by_hand() -> Result<()> {
    let cluster = Cluster::start_with(SERVE_ALL)?;
    let (db, session) = asleep(&cluster).await?;
    session.run("SELECT queen_configure('q', retention => '1 day')").await?;
    Push::new("q", n(1)).run(&session).await?;
    // A long transaction, a part of which is rolled back.
    let other = db.session().await?;
    other.run("BEGIN").await?;
    other.run("SELECT queen_kv_put('n', 'k', '1', ttl => '1 ms'); SAVEPOINT s").await?;
    other.run("SELECT queen_kv_put('n', 'l', '1', ttl => '1 ms'); ROLLBACK TO s").await?;
    other.run("SELECT queen_schedule('q', 'k', '1', delay => '1 s')").await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    other.run("COMMIT").await?;
    counts(&session, MESSAGES, 2).await?;
    counts(&session, MARKERS, 0).await?;
    // Retention becomes shorter while the worker sleeps until tomorrow.
    session.run("SELECT queen_configure('q', retention => '1 ms')").await?;
    counts(&session, MESSAGES, 0).await?;
    // A queue goes, and another one of this name comes.
    session.run("SELECT queen_delete_queue('q')").await?;
    session.run("SELECT queen_configure('q')").await?;
    session.run("SELECT queen_schedule('q', 'k', '1', delay => '500 ms')").await?;
    counts(&session, MESSAGES, 1).await?;
    // What an administrator writes is not counted.
    session
        .run(
            "INSERT INTO queen_mq.marker (version, expires_at, created_at, updated_at,
                ns, key, value)
             SELECT 1, now() - interval '1 s', now(), now(), 'old', 'k', '1'",
        )
        .await?;
    counts(&session, MARKERS, 0).await?;
    // The owner changes, and with it the role as which the worker acts.
    let owner = format!("owner_{}", db.name());
    let is_owner = format!("SELECT count(*) FROM queen_mq.owner WHERE role_name = '{owner}'");
    session
        .run(&format!(
            "CREATE ROLE {owner} SUPERUSER; CREATE ROLE first_{owner} SUPERUSER;
             DROP EXTENSION queen_mq; SET ROLE first_{owner}; CREATE EXTENSION queen_mq;
             SELECT queen_configure('q'); RESET ROLE"
        ))
        .await?;
    counts(&session, WORKERS, 1).await?;
    session.run(&format!("REASSIGN OWNED BY first_{owner} TO {owner}")).await?;
    counts(&session, &is_owner, 1).await?;
    session.run("SELECT queen_schedule('q', 'k', '1', delay => '0 s')").await?;
    counts(&session, MESSAGES, 1).await?;
    ensure!(!cluster.logged()?.contains("WARNING"), "{}", cluster.logged()?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn it_comes_to_a_database_whose_extension_is_created_late_or_whose_name_is_served()
-> Result<()> {
    let cluster = Cluster::start_with(SERVE_ALL)?;
    let db = TestDb::create_empty(&cluster.config()).await?;
    let session = db.session().await?;
    // A worker comes meanwhile, finds nothing, and ends.
    session.run("BEGIN; CREATE EXTENSION queen_mq").await?;
    session.run("SELECT queen_schedule('q', 'k', '1', delay => '0 s')").await?;
    tokio::time::sleep(Duration::from_secs(7)).await;
    session.run("COMMIT").await?;
    // No call follows.
    counts(&session, "SELECT count(*) FROM queen_mq.segment", 1).await?;
    // The name of the database decides, also one that it gets later.
    session.run("ALTER SYSTEM SET queen_mq.databases = 'served'").await?;
    session.run("SELECT pg_reload_conf()").await?;
    counts(&session, WORKERS, 0).await?;
    session.run("SELECT queen_schedule('q', 'k', '1', delay => '0 s')").await?;
    drop(session);
    let maintenance = Session::open(&cluster.config()).await?;
    let rename = format!("ALTER DATABASE {} RENAME TO served", db.name());
    eventually("new name", SOON, async || Ok(maintenance.run(&rename).await.ok())).await?;
    let session = Session::open(cluster.config().dbname("served")).await?;
    session.run("SELECT queen_kv_put('n', 'k', '1', ttl => '1 ms')").await?;
    counts(&session, MESSAGES, 2).await?;
    Ok(())
}
