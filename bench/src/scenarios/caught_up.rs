//! Scenario 16: many sessions on a queue that stays caught up.

use anyhow::Result;

use crate::graphile;
use crate::job::{Action, System};
use crate::lab::{Contender, Lab};
use crate::outcome::{Goal, Outcome};

const FEW: usize = 8;
const MANY: usize = 64;
const PARTITIONS: u64 = 1000;
const ORDERED: &str = "queen_mq";
const UNORDERED: &str = "queen_mq, without order";

pub async fn run(lab: &Lab) -> Result<Outcome> {
    let db = lab.server.database("caught_up").await?;
    let mut contenders: Vec<Contender> = Vec::new();
    for sessions in [FEW, MANY] {
        contenders.extend(with_sessions(sessions));
        if lab.graphile.is_some() {
            let theirs = one(System::Graphile, System::Graphile.label(), sessions);
            contenders.push(theirs.doing(Action::Cycle { batch: graphile::BATCH }));
        }
    }

    let method = "8 and 64 sessions push, pop and settle single messages, 90 B, in three \
                  transactions (the table: two), on 1,000 partitions of a queue that starts empty. \
                  A session whose pop finds nothing goes on to its next push; the rate is that of \
                  settled messages, the latency that of a whole turn. With graphile-worker, where \
                  it is asked for, a session adds a job, and the next one when its worker has done \
                  that";
    let mut outcome = Outcome::new(16, "a caught-up queue", method);
    outcome.samples = lab.contest(&db, &contenders).await?;
    for ours in [ORDERED, UNORDERED] {
        for sessions in [FEW, MANY] {
            let theirs = label(System::Pgmq.label(), sessions);
            outcome.compare(&label(ours, sessions), &theirs, Some(Goal::AtLeast(1.3)));
        }
        outcome.compare(&label(ours, MANY), &label(ours, FEW), Some(Goal::AtLeast(0.8)));
    }
    if lab.graphile.is_some() {
        for sessions in [FEW, MANY] {
            let theirs = label(System::Graphile.label(), sessions);
            outcome.compare(&label(ORDERED, sessions), &theirs, None);
        }
    }
    for other in [System::Pgmq, System::Table].map(System::label) {
        outcome.compare(&label(other, MANY), &label(other, FEW), None);
    }
    lab.server.drop_database(db).await?;
    Ok(outcome)
}

fn with_sessions(sessions: usize) -> [Contender; 4] {
    let of = |system: System, name: &str| one(system, name, sessions);
    [
        of(System::Queen, ORDERED),
        of(System::Queen, UNORDERED).unordered(),
        of(System::Pgmq, System::Pgmq.label()),
        of(System::Table, System::Table.label()),
    ]
}

fn one(system: System, name: &str, sessions: usize) -> Contender {
    Contender::pushes(system, 1, PARTITIONS, sessions)
        .doing(Action::Cycle { batch: 1 })
        .labelled(label(name, sessions))
}

fn label(name: &str, sessions: usize) -> String {
    format!("{name}, {sessions} sessions")
}
