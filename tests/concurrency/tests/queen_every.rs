//! Messages that recur: each occurrence enters the log once, whatever moves it, and whatever
//! becomes of what moves it.

use std::env;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use queen_tests::cluster::Cluster;
use queen_tests::{Fails, Pop, Session, TestDb, drain, eventually};
use tokio::task::{JoinSet, spawn_blocking};

const SOON: Duration = Duration::from_secs(20);
const SERVE_ALL: &str = "queen_mq.databases = ''\nqueen_mq.sweep_interval = '100ms'";

async fn next_at(session: &Session) -> Result<DateTime<Utc>> {
    Ok(session.row("SELECT next_at FROM queen_schedules", &[]).await?.get(0))
}

/// The moments of all occurrences in the log, by their transaction_ids, in the order of the log.
async fn in_log(session: &Session, key: &str) -> Result<Vec<DateTime<Utc>>> {
    let sql = "SELECT split_part(transaction_id, '@', 2)::timestamptz FROM queen_messages
               WHERE transaction_id LIKE $1 || '@%' ORDER BY message_id";
    Ok(session.rows(sql, &[&key]).await?.iter().map(|row| row.get(0)).collect())
}

/// Move what is due, by pops or sweeps, until `until`. A connection that is lost is made anew.
async fn mover(db: &TestDb, number: usize, until: Instant) -> Result<()> {
    let mut session = None;
    while Instant::now() < until {
        let open = match session.take() {
            Some(open) => open,
            None => match db.session().await {
                Ok(open) => open,
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            },
        };
        let call = match number % 3 {
            0 => "SELECT queen_sweep(100)",
            1 => "SELECT queen_pop('q', 'g', wait => '200 ms', subscription_mode => 'all')",
            // What is moved by a transaction that is rolled back is moved by another.
            _ => "BEGIN; SELECT queen_pop('q', 'other'); SELECT pg_sleep(0.02); ROLLBACK",
        };
        match open.run(call).await {
            Ok(()) => session = Some(open),
            Err(error) => ensure!(error.is_closed() || error.as_db_error().is_some(), "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Nothing but the lock of the row keeps two apart here: the queue remembers no transaction_ids.
#[tokio::test(flavor = "multi_thread")]
async fn workers_sweeps_and_pops_move_each_occurrence_once_also_after_crashes_and_a_promotion()
-> Result<()> {
    let cluster = Cluster::start_with(SERVE_ALL)?;
    let db = std::sync::Arc::new(TestDb::create(&cluster.config()).await?);
    let session = db.session().await?;
    session.run("SELECT queen_configure('q', dedup_window => '0')").await?;
    session.run("SELECT queen_every('q', 'tick', '1 second', '{}')").await?;
    let first = next_at(&session).await?;
    // A longer run: QUEEN_TEST_TORTURE_SECONDS=60.
    let seconds = env::var("QUEEN_TEST_TORTURE_SECONDS").map_or(Ok(5), |text| text.parse())?;
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut movers = JoinSet::new();
    for number in 0..6 {
        let db = db.clone();
        movers.spawn(async move { mover(&db, number, until).await });
    }
    let mut cluster = cluster;
    for _ in 0..seconds / 5 {
        tokio::time::sleep(Duration::from_millis(2_300)).await;
        cluster = spawn_blocking(move || {
            cluster.crash()?;
            cluster.start()?;
            anyhow::Ok(cluster)
        })
        .await??;
    }
    while let Some(ended) = movers.join_next().await {
        ended??;
    }
    let session = db.session().await?;
    // The worker goes on alone.
    goes_on(&session).await?;
    each_came_once(&session, first).await?;
    drop(session);
    goes_on_after_a_promotion(&db, &cluster, first).await
}

async fn goes_on_after_a_promotion(
    db: &TestDb,
    cluster: &Cluster,
    first: DateTime<Utc>,
) -> Result<()> {
    let standby = cluster.standby()?;
    let mut config = standby.config();
    config.dbname(db.name());
    let there = Session::open(&config).await?;
    goes_on(&there).await?;
    cluster.crash()?;
    standby.promote()?;
    goes_on(&there).await?;
    each_came_once(&there, first).await
}

/// Wait for an occurrence that is yet to come.
async fn goes_on(session: &Session) -> Result<()> {
    let last = session.now().await?;
    eventually("a further occurrence", SOON, async || {
        let came = in_log(session, "tick").await?;
        Ok(came.last().is_some_and(|newest| *newest > last).then_some(()))
    })
    .await
}

/// Of a message that comes each second, from `first` on: no occurrence came twice, or early, or for
/// another moment. At least two have come.
async fn each_came_once(session: &Session, first: DateTime<Utc>) -> Result<()> {
    let came = in_log(session, "tick").await?;
    ensure!(came.len() >= 2, "{came:?}");
    for (one, next) in came.iter().zip(&came[1..]) {
        ensure!(one < next, "{one} and then {next} of {came:?}");
    }
    for moment in &came {
        let since = *moment - first;
        ensure!(since >= TimeDelta::zero() && since.subsec_nanos() == 0, "{moment} from {first}");
    }
    let early = "SELECT count(*) FROM queen_messages
                 WHERE created_at < split_part(transaction_id, '@', 2)::timestamptz";
    assert_eq!(session.count(early).await?, 0);
    Ok(())
}

/// The server was down for some occurrences: the newest one of them comes.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_missed_comes_once_for_the_newest_time() -> Result<()> {
    let cluster = Cluster::start_new()?;
    let db = TestDb::create(&cluster.config()).await?;
    let session = db.session().await?;
    session.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    session.run("SELECT queen_every('q', 'tick', '1 second', '{}')").await?;
    let first = next_at(&session).await?;
    cluster.stop()?;
    tokio::time::sleep(Duration::from_millis(3_100)).await;
    cluster.start()?;
    let session = db.session().await?;
    let before = session.now().await?;
    let came = Pop::new("q").group("g").batch(100).run(&session).await?;
    let after = session.now().await?;
    assert_eq!(came.len(), 1, "{came:?}");
    let log = in_log(&session, "tick").await?;
    let missed = (log[0] - first).num_seconds();
    ensure!(missed >= 2, "{first}, then {log:?}");
    ensure!(log[0] > before - TimeDelta::seconds(1) && log[0] <= after, "{before}: {log:?}");
    let row = session.row("SELECT last_at, next_at FROM queen_schedules", &[]).await?;
    assert_eq!(row.get::<_, DateTime<Utc>>(0), log[0]);
    assert_eq!(row.get::<_, DateTime<Utc>>(1), log[0] + TimeDelta::seconds(1));
    Ok(())
}

/// The transaction that has moved an occurrence holds up no other, and decides what becomes of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_that_has_moved_an_occurrence_holds_up_no_other() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [open, other] = db.sessions().await?;
    other.be_prompt().await?;
    other.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    for end in ["ROLLBACK", "COMMIT"] {
        other.run("SELECT queen_every('q', 'k', '1 hour', '{}')").await?;
        other.run("UPDATE queen_mq.timer SET deliver_at = clock_timestamp()").await?;
        let due = next_at(&other).await?;
        open.run("BEGIN").await?;
        let pop = Pop::new("q").group("g");
        assert_eq!(pop.run(&open).await?.len(), 1);
        assert_eq!(pop.run(&other).await?.len(), 0);
        other.run("SELECT queen_sweep()").await?;
        assert_eq!(next_at(&other).await?, due);
        open.run(end).await?;
        let count = if end == "COMMIT" { 0 } else { 1 };
        let came = pop.clone().auto_ack().run(&other).await?;
        assert_eq!(came.len(), count, "{end}");
        assert_eq!(next_at(&other).await?, due + TimeDelta::hours(1), "{end}");
    }
    Ok(())
}

/// In REPEATABLE READ a snapshot may still show an occurrence as due that has been moved since.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_snapshot_does_not_hinder_a_pop_of_a_queue_with_a_schedule() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [session, other] = db.sessions().await?;
    session.run("SELECT queen_subscribe('q', 'g', 'all')").await?;
    session.run("SELECT queen_push('q', '1')").await?;
    session.run("SELECT queen_every('q', 'k', '1 hour', '{}')").await?;
    session.run("UPDATE queen_mq.timer SET deliver_at = clock_timestamp()").await?;
    session.begin_snapshot().await?;
    other.run("SELECT queen_sweep()").await?;
    assert_eq!(in_log(&other, "k").await?.len(), 1);
    assert_eq!(Pop::new("q").group("g").batch(9).run(&session).await?.len(), 1);
    session.run("COMMIT").await?;
    // Where the transaction does move it, another may have been faster.
    session.begin_snapshot().await?;
    other.run("UPDATE queen_mq.timer SET deliver_at = clock_timestamp()").await?;
    session.query("SELECT queen_every('q', 'k', '1 hour', '{}')", &[]).await.fails_with("40001")?;
    Ok(())
}

/// Of the times that a cron expression names, without a worker: the pop that waits moves them.
#[tokio::test(flavor = "multi_thread")]
async fn a_pop_that_waits_gets_one_occurrence_after_the_other() -> Result<()> {
    let db = TestDb::fresh().await?;
    let [session, setter] = db.sessions().await?;
    let consumer = tokio::spawn(async move {
        let pop = Pop::new("q").group("g").mode("all").wait("20 s").auto_ack();
        let mut came = Vec::new();
        while came.len() < 3 {
            came.extend(pop.run(&session).await?);
        }
        anyhow::Ok(came)
    });
    setter.run("SELECT queen_every('q', 'k', '1 second', '{}', 'p')").await?;
    let first = next_at(&setter).await?;
    let came = consumer.await??;
    let ids: Vec<_> = came.iter().map(|message| message.transaction_id.clone()).collect();
    let log = in_log(&setter, "k").await?;
    assert_eq!(log.first().context("nothing came")?, &first);
    ensure!(ids.is_sorted() && ids.iter().all(|id| id.starts_with("k@")), "{ids:?}");
    ensure!(came.iter().all(|message| message.partition == "p"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_come_with_a_dump() -> Result<()> {
    let [old, new] = [Cluster::start_new()?, Cluster::start_new()?];
    let db = TestDb::create(&old.config()).await?;
    let session = db.session().await?;
    session
        .run("SELECT queen_every('q', 'k', '15 3 * * *', '7', time_zone => 'Asia/Tokyo')")
        .await?;
    session.run("SELECT queen_every('q', 'i', '2 hours', '8', headers => '{}')").await?;
    let all = "SELECT string_agg(s::text, ';' ORDER BY timer_key) FROM queen_schedules AS s";
    let before: String = session.row(all, &[]).await?.get(0);
    let file = old.file("dump");
    old.dump(db.name(), &file)?;
    let restored = TestDb::create_empty(&new.config()).await?;
    new.restore(restored.name(), &file)?;
    let session = restored.session().await?;
    assert_eq!(session.row(all, &[]).await?.get::<_, String>(0), before);
    session.run("UPDATE queen_mq.timer SET deliver_at = clock_timestamp()").await?;
    let came = drain(&session, &Pop::new("q").batch(9), 2, SOON).await?;
    assert_eq!(came.len(), 2);
    drop((db, restored));
    Ok(())
}
