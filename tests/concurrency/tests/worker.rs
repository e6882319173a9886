//! The background worker: it does its work, keeps no session waiting, and comes back.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::{Fails, Pop, Push, Session, TestDb, eventually, n, numbers};

const SOON: Duration = Duration::from_secs(20);
/// Workers for every database.
const SERVE_ALL: &str = "queen_mq.databases = ''\nqueen_mq.sweep_interval = '200ms'";

/// The process id of the worker, once the database has one.
async fn worker(session: &Session) -> Result<i32> {
    eventually("worker", SOON, async || Ok(workers(session).await?.first().copied())).await
}

async fn workers(session: &Session) -> Result<Vec<i32>> {
    let sql = "SELECT pid FROM pg_stat_activity
               WHERE backend_type = 'queen_mq worker' AND datname = current_database()";
    Ok(session.rows(sql, &[]).await?.iter().map(|row| row.get(0)).collect())
}

async fn no_worker(session: &Session) -> Result<()> {
    let none = async || Ok(workers(session).await?.is_empty().then_some(()));
    eventually("end of the worker", SOON, none).await
}

/// Wait until a query counts so many.
async fn counts(session: &Session, sql: &'static str, expected: i64) -> Result<()> {
    let what = format!("{expected} from {sql}");
    eventually(&what, SOON, async || Ok((session.count(sql).await? == expected).then_some(())))
        .await
}

const EXPIRED: &str = "SELECT count(*) FROM generate_series(1, 2500) AS k,
                       queen_kv_put('w', k::text, '1', ttl => '1 ms')";
const MARKERS: &str = "SELECT count(*) FROM queen_mq.marker";

#[tokio::test(flavor = "multi_thread")]
async fn it_moves_timers_deletes_what_has_expired_and_reclaims_leases() -> Result<()> {
    let cluster = Cluster::start_with(SERVE_ALL)?;
    let db = TestDb::create(&cluster.config()).await?;
    let session = db.session().await?;
    session
        .run("SELECT queen_configure('q', completed_retention => '1 ms', dedup_window => '1 ms')")
        .await?;
    session.run(EXPIRED).await?;
    session.run("SELECT queen_schedule('q', 'k', '{\"n\": 1}', delay => '300 ms')").await?;
    // No consumer pops: the message enters the log nevertheless.
    counts(&session, "SELECT count(*) FROM queen_messages", 1).await?;
    counts(&session, MARKERS, 0).await?;
    Push::new("q", n(2)).id("x").run(&session).await?;
    let held = Pop::new("q").group("g").mode("all").batch(5).lease("1 ms").run(&session).await?;
    assert_eq!(numbers(&held), [1, 2]);
    counts(&session, "SELECT retrying FROM queen_groups", 2).await?;
    counts(&session, "SELECT count(*) FROM queen_mq.admission", 0).await?;
    Pop::new("q").group("g").batch(5).auto_ack().run(&session).await?;
    counts(&session, "SELECT count(*) FROM queen_messages", 0).await?;
    // The worker is visible, and holds nothing between its rounds.
    let pid = worker(&session).await?;
    let idle = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'queen_mq worker'
                AND datname = current_database() AND state = 'idle' AND backend_xmin IS NULL
                AND backend_xid IS NULL";
    counts(&session, idle, 1).await?;
    assert_eq!(workers(&session).await?, [pid]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_where_the_extension_is_and_where_it_may_be() -> Result<()> {
    let cluster = Cluster::start_with(SERVE_ALL)?;
    let db = TestDb::create_empty(&cluster.config()).await?;
    let [ref session, ref other] = db.sessions().await?;
    for _ in 0..2 {
        session.run("CREATE EXTENSION queen_mq").await?;
        session.run(EXPIRED).await?;
        counts(session, MARKERS, 0).await?;
        let pid = worker(session).await?;
        // DROP EXTENSION waits for the pop, or the pop is told that its queue is gone.
        let waiting = async { Pop::new("q").group("g").wait("500 ms").run(other).await };
        let dropping = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            session.run("DROP EXTENSION queen_mq").await
        };
        let (waited, dropped) = tokio::join!(waiting, dropping);
        dropped?;
        match waited {
            Ok(came) => assert!(came.is_empty()),
            refused => drop(refused.fails_with("42704")?),
        }
        no_worker(session).await?;
        ensure!(!cluster.logged()?.contains("WARNING"), "{}", cluster.logged()?);
        assert_ne!(pid, 0);
    }
    session.run("CREATE EXTENSION queen_mq; SELECT queen_push('q', '1')").await?;
    worker(session).await?;
    session.run("ALTER SYSTEM SET queen_mq.databases = 'another, and one more'").await?;
    session.run("SELECT pg_reload_conf()").await?;
    no_worker(session).await?;
    let own = format!("ALTER SYSTEM SET queen_mq.databases = 'another, {}'", db.name());
    session.run(&own).await?;
    session.run("SELECT pg_reload_conf()").await?;
    worker(session).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn it_keeps_no_session_waiting() -> Result<()> {
    // The worker is measured, and not the disk.
    let cluster = Cluster::start_with(&format!("{SERVE_ALL}\nfsync = off"))?;
    let db = TestDb::create(&cluster.config()).await?;
    let session = db.session().await?;
    let maintenance = Session::open(&cluster.config()).await?;
    Push::new("q", n(1)).run(&session).await?;
    worker(&session).await?;
    // Databases are copied and dropped while the worker serves them.
    maintenance.run("CREATE DATABASE original").await?;
    let mut config = cluster.config();
    let inside = Session::open(config.dbname("original")).await?;
    inside.run("CREATE EXTENSION queen_mq; SELECT queen_push('q', '1')").await?;
    worker(&inside).await?;
    drop(inside);
    eventually("end of the session", SOON, async || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'original'
                   AND backend_type = 'client backend'";
        Ok((maintenance.count(sql).await? == 0).then_some(()))
    })
    .await?;
    for sql in
        ["CREATE DATABASE copy TEMPLATE original", "DROP DATABASE original", "DROP DATABASE copy"]
    {
        let began = Instant::now();
        maintenance.run(sql).await?;
        ensure!(began.elapsed() < Duration::from_secs(2), "{sql} took {:?}", began.elapsed());
    }
    // A fast shutdown does not wait for the worker, and the worker is there after the start.
    let began = Instant::now();
    cluster.stop()?;
    ensure!(began.elapsed() < Duration::from_secs(5), "the stop took {:?}", began.elapsed());
    cluster.start()?;
    let session = db.session().await?;
    worker(&session).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn it_comes_back_however_it_ended() -> Result<()> {
    let cluster = Cluster::start_with(SERVE_ALL)?;
    let db = TestDb::create(&cluster.config()).await?;
    let session = db.session().await?;
    session.run("SELECT queen_push('q', '1')").await?;
    let first = worker(&session).await?;
    session.run(&format!("SELECT pg_terminate_backend({first})")).await?;
    let second = eventually("another worker", SOON, async || {
        Ok(workers(&session).await?.into_iter().find(|pid| *pid != first))
    })
    .await?;
    session.run(EXPIRED).await?;
    counts(&session, MARKERS, 0).await?;
    // Like the crash of any process: the server restarts, and so does the worker.
    let killed = std::process::Command::new("kill").args(["-9", &second.to_string()]).status()?;
    ensure!(killed.success(), "kill failed");
    // The postmaster hears of it later than this test.
    eventually("ended session", SOON, async || {
        Ok(session.run("SELECT 1").await.is_err().then_some(()))
    })
    .await?;
    let session = eventually("recovered server", SOON, async || {
        let Ok(session) = db.session().await else { return Ok(None) };
        Ok(session.run("SELECT 1").await.is_ok().then_some(session))
    })
    .await?;
    worker(&session).await?;
    session.run(EXPIRED).await?;
    counts(&session, MARKERS, 0).await?;
    // Then the server itself ends: without a checkpoint, and by a kill of the postmaster.
    cluster.crash()?;
    cluster.start()?;
    worker(&db.session().await?).await?;
    cluster.kill()?;
    let session = db.session().await?;
    worker(&session).await?;
    session.run(EXPIRED).await?;
    counts(&session, MARKERS, 0).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_row_does_not_stop_the_rest() -> Result<()> {
    let cluster = Cluster::start_with(SERVE_ALL)?;
    let db = TestDb::create(&cluster.config()).await?;
    let session = db.session().await?;
    for queue in ["bad", "good"] {
        session
            .run(&format!("SELECT queen_configure('{queue}', completed_retention => '1 ms')"))
            .await?;
        Push::new(queue, n(1)).run(&session).await?;
        Pop::new(queue).group("g").mode("all").auto_ack().run(&session).await?;
    }
    counts(&session, "SELECT count(*) FROM queen_messages", 0).await?;
    // Only an administrator can have done this.
    session
        .run(
            "UPDATE queen_mq.tally SET state = '\\x00' WHERE queue_id = (SELECT id \
        FROM queen_mq.queue WHERE name = 'bad')",
        )
        .await?;
    Push::new("bad", n(2)).run(&session).await?;
    Push::new("good", n(2)).run(&session).await?;
    for queue in ["bad", "good"] {
        Pop::new(queue).group("g").auto_ack().run(&session).await?;
    }
    session.run(EXPIRED).await?;
    counts(&session, "SELECT count(*) FROM queen_messages WHERE queue = 'good'", 0).await?;
    counts(&session, MARKERS, 0).await?;
    assert_eq!(session.count("SELECT count(*) FROM queen_messages WHERE queue = 'bad'").await?, 1);
    let logged = cluster.logged()?;
    ensure!(
        logged.contains(
            "WARNING:  queen_mq worker, messages: the count of a queue does not read back"
        ),
        "{logged}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_has_none_until_it_is_promoted() -> Result<()> {
    let cluster = Cluster::start_with(SERVE_ALL)?;
    let db = TestDb::create(&cluster.config()).await?;
    let session = db.session().await?;
    Push::new("q", n(1)).run(&session).await?;
    worker(&session).await?;
    let standby = cluster.standby()?;
    let mut config = standby.config();
    let there = Session::open(config.dbname(db.name())).await?;
    eventually("replayed message", SOON, async || {
        Ok((there.count("SELECT count(*) FROM queen_messages").await? == 1).then_some(()))
    })
    .await?;
    assert_eq!(there.count("SELECT pending FROM queen_groups").await.ok(), None);
    ensure!(workers(&there).await?.is_empty(), "a standby has a worker");
    standby.promote()?;
    worker(&there).await?;
    there.run(EXPIRED).await?;
    counts(&there, MARKERS, 0).await?;
    assert_eq!(numbers(&Pop::new("q").group("g").mode("all").run(&there).await?), [1]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_preload_it_is_started_by_hand() -> Result<()> {
    let cluster = Cluster::start_with("shared_preload_libraries = ''\nqueen_mq.databases = ''")?;
    let db = TestDb::create(&cluster.config()).await?;
    let session = db.session().await?;
    session.run(EXPIRED).await?;
    assert!(workers(&session).await?.is_empty());
    let started = session.row("SELECT queen_worker_start()", &[]).await?.get::<_, bool>(0);
    assert!(started);
    worker(&session).await?;
    counts(&session, MARKERS, 0).await?;
    let again = session.row("SELECT queen_worker_start()", &[]).await?.get::<_, bool>(0);
    assert!(!again);
    // A waiting pop looks again at least ten times a second.
    let other = db.session().await?;
    let pop = Pop::new("q").group("g").mode("all").wait("20 s");
    let (came, pushed) = tokio::join!(pop.run(&session), async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        Push::new("q", n(1)).run(&other).await?;
        Ok::<_, anyhow::Error>(Instant::now())
    });
    assert_eq!(numbers(&came?), [1]);
    let late = pushed?.elapsed();
    ensure!(late < Duration::from_millis(500), "{late:?}");
    session.run("DROP EXTENSION queen_mq").await?;
    no_worker(&session).await
}

#[tokio::test(flavor = "multi_thread")]
async fn it_comes_for_a_timer_long_before_its_next_round() -> Result<()> {
    let cluster = Cluster::start_with("queen_mq.databases = ''\nqueen_mq.sweep_interval = '60s'")?;
    let db = TestDb::create(&cluster.config()).await?;
    let session = db.session().await?;
    session.run("SELECT queen_configure('q')").await?;
    worker(&session).await?;
    // The worker's first round is over, and has not seen the timer.
    tokio::time::sleep(Duration::from_secs(2)).await;
    session.run("SELECT queen_schedule('q', 'k', '{\"n\": 1}', delay => '1 s')").await?;
    let began = Instant::now();
    counts(&session, "SELECT count(*) FROM queen_messages", 1).await?;
    let took = began.elapsed();
    ensure!(took > Duration::from_millis(900) && took < Duration::from_secs(8), "{took:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_is_dropped_at_once_in_the_middle_of_much_work() -> Result<()> {
    let cluster = Cluster::start_with("queen_mq.databases = 'other'")?;
    let db = TestDb::create(&cluster.config()).await?;
    let session = db.session().await?;
    let maintenance = Session::open(&cluster.config()).await?;
    session
        .run(
            "INSERT INTO queen_mq.marker (version, expires_at, created_at, updated_at,
                ns, key, value)
             SELECT k, now() - interval '1 s', now(), now(), 'old', k::text, '1'
             FROM generate_series(1, 200000) AS k",
        )
        .await?;
    // The drop itself is to have little to write.
    maintenance.run("CHECKPOINT").await?;
    maintenance.run("ALTER SYSTEM SET queen_mq.databases = ''").await?;
    maintenance.run("SELECT pg_reload_conf()").await?;
    worker(&session).await?;
    ensure!(session.count(MARKERS).await? > 0, "it has finished already");
    drop(session);
    let sql = format!("DROP DATABASE {} WITH (FORCE)", db.name());
    let began = Instant::now();
    maintenance.run(&sql).await?;
    ensure!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    Ok(())
}
