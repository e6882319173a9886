//! Scenario 22: how large the tables are after an hour at 500 messages a second. What is kept for
//! an hour grows with the messages, whatever their rate: so a part of them is enough, and they are
//! pushed and popped at full speed.

use anyhow::{Result, ensure};

use super::steady;
use crate::job::{Action, System};
use crate::lab::{Contender, Lab};
use crate::load::{self, Load};
use crate::outcome::{Check, Goal, Line, Outcome, Sample};

const RATE: u64 = 500;
const HOUR: u64 = 3600 * RATE;
const SESSIONS: usize = 4;
const PARTITIONS: u64 = 10;
/// Vacuums, one after each of as many parts of the run.
const PARTS: u64 = 6;
/// The size does not depend on it, and the run is shorter.
const SETTING: &str = "SET synchronous_commit = off";
const MIB: f64 = 1_048_576.0;

pub async fn run(lab: &Lab) -> Result<Outcome> {
    let part = lab.scale.hour_part;
    let method = format!(
        "{SESSIONS} sessions push, pop and settle single messages, {PARTITIONS} partitions, in \
         {PARTS} parts of {part} messages each; after each part all tables are vacuumed, as \
         autovacuum would do it each minute, after 30,000 messages. What is settled is deleted \
         after a second. The size after an hour is that at the end, and the growth of the second \
         half for the rest of the hour's \
         {HOUR} messages: receipts, for instance, are kept for an hour"
    );
    let mut outcome = Outcome::new(22, "an hour at 500 messages/s", method);
    for (system, schema) in [(System::Queen, "queen_mq"), (System::Pgmq, "pgmq")] {
        let sizes = sizes(lab, system, schema).await?;
        report(&mut outcome, system.label(), &sizes, part);
    }
    let [ours, theirs] = [System::Queen, System::Pgmq].map(|s| label(s.label()));
    outcome.compare(&ours, &theirs, Some(Goal::AtMost(3.0)));
    (outcome.x_axis, outcome.y_axis) = ("messages", "MiB");
    Ok(outcome)
}

fn label(system: &str) -> String {
    format!("{system}, after an hour")
}

/// The size of all tables after each part, in bytes.
async fn sizes(lab: &Lab, system: System, schema: &str) -> Result<Vec<f64>> {
    let db = lab.server.database("hour").await?;
    let admin = db.session().await?;
    let contender = Contender::pushes(system, 1, PARTITIONS, SESSIONS)
        .doing(Action::Cycle { batch: 1 })
        .labelled(system.label());
    lab.fresh(&db, &contender, "q").await?;
    if system == System::Queen {
        let sql = "SELECT 1 FROM queen_configure('q', completed_retention => '1 s')";
        admin.batch_execute(sql).await?;
    }
    for session in db.sessions(SESSIONS).await? {
        session.batch_execute(SETTING).await?;
    }
    let mut sizes = Vec::new();
    for part in 1..=PARTS {
        lab.progress.set_message(format!("{}, part {part} of {PARTS}", system.label()));
        let messages = Some(lab.scale.hour_part);
        let load = Load { sessions: SESSIONS, duration: lab.scale.longest_part, messages };
        let measured = load::run(&db, &contender.job("q".to_owned()), load, &lab.payloads).await?;
        let done = measured.messages;
        // The steps before the clock runs settle some, too.
        let missing = done + 100 < lab.scale.hour_part;
        ensure!(!missing, "{}: {done} messages in time", system.label());
        admin.batch_execute("VACUUM").await?;
        sizes.push(steady::bytes(&admin, schema).await? as f64);
    }
    lab.server.drop_database(db).await?;
    Ok(sizes)
}

fn report(outcome: &mut Outcome, system: &str, sizes: &[f64], part: u64) {
    let (Some(end), Some(middle)) = (sizes.last(), sizes.get(sizes.len() / 2 - 1)) else { return };
    let of_half = (part * PARTS / 2) as f64;
    let growth = (end - middle).max(0.0) / of_half;
    let projected = end + growth * HOUR.saturating_sub(part * PARTS) as f64;
    let mut add = |label: String, value: f64, unit: &'static str| {
        outcome.checks.push(Check::value(label.clone(), value, unit, None));
        outcome.samples.push(Sample::of_values(label, unit, vec![value]));
    };
    add(format!("{system}, growth of the second half"), growth, "B/msg");
    add(label(system), projected / MIB, "MiB");
    let points = sizes.iter().zip(1..).map(|(size, n)| ((n * part) as f64, size / MIB)).collect();
    outcome.lines.push(Line { label: system.to_owned(), points });
}
