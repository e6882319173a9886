//! More databases than background workers: each is served in its turn, and a shortage is told.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::cluster::Cluster;
use queen_tests::{Session, eventually};

const SOON: Duration = Duration::from_secs(60);
const DATABASES: usize = 11;
const SERVE_ALL: &str = "queen_mq.databases = ''\nmax_worker_processes = 8\nfsync = off";

const WORKERS: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'queen_mq worker'";
const MARKERS: &str = "SELECT count(*) FROM queen_mq.marker";
const MESSAGES: &str = "SELECT count(*) FROM queen_messages";

/// A new database with the extension.
async fn database(cluster: &Cluster, name: &str) -> Result<Session> {
    let maintenance = Session::open(&cluster.config()).await?;
    maintenance.run(&format!("CREATE DATABASE {name}")).await?;
    let session = Session::open(cluster.config().dbname(name)).await?;
    session.run("CREATE EXTENSION queen_mq").await?;
    Ok(session)
}

async fn databases(cluster: &Cluster) -> Result<Vec<Session>> {
    let mut sessions = Vec::new();
    for number in 0..DATABASES {
        sessions.push(database(cluster, &format!("d{number}")).await?);
    }
    Ok(sessions)
}

/// Wait until a query counts so many in each of the databases.
async fn count(sessions: &[Session], sql: &str, expected: i64) -> Result<Duration> {
    let began = Instant::now();
    for session in sessions {
        let what = format!("{expected} from {sql}");
        eventually(&what, SOON, async || Ok((session.count(sql).await? == expected).then_some(())))
            .await?;
    }
    Ok(began.elapsed())
}

async fn metric(session: &Session, name: &str) -> Result<f64> {
    let sql = "SELECT value FROM queen_metrics() WHERE name = $1";
    Ok(session.row(sql, &[&name]).await?.get(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn eleven_databases_take_turns_and_leave_slots_for_parallel_queries() -> Result<()> {
    let cluster = Cluster::start_with(SERVE_ALL)?;
    let sessions = databases(&cluster).await?;
    for session in &sessions {
        session.run("SELECT queen_kv_put('n', 'k', '1', ttl => '100 ms')").await?;
        session.run("SELECT queen_schedule('q', 'k', '1', delay => '100 ms')").await?;
    }
    count(&sessions, MESSAGES, 1).await?;
    count(&sessions, MARKERS, 0).await?;
    // All at one moment, some seconds after the workers have gone elsewhere.
    for session in &sessions {
        session
            .run("SELECT queen_schedule('q', 'k', '1', deliver_at => now() + interval '4 s')")
            .await?;
    }
    let took = count(&sessions, MESSAGES, 2).await?;
    println!("timers of all databases after {took:?}");
    ensure!(took < Duration::from_secs(20), "{took:?}");
    for session in &sessions {
        ensure!(session.count(WORKERS).await? <= 2, "too many workers");
        assert_eq!(metric(session, "queen_worker_serves").await?, 1.0);
        ensure!(metric(session, "queen_worker_late_seconds").await? < 20.0, "it is late");
    }
    let [session, ..] = &sessions[..] else { unreachable!() };
    session
        .run(
            "CREATE TABLE big AS SELECT k FROM generate_series(1, 100000) AS k; ANALYZE big;
             SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
             SET min_parallel_table_scan_size = 0; SET max_parallel_workers_per_gather = 2",
        )
        .await?;
    let plan = session.rows("EXPLAIN (ANALYZE) SELECT count(*) FROM big", &[]).await?;
    let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    ensure!(plan.iter().any(|line| line.contains("Workers Launched: 2")), "{plan:#?}");
    ensure!(!cluster.logged()?.contains("WARNING"), "{}", cluster.logged()?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_with_endless_work_does_not_keep_the_only_worker() -> Result<()> {
    let cluster = Cluster::start_with(&format!("{SERVE_ALL}\nqueen_mq.max_workers = 1"))?;
    let busy = database(&cluster, "busy").await?;
    let other = database(&cluster, "other").await?;
    other.run("SELECT queen_configure('q')").await?;
    for round in 1..=3 {
        let more = format!(
            "INSERT INTO queen_mq.marker (version, expires_at, created_at, updated_at,
                ns, key, value)
             SELECT k, now() - interval '1 s', now(), now(), 'old', '{round} ' || k, '1'
             FROM generate_series(1, 200000) AS k"
        );
        busy.run(&more).await?;
        // What is inserted by hand is not counted; this is.
        busy.run("SELECT queen_kv_put('n', 'k', '1', forever => true)").await?;
        let before = busy.count(MARKERS).await?;
        let is_at_work = async || Ok((busy.count(MARKERS).await? < before).then_some(()));
        eventually("worker", SOON, is_at_work).await?;
        other.run("SELECT queen_schedule('q', 'k', '1', delay => '0 s')").await?;
        let took = count(std::slice::from_ref(&other), MESSAGES, round).await?;
        println!("a timer beside much work came after {took:?}");
        ensure!(took < Duration::from_secs(20), "{took:?}");
    }
    // More workers, and fewer again, without a restart.
    for most in [3, 1] {
        other.run(&format!("ALTER SYSTEM SET queen_mq.max_workers = {most}")).await?;
        other.run("SELECT pg_reload_conf()").await?;
        other.run("SELECT queen_schedule('q', 'again', '1', delay => '0 s')").await?;
        let so = async || Ok((other.count(WORKERS).await? == most.min(2)).then_some(()));
        eventually(&format!("{most} workers"), SOON, so).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_end_and_databases_that_go_are_made_good_for() -> Result<()> {
    let cluster = Cluster::start_with(SERVE_ALL)?;
    let maintenance = Session::open(&cluster.config()).await?;
    let mut sessions = Vec::new();
    for name in ["a", "b", "c", "d", "e", "f"] {
        let session = database(&cluster, name).await?;
        session.run("SELECT queen_configure('q')").await?;
        sessions.push(session);
    }
    // Each worker that comes is terminated.
    for session in &sessions {
        session
            .run("SELECT queen_schedule('q', 'k', '1', deliver_at => now() + interval '3 s')")
            .await?;
    }
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        let terminate = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                         WHERE backend_type = 'queen_mq worker'";
        maintenance.count(terminate).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    count(&sessions, MESSAGES, 1).await?;
    // One refuses connections from now on, and one is gone: the rest is served.
    maintenance.run("ALTER DATABASE a ALLOW_CONNECTIONS false").await?;
    drop(sessions.drain(..2));
    for sql in ["DROP DATABASE b WITH (FORCE)", "ALTER DATABASE c RENAME TO renamed"] {
        let began = Instant::now();
        let done = async || Ok(maintenance.run(sql).await.ok());
        if sql.starts_with("ALTER") {
            // Sessions of the database have to be gone.
            drop(sessions.remove(0));
        }
        eventually(sql, SOON, done).await?;
        ensure!(began.elapsed() < Duration::from_secs(10), "{sql} took {:?}", began.elapsed());
    }
    sessions.push(Session::open(cluster.config().dbname("renamed")).await?);
    for session in &sessions {
        session.run("SELECT queen_schedule('q', 'k', '1', delay => '0 s')").await?;
    }
    count(&sessions, MESSAGES, 2).await?;
    let logged = cluster.logged()?;
    let failures = logged.matches("FATAL:  database").count();
    ensure!(failures < 5, "{failures} workers failed to connect: {logged}");
    // The server restarts, and nothing of what was due is forgotten.
    for session in &sessions {
        session.run("SELECT queen_schedule('q', 'k', '1', delay => '1 s')").await?;
    }
    drop(sessions);
    drop(maintenance);
    cluster.crash()?;
    cluster.start()?;
    for name in ["d", "e", "f", "renamed"] {
        let session = Session::open(cluster.config().dbname(name)).await?;
        count(&[session], MESSAGES, 3).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_whose_worker_has_come_before_the_extension_is_not_forgotten() -> Result<()> {
    let cluster = Cluster::start_with(&format!("{SERVE_ALL}\nqueen_mq.max_workers = 1"))?;
    let maintenance = Session::open(&cluster.config()).await?;
    let mut sessions = Vec::new();
    for number in 0..8 {
        maintenance.run(&format!("CREATE DATABASE d{number}")).await?;
        sessions.push(Session::open(cluster.config().dbname(format!("d{number}"))).await?);
    }
    for session in &sessions {
        // The worker comes meanwhile, does not see the extension, and is soon asked to leave for
        // the next database.
        session.run("BEGIN; CREATE EXTENSION queen_mq; SELECT pg_sleep(0.1); COMMIT").await?;
        session.run("SELECT queen_schedule('q', 'k', '1', delay => '3 s')").await?;
    }
    // No function is called any more.
    count(&sessions, "SELECT count(*) FROM queen_mq.timer", 0).await?;
    Ok(())
}

/// `launcher_ends`: after the worker has been caught, so that another launcher than the one that
/// has started it is to deal with it.
async fn no_trigger_keeps_the_only_worker(launcher_ends: bool) -> Result<()> {
    let cluster = Cluster::start_with(&format!("{SERVE_ALL}\nqueen_mq.max_workers = 1"))?;
    let hostile = database(&cluster, "hostile").await?;
    let other = database(&cluster, "other").await?;
    hostile
        .run(
            "CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM pg_catalog.pg_sleep(3600); RETURN OLD; END $$;
             CREATE TRIGGER sleep BEFORE DELETE ON queen_mq.marker
                 FOR EACH ROW EXECUTE FUNCTION sleep();
             SELECT queen_kv_put('n', 'k', '1', ttl => '1 ms')",
        )
        .await?;
    let is_kept = "SELECT count(*) FROM pg_stat_activity
                   WHERE datname = 'hostile' AND wait_event = 'PgSleep'";
    let so = async || Ok((other.count(is_kept).await? == 1).then_some(()));
    eventually("a worker that sleeps", SOON, so).await?;
    if launcher_ends {
        let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                   WHERE backend_type = 'queen_mq launcher'";
        assert_eq!(other.count(end).await?, 1);
    }
    for round in 1..=2 {
        other.run("SELECT queen_schedule('q', 'k', '1', delay => '0 s')").await?;
        count(std::slice::from_ref(&other), MESSAGES, round).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_of_a_user_does_not_keep_the_only_worker() -> Result<()> {
    no_trigger_keeps_the_only_worker(false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_of_a_user_does_not_keep_a_worker_of_an_earlier_launcher() -> Result<()> {
    no_trigger_keeps_the_only_worker(true).await
}

const NO_SLOT: &str = "WARNING:  queen_mq: no background worker is free for this database";

#[tokio::test(flavor = "multi_thread")]
async fn a_shortage_is_told_to_who_creates_the_extension_and_is_a_metric() -> Result<()> {
    // PostgreSQL's launcher of logical replication takes one, and that of queen_mq the other.
    let cluster = Cluster::start_with("queen_mq.databases = ''\nmax_worker_processes = 2")?;
    let session = database(&cluster, "short").await?;
    let logged = cluster.logged()?;
    ensure!(logged.contains(NO_SLOT), "{logged}");
    ensure!(logged.contains("max_worker_processes, are in use"), "{logged}");
    session.run("SELECT queen_schedule('q', 'k', '1', delay => '0 s')").await?;
    assert_eq!(metric(&session, "queen_worker_serves").await?, 0.0);
    let is_late =
        async || Ok((metric(&session, "queen_worker_late_seconds").await? > 0.0).then_some(()));
    eventually("late worker", SOON, is_late).await?;
    // Without a launcher, too.
    session.run("ALTER SYSTEM SET max_worker_processes = 1").await?;
    drop(session);
    cluster.stop()?;
    cluster.start()?;
    database(&cluster, "without").await?;
    let logged = cluster.logged()?;
    ensure!(logged.matches(NO_SLOT).count() == 2, "{logged}");
    // With one more slot both are served, in turn, and no session is warned.
    let maintenance = Session::open(&cluster.config()).await?;
    maintenance.run("ALTER SYSTEM SET max_worker_processes = 3").await?;
    drop(maintenance);
    cluster.stop()?;
    cluster.start()?;
    let mut sessions = vec![database(&cluster, "more").await?];
    for name in ["short", "without"] {
        sessions.push(Session::open(cluster.config().dbname(name)).await?);
    }
    sessions[0].run("SELECT queen_schedule('q', 'k', '1', delay => '0 s')").await?;
    sessions[2].run("SELECT queen_schedule('q', 'k', '1', delay => '0 s')").await?;
    count(&sessions, MESSAGES, 1).await?;
    for session in &sessions {
        assert_eq!(metric(session, "queen_worker_serves").await?, 1.0);
    }
    ensure!(cluster.logged()?.matches(NO_SLOT).count() == 2, "{}", cluster.logged()?);
    // A database that the settings leave out is no reason for a warning.
    sessions[0].run("ALTER SYSTEM SET queen_mq.databases = 'short'").await?;
    sessions[0].run("SELECT pg_reload_conf()").await?;
    let left_out = database(&cluster, "left_out").await?;
    let is_left_out =
        async || Ok((metric(&left_out, "queen_worker_serves").await? == 0.0).then_some(()));
    eventually("a database without a worker", SOON, is_left_out).await?;
    assert_eq!(metric(&left_out, "queen_worker_late_seconds").await?, 0.0);
    ensure!(cluster.logged()?.matches(NO_SLOT).count() == 2, "{}", cluster.logged()?);
    Ok(())
}
