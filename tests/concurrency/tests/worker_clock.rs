//! The worker when the clock of the server is set: nothing waits for a moment that has lost its
//! meaning.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use queen_tests::clock::ServerClock;
use queen_tests::cluster::Cluster;
use queen_tests::{Session, eventually};

const SOON: Duration = Duration::from_secs(60);
const MARKERS: &str = "SELECT count(*) FROM queen_mq.marker";
const MESSAGES: &str = "SELECT count(*) FROM queen_messages";

/// A new database with a timer that is due tomorrow, and one that is delivered.
async fn database(cluster: &Cluster, name: &str) -> Result<Session> {
    let maintenance = Session::open(&cluster.config()).await?;
    maintenance.run(&format!("CREATE DATABASE {name}")).await?;
    let session = Session::open(cluster.config().dbname(name)).await?;
    session.run("CREATE EXTENSION queen_mq").await?;
    session.run("SELECT queen_schedule('q', 'tomorrow', '1', delay => '1 day')").await?;
    schedule(&session).await?;
    counts(&session, 1).await?;
    Ok(session)
}

async fn schedule(session: &Session) -> Result<()> {
    Ok(session.run("SELECT queen_schedule('q', 'soon', '1', delay => '1 s')").await?)
}

/// Other than a timer, a marker is not announced to the worker.
async fn put(session: &Session) -> Result<()> {
    Ok(session.run("SELECT queen_kv_put('n', 'k', '1', ttl => '100 ms')").await?)
}

/// Wait until there are so many messages, and no marker.
async fn counts(session: &Session, expected: i64) -> Result<()> {
    let what = format!("{expected} messages, and no marker");
    let so = async || {
        let messages = session.count(MESSAGES).await?;
        Ok((messages == expected && session.count(MARKERS).await? == 0).then_some(()))
    };
    eventually(&what, SOON, so).await
}

async fn hour(session: &Session) -> Result<i64> {
    Ok(session.count("SELECT extract(epoch FROM clock_timestamp())::bigint / 3600").await?)
}

async fn goes_on_when_the_clock_is_set(name: &str, databases: &[&str], most: usize) -> Result<()> {
    let clock = ServerClock::new(name)?;
    let settings = format!("queen_mq.databases = ''\nfsync = off\nqueen_mq.max_workers = {most}");
    let cluster = Cluster::start_in(clock.environment()?, &settings)?;
    let mut sessions = Vec::new();
    for name in databases {
        sessions.push(database(&cluster, name).await?);
    }
    let before = hour(&sessions[0]).await?;
    let began = Instant::now();
    clock.set(-2)?;
    ensure!(hour(&sessions[0]).await? < before, "the server does not go by this clock");
    for session in &sessions {
        put(session).await?;
    }
    for session in &sessions {
        counts(session, 1).await?;
        schedule(session).await?;
    }
    for session in &sessions {
        counts(session, 2).await?;
    }
    println!("back: {:?}", began.elapsed());
    let began = Instant::now();
    clock.set(25)?;
    for session in &sessions {
        counts(session, 3).await?;
    }
    println!("on: {:?}", began.elapsed());
    // And back again, where all that was looked at lies in the future.
    clock.set(0)?;
    for session in &sessions {
        put(session).await?;
    }
    for session in &sessions {
        counts(session, 3).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stays_goes_on_when_the_clock_is_set() -> Result<()> {
    goes_on_when_the_clock_is_set("stays", &["alone"], 2).await
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_take_turns_go_on_when_the_clock_is_set() -> Result<()> {
    goes_on_when_the_clock_is_set("turns", &["a", "b", "c", "d"], 1).await
}

/// While another transaction holds an old snapshot, timers that have been moved leave entries
/// behind in their index. So the sweep raises a floor, in two steps, below which no call looks.
#[tokio::test(flavor = "multi_thread")]
async fn no_timer_is_lost_below_the_floor_when_the_clock_is_set() -> Result<()> {
    let clock = ServerClock::new("floor")?;
    let settings = "queen_mq.databases = 'none of these'\nfsync = off";
    let cluster = Cluster::start_in(clock.environment()?, settings)?;
    let session = Session::open(&cluster.config()).await?;
    session.run("CREATE EXTENSION queen_mq").await?;
    let (old, late) =
        (Session::open(&cluster.config()).await?, Session::open(&cluster.config()).await?);
    old.begin_snapshot().await?;
    let many = "SELECT count(*) FROM generate_series(1, 400) AS k,
                queen_schedule('q', 'k' || k, to_jsonb(repeat('x', 1000)), delay => '0')";
    session.count(many).await?;
    let sweep = async || session.run("SELECT queen_sweep()").await;
    let floor = "SELECT count(*) FROM queen_mq.tally";
    eventually("a first floor", SOON, async || {
        sweep().await?;
        Ok((session.count(floor).await? > 0).then_some(()))
    })
    .await?;
    assert_eq!(session.count(MESSAGES).await?, 400);
    // The next step may raise it by what this one sees.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    sweep().await?;
    clock.set(-1)?;
    late.run("BEGIN").await?;
    late.run("SELECT queen_schedule('q', 'late', '1', delay => '0')").await?;
    sweep().await?;
    late.run("COMMIT").await?;
    clock.set(0)?;
    late.run("SELECT * FROM queen_pop('q')").await?;
    assert_eq!(session.count(MESSAGES).await?, 401);
    // Whatever has come below the floor is found within an hour.
    sweep().await?;
    session.run("SELECT queen_schedule('q', 'lost', '1', delay => '1 hour')").await?;
    session.run("UPDATE queen_mq.timer SET deliver_at = '2001-01-01'").await?;
    clock.set(2)?;
    sweep().await?;
    assert_eq!(session.count(MESSAGES).await?, 402);
    Ok(())
}
