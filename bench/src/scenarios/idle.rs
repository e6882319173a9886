//! Scenario 20: what the background worker costs where nothing happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::task::JoinHandle;
use tokio::time::{interval, sleep};

use crate::cpu;
use crate::db::{Db, Session};
use crate::lab::Lab;
use crate::outcome::{Check, Goal, Outcome, Sample};

const FEW: usize = 1;
const MANY: usize = 1000;
/// The position of the flushed log is looked at so often: more flushes than that are not counted.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The worker has come to rest if the log does not grow for so long. 15 s after a write, the server
/// itself notes the running transactions there.
const REST: Duration = Duration::from_secs(16);
const RESTS_WITHIN: Duration = Duration::from_secs(120);
/// Commits a second in the other database.
const WRITES: u64 = 100;
const WORKERS: &str = "SELECT pid FROM pg_catalog.pg_stat_activity
     WHERE backend_type = 'queen_mq worker' AND datname = current_database()";

/// Each queue gets a group, two messages, and a timer of tomorrow. Then one message is settled.
const QUEUES: &str = "
    SELECT count(*) FROM generate_series(1, $1::int) AS i,
        LATERAL queen_subscribe('q' || i, 'g', 'all') AS a,
        LATERAL queen_push('q' || i, '1') AS b,
        LATERAL queen_push('q' || i, '2', 'other') AS c,
        LATERAL queen_schedule('q' || i, 'k', '3', delay => '1 day') AS d";
const DRAIN: &str = "
    SELECT count(*) FROM generate_series(1, $1::int) AS i,
        LATERAL queen_pop('q' || i, 'g', lease_time => '1 hour') AS p,
        LATERAL queen_ack(p.lease_id) AS done";

/// What was used up in a while. Per minute; the processor time in % of one core.
struct Used {
    xids: f64,
    flushes: f64,
    cpu: Option<f64>,
}

pub async fn run(lab: &Lab) -> Result<Outcome> {
    let seconds = lab.scale.idle.as_secs_f64();
    let method = format!(
        "the worker of a database with 1 and with 1,000 queues, each with a group, a message that \
         was settled, one that was not, and a timer of tomorrow. After it has come to rest, for \
         {seconds} s: xids that the server gave, moves of the flushed end of the log (looked at \
         every 20 ms), processor time of the worker. Then beside a session that commits {WRITES} \
         times a second in another database: the xids that are not its own, and the processor \
         time. Autovacuum is off meanwhile"
    );
    let mut outcome = Outcome::new(20, "an idle worker", method);
    let admin = lab.server.database("idle_other").await?;
    let outside = admin.session().await?;
    outside.batch_execute("CREATE TABLE busy (n bigint)").await?;
    autovacuum(&outside, "SET autovacuum = off").await?;
    for queues in [FEW, MANY] {
        let measured = one(lab, &admin, queues, &mut outcome).await;
        if measured.is_err() {
            autovacuum(&outside, "RESET autovacuum").await?;
        }
        measured?;
    }
    autovacuum(&outside, "RESET autovacuum").await?;
    lab.server.drop_database(admin).await?;
    Ok(outcome)
}

async fn autovacuum(session: &Session, how: &str) -> Result<()> {
    session.batch_execute(&format!("ALTER SYSTEM {how}")).await?;
    session.batch_execute("SELECT pg_reload_conf()").await?;
    Ok(())
}

async fn one(lab: &Lab, other: &Db, queues: usize, outcome: &mut Outcome) -> Result<()> {
    let label = format!("{queues} queues").replace("1 queues", "1 queue");
    let db = lab.server.database("idle").await?;
    let session = db.session().await?;
    let count = i32::try_from(queues)?;
    lab.progress.set_message(format!("{label}: filling"));
    session.rows(QUEUES, &[&count]).await?;
    session.rows(DRAIN, &[&count]).await?;
    session.batch_execute("VACUUM ANALYZE").await?;
    let worker = worker(&session).await?;
    lab.progress.set_message(format!("{label}: until the worker rests"));
    comes_to_rest(&session).await?;

    lab.progress.set_message(format!("{label}: idle"));
    let idle = measure(&session, worker, lab.scale.idle, || 0).await?;
    report(outcome, &label, &idle, true);
    lab.progress.set_message(format!("{label}: beside a busy database"));
    let writer = Writer::start(other).await?;
    let commits = || writer.commits.load(Ordering::Relaxed);
    let beside = measure(&session, worker, lab.scale.idle, commits).await?;
    writer.end().await?;
    report(outcome, &format!("{label}, beside a busy database"), &beside, false);
    lab.server.drop_database(db).await
}

async fn worker(session: &Session) -> Result<i32> {
    let began = Instant::now();
    loop {
        if let [row] = session.rows(WORKERS, &[]).await?.as_slice() {
            return Ok(row.get(0));
        }
        ensure!(began.elapsed() < RESTS_WITHIN, "the database has no worker");
        sleep(LOOK_EVERY).await;
    }
}

async fn comes_to_rest(session: &Session) -> Result<()> {
    let began = Instant::now();
    let mut before = position(session).await?;
    let mut since = Instant::now();
    while since.elapsed() < REST {
        // A worker that never rests is measured as it is.
        if began.elapsed() > RESTS_WITHIN {
            return Ok(());
        }
        sleep(Duration::from_millis(200)).await;
        let now = position(session).await?;
        if now != before {
            (before, since) = (now, Instant::now());
        }
    }
    Ok(())
}

/// The next xid, and how much of the log is flushed. Reading them takes no xid.
async fn position(session: &Session) -> Result<(i64, i64)> {
    let sql = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
                      (pg_current_wal_flush_lsn() - '0/0')::bigint";
    let row = session.row(sql, &[]).await?;
    Ok((row.get(0), row.get(1)))
}

/// `others`: the xids that the server has given to others so far.
async fn measure(
    session: &Session,
    worker: i32,
    duration: Duration,
    others: impl Fn() -> u64,
) -> Result<Used> {
    let mut at = position(session).await?;
    let (first, not_own) = (at.0, others());
    let (cpu, began) = (cpu::used_by(worker), Instant::now());
    let mut flushes = 0;
    let mut looks = interval(LOOK_EVERY);
    while began.elapsed() < duration {
        looks.tick().await;
        let now = position(session).await?;
        flushes += u32::from(now.1 != at.1);
        at = now;
    }
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    // A commit on its way makes this wrong by one.
    let xids = (at.0 - first - i64::try_from(others() - not_own)?).max(0);
    let used = cpu.zip(cpu::used_by(worker)).map(|(before, after)| after.saturating_sub(before));
    Ok(Used {
        xids: xids as f64 / minutes,
        flushes: f64::from(flushes) / minutes,
        cpu: used.map(|used| used.as_secs_f64() / (minutes * 60.0) * 100.0),
    })
}

fn report(outcome: &mut Outcome, label: &str, used: &Used, alone: bool) {
    let mut add = |what: &str, value: f64, unit: &'static str, goal: Option<Goal>| {
        let what = format!("{label}: {what}");
        outcome.samples.push(Sample::of_values(what.clone(), unit, vec![value]));
        outcome.checks.push(Check::value(what, value, unit, goal));
    };
    add("xids", used.xids, "/min", alone.then_some(Goal::AtMost(0.0)));
    if alone {
        add("flushes", used.flushes, "/min", Some(Goal::AtMost(0.0)));
    }
    if let Some(cpu) = used.cpu {
        add("worker's processor time", cpu, "% of a core", Some(Goal::Below(0.5)));
    }
}

/// A session in another database that commits at a steady rate.
struct Writer {
    over: Arc<AtomicBool>,
    commits: Arc<AtomicU64>,
    task: JoinHandle<Result<()>>,
}

impl Writer {
    async fn start(db: &Db) -> Result<Self> {
        let session = db.session().await?;
        let (over, commits) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (ended, committed) = (over.clone(), commits.clone());
        let task = tokio::spawn(async move {
            let mut ticks = interval(Duration::from_micros(1_000_000 / WRITES));
            while !ended.load(Ordering::Relaxed) {
                ticks.tick().await;
                session.execute("INSERT INTO busy VALUES (1)", &[]).await?;
                committed.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        Ok(Self { over, commits, task })
    }

    async fn end(self) -> Result<()> {
        self.over.store(true, Ordering::Relaxed);
        self.task.await.context("the writer")?
    }
}
