//! Scenario 14: competing consumers on one queue without order.

use anyhow::Result;

use super::consume::SYSTEMS;
use crate::fill::Backlog;
use crate::job::System;
use crate::lab::{Contender, Lab};
use crate::outcome::{Goal, Outcome};

const SESSIONS: usize = 64;
const CONSUMERS_OF_HUNDREDS: usize = 4;
/// Messages per push of the backlog.
const PUSHED: [(u64, &str); 2] = [(1, "queen_mq, pushed singly"), (100, "queen_mq, in hundreds")];

/// Everything is in one partition, so nothing but the messages keeps the sessions apart.
pub async fn run(lab: &Lab) -> Result<Outcome> {
    let db = lab.server.database("unordered").await?;
    let messages = lab.scale.singles;
    let of = |system: System, segment: u64| {
        let backlog = Backlog { messages, partitions: 1, segment };
        Contender::consumes(system, 1, SESSIONS, backlog)
    };
    let mut contenders = vec![of(System::Pgmq, 1)];
    for (segment, label) in PUSHED {
        contenders.push(of(System::Queen, segment).unordered().labelled(label));
    }
    contenders.push(of(System::Table, 1));
    let backlog = Backlog { messages: lab.scale.batches / 10, partitions: 1, segment: 100 };
    contenders.extend(SYSTEMS.map(|system| {
        let hundreds = Contender::consumes(system, 100, CONSUMERS_OF_HUNDREDS, backlog);
        let hundreds = hundreds.labelled(by_hundreds(system));
        if system == System::Queen { hundreds.unordered() } else { hundreds }
    }));

    let method = format!(
        "scenario 4 on a queue with ordering 'none', everything in one partition: 64 sessions pop \
         and settle single messages from {messages}, pushed one by one, and 100 per call; then \
         {CONSUMERS_OF_HUNDREDS} sessions pop and settle 100 at a time from {}, pushed 100 per \
         call",
        backlog.messages
    );
    let mut outcome = Outcome::new(14, "pop + ack without order", method);
    outcome.samples = lab.contest(&db, &contenders).await?;
    for (_, label) in PUSHED {
        outcome.compare(label, System::Pgmq.label(), Some(Goal::AtLeast(1.6)));
    }
    let [queen, pgmq, table] = SYSTEMS.map(by_hundreds);
    outcome.compare(&queen, &pgmq, Some(Goal::AtLeast(3.0)));
    outcome.compare(&queen, &table, None);
    lab.server.drop_database(db).await?;
    Ok(outcome)
}

fn by_hundreds(system: System) -> String {
    format!("{}, 100 at a time", system.label())
}
