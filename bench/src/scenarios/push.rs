//! Scenarios 1 and 2: producers.

use anyhow::Result;

use crate::job::{Action, System};
use crate::lab::{Contender, Lab};
use crate::outcome::{Goal, Outcome};
use crate::payload::Size;

const SESSIONS: [usize; 3] = [1, 32, 128];
/// The number of sessions for which there is a goal.
const JUDGED: usize = 32;
const PARTITIONS: u64 = 1000;

/// Scenario 1: one transaction for every message.
pub async fn single(lab: &Lab) -> Result<Outcome> {
    let db = lab.server.database("push").await?;
    let mut contenders = Vec::new();
    for sessions in SESSIONS {
        contenders.extend(field(sessions, Size::Small));
    }
    contenders.extend(field(JUDGED, Size::Large));

    let method = "one message per transaction, into one partition and into 1,000 in turn";
    let mut outcome = Outcome::new(1, "push 1 per transaction", method);
    outcome.samples = lab.contest(&db, &contenders).await?;
    for (sessions, size) in
        SESSIONS.map(|n| (n, Size::Small)).into_iter().chain([(JUDGED, Size::Large)])
    {
        let goal = |bound| (sessions == JUDGED).then_some(Goal::AtLeast(bound));
        let at = at(sessions, size);
        for partitions in ["1 partition", "1,000 partitions"] {
            let ours = format!("queen_mq, {partitions}{at}");
            outcome.compare(&ours, &format!("pgmq{at}"), goal(1.6));
            outcome.compare(&ours, &format!("table{at}"), goal(0.75));
        }
    }
    lab.server.drop_database(db).await?;
    Ok(outcome)
}

/// The contenders. pgmq and the table have no partitions.
fn field(sessions: usize, size: Size) -> Vec<Contender> {
    let at = at(sessions, size);
    let of = |system, partitions, label: &str| {
        Contender::pushes(system, 1, partitions, sessions)
            .of_size(size)
            .labelled(format!("{label}{at}"))
    };
    vec![
        of(System::Queen, 1, "queen_mq, 1 partition"),
        of(System::Pgmq, 1, "pgmq"),
        of(System::Queen, PARTITIONS, "queen_mq, 1,000 partitions"),
        of(System::Table, 1, "table"),
    ]
}

fn at(sessions: usize, size: Size) -> String {
    format!(", {sessions} sessions, {}", size.label())
}

/// Scenario 2: a hundred messages per call.
pub async fn batches(lab: &Lab) -> Result<Outcome> {
    const SESSIONS: usize = 4;
    const BATCH: usize = 100;
    let db = lab.server.database("push_batch").await?;
    let of = |system, size: Size, name: &str| {
        Contender::pushes(system, BATCH, PARTITIONS, SESSIONS)
            .of_size(size)
            .labelled(format!("{name}, {}", size.label()))
    };
    let contenders: Vec<Contender> = [Size::Small, Size::Large]
        .into_iter()
        .flat_map(|size| {
            [
                of(System::Queen, size, "queen_mq"),
                of(System::Pgmq, size, "pgmq"),
                of(System::Table, size, "COPY").doing(Action::Copy { batch: BATCH }),
                of(System::Table, size, "table"),
            ]
        })
        .collect();

    let method = "100 messages per call and transaction, 4 sessions; COPY writes the same rows \
                  into the bare table, 100 per transaction";
    let mut outcome = Outcome::new(2, "push 100 per call", method);
    outcome.samples = lab.contest(&db, &contenders).await?;
    for size in [Size::Small, Size::Large].map(Size::label) {
        let queen = format!("queen_mq, {size}");
        outcome.compare(&queen, &format!("pgmq, {size}"), Some(Goal::AtLeast(3.0)));
        outcome.compare(&queen, &format!("COPY, {size}"), Some(Goal::AtLeast(1.5)));
    }
    lab.server.drop_database(db).await?;
    Ok(outcome)
}
