//! Scenarios 3 and 4: consumers.

use anyhow::Result;

use crate::fill::Backlog;
use crate::job::System;
use crate::lab::{Contender, Lab};
use crate::outcome::{Goal, Outcome};
use crate::payload::Size;

pub const SYSTEMS: [System; 3] = [System::Queen, System::Pgmq, System::Table];

/// Scenario 3: a hundred messages at a time from a large backlog.
pub async fn batches(lab: &Lab) -> Result<Outcome> {
    let db = lab.server.database("pop_batch").await?;
    let messages = lab.scale.batches;
    let backlog = Backlog { messages, partitions: 1000, segment: 100 };
    let large = Backlog { messages: messages / 10, ..backlog };
    let contenders: Vec<Contender> = [(Size::Small, backlog), (Size::Large, large)]
        .into_iter()
        .flat_map(|(size, backlog)| {
            SYSTEMS.map(|system| {
                Contender::consumes(system, 100, 4, backlog).of_size(size).labelled(format!(
                    "{}, {}",
                    system.label(),
                    size.label()
                ))
            })
        })
        .collect();

    let method = format!(
        "4 sessions pop and settle 100 at a time from {messages} messages (2 KiB: a tenth), which \
         were pushed 100 per call into 1,000 partitions in turn"
    );
    let mut outcome = Outcome::new(3, "pop 100 + ack from a big backlog", method);
    outcome.samples = lab.contest(&db, &contenders).await?;
    for size in [Size::Small, Size::Large].map(Size::label) {
        let goal = Some(Goal::AtLeast(10.0));
        outcome.compare(&format!("queen_mq, {size}"), &format!("pgmq, {size}"), goal);
    }
    lab.server.drop_database(db).await?;
    Ok(outcome)
}

/// Scenario 4: one message at a time, popped in one transaction and settled in another.
pub async fn singles(lab: &Lab) -> Result<Outcome> {
    let db = lab.server.database("pop_single").await?;
    let contenders: Vec<Contender> = [Size::Small, Size::Large]
        .into_iter()
        .flat_map(|size| {
            SYSTEMS.map(|system| {
                Contender::consumes(system, 1, 64, single_backlog(lab))
                    .of_size(size)
                    .labelled(format!("{}, {}", system.label(), size.label()))
            })
        })
        .collect();

    let method = format!(
        "64 sessions pop and settle single messages, in two transactions (the table: in one), from \
         {} in 1,000 partitions, pushed one by one",
        lab.scale.singles
    );
    let mut outcome = Outcome::new(4, "pop 1 + ack 1", method);
    outcome.samples = lab.contest(&db, &contenders).await?;
    for size in [Size::Small, Size::Large].map(Size::label) {
        let goal = Some(Goal::AtLeast(2.0));
        outcome.compare(&format!("queen_mq, {size}"), &format!("pgmq, {size}"), goal);
    }
    lab.server.drop_database(db).await?;
    Ok(outcome)
}

/// The backlog for single messages: each was pushed by itself.
pub fn single_backlog(lab: &Lab) -> Backlog {
    Backlog { messages: lab.scale.singles, partitions: 1000, segment: 1 }
}
