//! Scenario 21: the figures of a queue with very many partitions.

use std::time::Instant;

use anyhow::Result;

use super::latency::drain_many;
use crate::db::{Db, Session};
use crate::job;
use crate::lab::Lab;
use crate::outcome::{Check, Goal, Outcome, Sample};
use crate::payload::Size;

const QUEUE: &str = "wide";
const FIGURES: [(&str, &str); 3] = [
    ("queen_queues", "SELECT count(q) FROM queen_queues AS q"),
    ("queen_groups", "SELECT count(g) FROM queen_groups AS g"),
    ("queen_metrics", "SELECT count(m) FROM queen_metrics() AS m"),
];
/// Milliseconds.
const GOAL: Goal = Goal::AtMost(20.0);

/// When a view is read.
const MOMENTS: [&str; 3] = ["in a new session", "again", "after one push"];
const FIRST: &str = "for the first time";

pub async fn run(lab: &Lab) -> Result<Outcome> {
    let method = format!(
        "a queue with {} partitions, each used once and drained; the first call in the database \
         after that, then, over and over: the first call of a new session, another call, and one \
         after a push to one of the partitions; in a group with order and in one without. From \
         the request to the answer",
        lab.scale.drained_partitions
    );
    let mut outcome = Outcome::new(21, "figures over many partitions", method);
    for (unordered, name) in [(false, "with order"), (true, "without order")] {
        let db = lab.server.database("figures").await?;
        lab.progress.set_message(format!("draining many partitions, {name}"));
        let admin = db.session().await?;
        if unordered {
            job::without_order(&admin, QUEUE).await?;
        }
        drain_many(lab, &db, &admin, QUEUE).await?;
        for (view, sql) in FIGURES {
            lab.progress.set_message(format!("{view}, {name}"));
            one(lab, &db, sql, &format!("{view}, {name}"), &mut outcome).await?;
        }
        lab.server.drop_database(db).await?;
    }
    Ok(outcome)
}

async fn one(lab: &Lab, db: &Db, sql: &str, label: &str, outcome: &mut Outcome) -> Result<()> {
    let first = vec![time(&db.session().await?, sql).await?];
    outcome.samples.push(Sample::of_values(format!("{label}, {FIRST}"), "ms", first));
    let mut times = [const { Vec::new() }; MOMENTS.len()];
    for round in 0..lab.scale.rounds {
        let session = db.session().await?;
        for (moment, times) in times.iter_mut().enumerate() {
            if moment == 2 {
                push(lab, &session, round).await?;
            }
            times.push(time(&session, sql).await?);
        }
    }
    for (moment, times) in MOMENTS.into_iter().zip(times) {
        let what = format!("{label}, {moment}");
        outcome.checks.push(Check::rounds(what.clone(), &times, "ms", Some(GOAL)));
        outcome.samples.push(Sample::of_values(what, "ms", times));
    }
    Ok(())
}

async fn time(session: &Session, sql: &str) -> Result<f64> {
    let began = Instant::now();
    session.batch_execute(sql).await?;
    Ok(began.elapsed().as_secs_f64() * 1000.0)
}

async fn push(lab: &Lab, session: &Session, round: usize) -> Result<()> {
    let payload = lab.payloads.one(Size::Small, round as u64);
    let partition = format!("p{}", round * 7919 % usize::try_from(lab.scale.drained_partitions)?);
    let sql = "SELECT message_id FROM queen_push($1, $2, $3)";
    session.row(sql, &[&QUEUE, payload, &partition]).await?;
    Ok(())
}
