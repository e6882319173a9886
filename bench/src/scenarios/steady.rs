//! Scenario 13: a steady rate for a long time, for both systems at once, while both delete what is
//! completed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::db::{Db, Session};
use crate::job::System;
use crate::lab::Lab;
use crate::load::{self, Latencies};
use crate::outcome::{Check, Goal, Line, Outcome, Sample};

/// Pushes a second, for each system.
const RATE: u64 = 500;
const PRODUCERS: u64 = 4;
const CONSUMERS: usize = 2;
const PARTITIONS: u64 = 10;
/// The run is divided into so many parts, to see whether it stays as it began.
const PARTS: usize = 30;
const PAUSE: Duration = Duration::from_millis(5);
/// A control table is one whose rows stand for states; the segments are the data.
const CONTROL: &str = "schemaname = 'queen_mq' AND relname <> 'segment'";

/// The statements for one system.
struct Side {
    system: System,
    push: &'static str,
    /// Returns a handle and the number of each message.
    pop: &'static str,
    /// Settles the messages with these handles.
    settle: &'static str,
    schema: &'static str,
}

const SIDES: [Side; 2] = [
    Side {
        system: System::Queen,
        push: "SELECT 1 FROM queen_push('q', jsonb_build_object('n', $1::bigint, 'pad', \
            repeat('x', 60)), 'p' || $2::bigint)",
        pop: "SELECT lease_id::text, (payload->>'n')::bigint FROM queen_pop('q', batch => 10, \
            partitions => 10)",
        settle: "SELECT 1 FROM queen_ack(($1::text[])[1]::uuid)",
        schema: "queen_mq",
    },
    Side {
        system: System::Pgmq,
        push: "SELECT 1 FROM pgmq.send('q', jsonb_build_object('n', $1::bigint, 'pad', \
            repeat('x', 60), 'p', $2::bigint))",
        pop: "SELECT msg_id::text, (message->>'n')::bigint FROM pgmq.read('q', 30, 10)",
        settle: "SELECT 1 FROM pgmq.delete('q', $1::text[]::bigint[])",
        schema: "pgmq",
    },
];

/// What was measured of one system, in each part.
struct Seen {
    latencies: Vec<Latencies>,
    bytes: Vec<i64>,
    dead: i64,
}

type SharedSeen = Arc<Mutex<Seen>>;

pub async fn run(lab: &Lab) -> Result<Outcome> {
    let db = lab.server.database("steady").await?;
    let duration = lab.scale.steady;
    let reclaim = duration / 15;
    let admin = db.session().await?;
    for side in &SIDES {
        side.system.create(&admin, "q").await?;
    }
    let sql = "SELECT 1 FROM queen_configure('q', retention => $1::text::interval,
                                             completed_retention => $2::text::interval)";
    let seconds = |d: Duration| format!("{} s", d.as_secs_f64());
    admin.row(sql, &[&seconds(duration), &seconds(reclaim)]).await?;

    let mut seen = Vec::new();
    for side in &SIDES {
        seen.push((side, start(&db, side, duration).await?));
    }
    let mut all = JoinSet::new();
    let mut shared = Vec::new();
    for (side, (state, tasks)) in seen {
        shared.push((side, state));
        for task in tasks {
            all.spawn(task);
        }
    }
    let began = Instant::now();
    for part in 0..PARTS {
        let ends = duration.mul_f64((part + 1) as f64 / PARTS as f64);
        while let Some(rest) = ends.checked_sub(began.elapsed()) {
            sleep(rest.min(Duration::from_secs(1))).await;
            for (side, state) in &shared {
                let dead = dead_rows(&admin, side).await?;
                let mut state = state.lock().await;
                state.dead = state.dead.max(dead);
            }
        }
        lab.progress.set_message(format!("part {} of {PARTS}", part + 1));
        for (side, state) in &shared {
            let bytes = bytes(&admin, side.schema).await?;
            state.lock().await.bytes.push(bytes);
        }
    }
    while let Some(task) = all.join_next().await {
        task???;
    }

    let method = format!(
        "for {} s, {RATE} messages a second into each system, \
         from {PRODUCERS} sessions into {PARTITIONS} partitions; \
         {CONSUMERS} sessions pop up to 10 and settle them, and look again 5 ms after \
         finding nothing; what is settled is deleted after {} s. Both systems at once; \
         latency from the moment a push is due to the return of the pop",
        duration.as_secs(),
        reclaim.as_secs()
    );
    let mut outcome = Outcome::new(13, "a steady rate", method);
    outcome.x_axis = "seconds";
    outcome.y_axis = "p99, ms";
    for (side, state) in shared {
        report(&mut outcome, side, &*state.lock().await, duration)?;
    }
    lab.server.drop_database(db).await?;
    Ok(outcome)
}

type Task = tokio::task::JoinHandle<Result<()>>;

/// Starts the producers and consumers of one system.
async fn start(
    db: &Db,
    side: &'static Side,
    duration: Duration,
) -> Result<(SharedSeen, Vec<Task>)> {
    let latencies = (0..PARTS).map(|_| load::latencies()).collect::<Result<_>>()?;
    let state = Arc::new(Mutex::new(Seen { latencies, bytes: Vec::new(), dead: 0 }));
    let began = Instant::now();
    let total = (duration.as_secs_f64() * RATE as f64) as u64;
    let mut tasks = Vec::new();
    for producer in 0..PRODUCERS {
        let session = db.session().await?;
        tasks.push(tokio::spawn(produce(session, side, began, producer, total)));
    }
    let came = Arc::new(Mutex::new(0));
    for _ in 0..CONSUMERS {
        let (session, state, came) = (db.session().await?, state.clone(), came.clone());
        tasks.push(tokio::spawn(async move {
            let part = |n| usize::try_from(n * PARTS as u64 / total).unwrap_or(PARTS - 1);
            let deadline = began + duration + Duration::from_secs(60);
            while *came.lock().await < total {
                ensure!(Instant::now() < deadline, "{}: messages are missing", side.system.label());
                let rows = session.rows(side.pop, &[]).await?;
                let returned = Instant::now();
                if rows.is_empty() {
                    sleep(PAUSE).await;
                    continue;
                }
                let handles: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
                session.rows(side.settle, &[&handles]).await?;
                *came.lock().await += rows.len() as u64;
                let mut state = state.lock().await;
                for row in rows {
                    let n = u64::try_from(row.get::<_, i64>(1))?;
                    let latency = returned.saturating_duration_since(due(began, n));
                    load::record(&mut state.latencies[part(n).min(PARTS - 1)], latency);
                }
            }
            Ok(())
        }));
    }
    Ok((state, tasks))
}

/// When the push of this message is due.
fn due(began: Instant, number: u64) -> Instant {
    began + Duration::from_secs_f64(number as f64 / RATE as f64)
}

async fn produce(
    session: Session,
    side: &Side,
    began: Instant,
    producer: u64,
    total: u64,
) -> Result<()> {
    for number in (producer..total).step_by(usize::try_from(PRODUCERS)?) {
        sleep(due(began, number).saturating_duration_since(Instant::now())).await;
        let (number, partition) = (i64::try_from(number)?, i64::try_from(number % PARTITIONS)?);
        session.row(side.push, &[&number, &partition]).await?;
    }
    Ok(())
}

/// The largest number of dead rows in one control table, by PostgreSQL's statistics.
async fn dead_rows(admin: &Session, side: &Side) -> Result<i64> {
    let which = match side.system {
        System::Queen => CONTROL,
        _ => "schemaname = 'pgmq'",
    };
    let sql = format!("SELECT max(n_dead_tup) FROM pg_catalog.pg_stat_user_tables WHERE {which}");
    Ok(admin.row(&sql, &[]).await?.get(0))
}

/// The size of all tables of one system, in its schema, with indexes.
pub async fn bytes(admin: &Session, schema: &str) -> Result<i64> {
    let sql = "SELECT sum(pg_total_relation_size(relid))::bigint
               FROM pg_catalog.pg_stat_user_tables WHERE schemaname = $1";
    Ok(admin.row(sql, &[&schema]).await?.get(0))
}

fn report(outcome: &mut Outcome, side: &Side, seen: &Seen, duration: Duration) -> Result<()> {
    let label = side.system.label();
    let ours = side.system == System::Queen;
    let third = PARTS / 3;
    let together = |parts: &[Latencies]| -> Result<Latencies> {
        let mut all = load::latencies()?;
        for part in parts {
            all.add(part)?;
        }
        Ok(all)
    };
    let first = together(&seen.latencies[..third])?;
    let last = together(&seen.latencies[PARTS - third..])?;
    for (name, latencies) in [("first third", &first), ("last third", &last)] {
        outcome.samples.push(Sample::of_latencies(format!("{label}, {name}"), latencies));
    }
    for quantile in [0.5, 0.95, 0.99] {
        let [of, to] = [&last, &first].map(|l| l.value_at_quantile(quantile) as f64);
        let what = format!("{label}, p{:.0}, last third / first", quantile * 100.0);
        outcome.checks.push(Check::ratio(what, of, to, ours.then_some(Goal::AtMost(1.25))));
    }
    // The first third of the run fills space that is reused later.
    let growth = (seen.bytes[PARTS - 1] as f64, seen.bytes[third] as f64);
    let what = format!("{label}, size of all tables, end / after a third");
    outcome.checks.push(Check::ratio(what, growth.0, growth.1, ours.then_some(Goal::AtMost(1.25))));
    let megabytes = growth.0 / 1_048_576.0;
    outcome.checks.push(Check::value(format!("{label}, size at the end"), megabytes, "MiB", None));
    let what = format!("{label}, most dead rows of a control table");
    let goal = ours.then_some(Goal::Below(350.0));
    outcome.checks.push(Check::value(what, seen.dead as f64, "rows", goal));
    let width = duration.as_secs_f64() / PARTS as f64;
    let points = seen.latencies.iter().enumerate();
    let points =
        points.map(|(n, l)| ((n as f64 + 0.5) * width, l.value_at_quantile(0.99) as f64 / 1000.0));
    outcome.lines.push(Line { label: label.to_owned(), points: points.collect() });
    Ok(())
}
