//! Scenario 8: one consumer on queues that are wide, blocked, or read by many groups.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use crate::db::{Db, Session};
use crate::fill::{self, Backlog};
use crate::job::System;
use crate::lab::Lab;
use crate::load::{self, Latencies};
use crate::outcome::{Check, Goal, Outcome, Sample};
use crate::payload::Size;

/// Messages that are pushed for each ten pops.
const READY: u64 = 10;
const GROUPS: usize = 100;

const ONE: &str = "one partition";
const WIDE: &str = "many partitions, 10 ready";
const EMPTY_ONE: &str = "empty pop, one partition";
const EMPTY_WIDE: &str = "empty pop, many partitions";
const ONE_AGAIN: &str = "one partition, again";
const UNBLOCKED: &str = "beside a blocked partition of 100";
const BLOCKED: &str = "beside a big blocked partition";
const ONE_GROUP: &str = "one group";
const MANY_GROUPS: &str = "100 groups";

/// A queue whose pops are timed. `partitions` get the new messages, in turn or at random.
struct Subject {
    label: &'static str,
    queue: &'static str,
    partitions: u64,
    groups: Vec<Option<String>>,
    latencies: Latencies,
}

impl Subject {
    fn new(label: &'static str, queue: &'static str, partitions: u64) -> Result<Self> {
        Ok(Self { label, queue, partitions, groups: vec![None], latencies: load::latencies()? })
    }

    fn read_by(mut self, groups: usize) -> Self {
        self.groups = (0..groups).map(|n| Some(format!("g{n}"))).collect();
        self
    }
}

pub async fn run(lab: &Lab) -> Result<Outcome> {
    let db = lab.server.database("latency").await?;
    let session = db.session().await?;
    let scale = lab.scale;
    let method = format!(
        "one session; ten messages are pushed and popped one by one, only the pops are timed. Many \
         partitions: {}, each used once and drained; blocked: one partition with {} messages \
         (against 100) is leased meanwhile. Ratios are of p50",
        scale.drained_partitions, scale.blocked_backlog
    );
    let mut outcome = Outcome::new(8, "latency of pop", method);

    lab.progress.set_message("draining many partitions");
    drain_many(lab, &db, &session, "wide").await?;
    contest(lab, &session, &mut outcome, one_and_wide(scale.drained_partitions)?).await?;
    empty_pops(lab, &session, &mut outcome).await?;

    lab.progress.set_message("blocking a partition");
    block(lab, &db, &session, "blocked_small", 100).await?;
    block(lab, &db, &session, "blocked_big", scale.blocked_backlog).await?;
    contest(lab, &session, &mut outcome, small_and_big()?).await?;

    contest(lab, &session, &mut outcome, few_and_many_groups()?).await?;
    judge(&mut outcome);
    lab.server.drop_database(db).await?;
    Ok(outcome)
}

fn one_and_wide(partitions: u64) -> Result<Vec<Subject>> {
    Ok(vec![Subject::new(ONE, "one", 1)?, Subject::new(WIDE, "wide", partitions)?])
}

fn small_and_big() -> Result<Vec<Subject>> {
    // Partition 0 is blocked, so the new messages go to others.
    Ok(vec![
        Subject::new(ONE_AGAIN, "one", 1)?,
        Subject::new(UNBLOCKED, "blocked_small", READY)?,
        Subject::new(BLOCKED, "blocked_big", READY)?,
    ])
}

fn few_and_many_groups() -> Result<Vec<Subject>> {
    Ok(vec![
        Subject::new(ONE_GROUP, "groups_1", 1)?.read_by(1),
        Subject::new(MANY_GROUPS, "groups_100", 1)?.read_by(GROUPS),
    ])
}

fn judge(outcome: &mut Outcome) {
    for label in [WIDE, BLOCKED, MANY_GROUPS] {
        let latency = outcome.median(label);
        outcome.checks.push(Check::value(label, latency, "ms", Some(Goal::AtMost(2.0))));
    }
    let twice = Some(Goal::AtMost(2.0));
    outcome.compare(WIDE, ONE, twice);
    outcome.compare(EMPTY_WIDE, EMPTY_ONE, twice);
    // The latency must not depend on the backlog; the goal leaves room for noise.
    outcome.compare(BLOCKED, UNBLOCKED, Some(Goal::AtMost(1.25)));
    outcome.compare(BLOCKED, ONE_AGAIN, twice);
    outcome.compare(MANY_GROUPS, ONE_GROUP, twice);
}

/// Push ten and pop ten messages, one queue after the other.
async fn contest(
    lab: &Lab,
    session: &Session,
    outcome: &mut Outcome,
    mut subjects: Vec<Subject>,
) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(8);
    for subject in &subjects {
        for group in subject.groups.iter().flatten() {
            subscribe(session, subject.queue, group).await?;
        }
    }
    for round in 0..lab.scale.latency_rounds {
        for subject in &mut subjects {
            lab.progress.set_message(subject.label);
            push_ready(lab, session, subject, &mut rng).await?;
            let group = &subject.groups[round % subject.groups.len()];
            for _ in 0..READY {
                let (latency, lease) = timed_pop(session, subject.queue, group.as_deref()).await?;
                ensure!(lease.is_some(), "{}: nothing to pop", subject.label);
                ack(session, lease).await?;
                if round > 0 {
                    load::record(&mut subject.latencies, latency);
                }
            }
        }
    }
    let samples = subjects.iter().map(|s| Sample::of_latencies(s.label, &s.latencies));
    outcome.samples.extend(samples);
    Ok(())
}

/// Push new messages to random partitions. Groups that have not read the earlier ones get those.
async fn push_ready(
    lab: &Lab,
    session: &Session,
    subject: &Subject,
    rng: &mut StdRng,
) -> Result<()> {
    for n in 0..READY {
        let partition = format!("p{}", 1 + rng.random_range(0..subject.partitions));
        let payload = lab.payloads.one(Size::Small, n);
        let sql = "SELECT message_id FROM queen_push($1, $2, $3)";
        session.row(sql, &[&subject.queue, payload, &partition]).await?;
    }
    Ok(())
}

async fn empty_pops(lab: &Lab, session: &Session, outcome: &mut Outcome) -> Result<()> {
    let mut both = [load::latencies()?, load::latencies()?];
    for _ in 0..lab.scale.latency_rounds {
        for (queue, latencies) in ["one", "wide"].into_iter().zip(&mut both) {
            for _ in 0..READY {
                let (latency, lease) = timed_pop(session, queue, None).await?;
                ensure!(lease.is_none(), "{queue} is not empty");
                load::record(latencies, latency);
            }
        }
    }
    let labels = [EMPTY_ONE, EMPTY_WIDE];
    outcome.samples.extend(labels.into_iter().zip(&both).map(|(l, h)| Sample::of_latencies(l, h)));
    Ok(())
}

async fn timed_pop(
    session: &Session,
    queue: &str,
    group: Option<&str>,
) -> Result<(Duration, Option<Uuid>)> {
    let sql = "SELECT lease_id, message_id, payload FROM queen_pop($1, $2)";
    let began = Instant::now();
    let rows = session.rows(sql, &[&queue, &group]).await?;
    Ok((began.elapsed(), rows.first().map(|row| row.get(0))))
}

async fn ack(session: &Session, lease: Option<Uuid>) -> Result<()> {
    session.row("SELECT settled FROM queen_ack($1)", &[&lease]).await?;
    Ok(())
}

async fn subscribe(session: &Session, queue: &str, group: &str) -> Result<()> {
    session.row("SELECT queen_subscribe($1, $2, 'all')", &[&queue, &group]).await?;
    Ok(())
}

/// Push one message to each of many partitions, and pop all of them.
pub async fn drain_many(lab: &Lab, db: &Db, session: &Session, queue: &str) -> Result<()> {
    let partitions = lab.scale.drained_partitions;
    let backlog = Backlog { messages: partitions, partitions, segment: 1 };
    fill::fill(db, System::Queen, queue, backlog, &lab.payloads, Size::Small).await?;
    let sql = "SELECT lease_id FROM queen_pop($1, batch => 10000, partitions => 1000)";
    while let Some(row) = session.rows(sql, &[&queue]).await?.first() {
        ack(session, row.get(0)).await?;
    }
    fill::analyze(db, System::Queen, queue).await
}

/// Push a backlog to partition p0 and hold it in a lease.
async fn block(lab: &Lab, db: &Db, session: &Session, queue: &str, messages: u64) -> Result<()> {
    let backlog = Backlog { messages, partitions: 1, segment: 100 };
    fill::fill(db, System::Queen, queue, backlog, &lab.payloads, Size::Small).await?;
    let sql = "SELECT lease_id FROM queen_pop($1, partition => 'p0', lease_time => '1 hour')";
    let held = session.rows(sql, &[&queue]).await?;
    ensure!(!held.is_empty(), "{queue} can't be blocked");
    Ok(())
}
