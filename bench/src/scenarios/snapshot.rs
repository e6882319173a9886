//! Scenario 7: a session holds an old snapshot.

use std::time::Duration;

use anyhow::Result;

use crate::db::Db;
use crate::fill::Backlog;
use crate::job::{Action, System};
use crate::lab::{Contender, Lab};
use crate::load::Measured;
use crate::outcome::{Check, Goal, Line, Outcome, Sample, median};

const SESSIONS: usize = 16;
const BUCKETS: u32 = 24;
const BACKLOG: Backlog = Backlog { messages: 1000, partitions: 1000, segment: 1 };

pub async fn run(lab: &Lab) -> Result<Outcome> {
    let seconds = lab.scale.with_snapshot.as_secs_f64();
    let method = format!(
        "16 sessions push, pop and ack single messages beside a backlog of 1,000; first without, \
         then for {seconds} s with a REPEATABLE READ snapshot held open by another session. The \
         ratio is that of the last third of the time to the median without"
    );
    let mut outcome = Outcome::new(7, "a snapshot held open", method);
    let of = |system: System| {
        Contender::consumes(system, 1, SESSIONS, BACKLOG).doing(Action::Cycle { batch: 1 })
    };
    one(lab, &of(System::Queen), System::Queen.label(), &mut outcome).await?;
    let unordered = of(System::Queen).unordered();
    one(lab, &unordered, "queen_mq, without order", &mut outcome).await?;
    one(lab, &of(System::Pgmq), System::Pgmq.label(), &mut outcome).await?;
    outcome.x_axis = "seconds with the snapshot (before 0: without)";
    Ok(outcome)
}

async fn one(lab: &Lab, contender: &Contender, label: &str, outcome: &mut Outcome) -> Result<()> {
    let db = lab.server.database("snapshot").await?;
    lab.fresh(&db, contender, "q").await?;
    let phase = async |name: &str, duration: Duration| {
        lab.progress.set_message(format!("{label}, {name}"));
        lab.measure(&db, contender, "q", duration).await
    };

    let before = phase("without the snapshot", lab.scale.before_snapshot).await?;
    let holder = hold_snapshot(&db).await?;
    let with = phase("with the snapshot", lab.scale.with_snapshot).await?;
    drop(holder);

    let bucket = lab.scale.with_snapshot / BUCKETS;
    let baseline = rates(&before, bucket, lab.scale.before_snapshot);
    let held = rates(&with, bucket, lab.scale.with_snapshot);
    let last_third = &held[held.len() * 2 / 3..];
    let ratio = Check::ratio(
        format!("{label}, with / without"),
        median(last_third),
        median(&baseline),
        (contender.system == System::Queen).then_some(Goal::AtLeast(0.9)),
    );
    outcome.checks.push(ratio);
    outcome.lines.push(line(label, &baseline, &held, bucket));
    outcome.samples.extend([
        Sample::of_rates(format!("{label}, without"), baseline, &before.latencies),
        Sample::of_rates(
            format!("{label}, with, last third"),
            last_third.to_vec(),
            &with.latencies,
        ),
    ]);
    lab.server.drop_database(db).await
}

/// A session that has read something in a transaction and leaves the transaction open.
async fn hold_snapshot(db: &Db) -> Result<crate::db::Session> {
    let session = db.session().await?;
    session
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_catalog.pg_class")
        .await?;
    Ok(session)
}

/// The rate in each whole bucket of time.
fn rates(measured: &Measured, bucket: Duration, duration: Duration) -> Vec<f64> {
    let whole = (duration.as_secs_f64() / bucket.as_secs_f64()).round() as usize;
    let mut counts = vec![0_u64; whole.max(1)];
    for (end, messages) in &measured.ends {
        let index = (end.as_secs_f64() / bucket.as_secs_f64()) as usize;
        if let Some(count) = counts.get_mut(index) {
            *count += messages;
        }
    }
    counts.into_iter().map(|count| count as f64 / bucket.as_secs_f64()).collect()
}

fn line(label: &str, baseline: &[f64], held: &[f64], bucket: Duration) -> Line {
    let before = baseline.len() as f64;
    let all = baseline.iter().chain(held).enumerate();
    let points =
        all.map(|(n, rate)| ((n as f64 + 0.5 - before) * bucket.as_secs_f64(), *rate)).collect();
    Line { label: label.to_owned(), points }
}
