//! Scenarios 3 and 4: consumers.

use anyhow::Result;

use crate::fill::Backlog;
use crate::graphile;
use crate::job::{Action, System};
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
        let ours = format!("queen_mq, {size}");
        outcome.compare(&ours, &format!("pgmq, {size}"), Some(Goal::AtLeast(5.0)));
        outcome.compare(&ours, &format!("table, {size}"), Some(Goal::AtLeast(1.5)));
    }
    lab.server.drop_database(db).await?;
    Ok(outcome)
}

/// The sizes and numbers of sessions of scenario 4.
const CASES: [(Size, usize); 3] = [(Size::Small, 8), (Size::Small, 64), (Size::Large, 64)];
const DURABLE: &str = "queen_mq, durable leases";
const GRAPHILE_BATCHES: &str = "graphile-worker, batches of 500";

/// Scenario 4: one message at a time, popped in one transaction and settled in another.
pub async fn singles(lab: &Lab) -> Result<Outcome> {
    let db = lab.server.database("pop_single").await?;
    let mut contenders = Vec::new();
    for (size, sessions) in CASES {
        let of = |system: System, name: &str| {
            Contender::consumes(system, 1, sessions, single_backlog(lab))
                .of_size(size)
                .labelled(label(name, size, sessions))
        };
        contenders.extend(SYSTEMS.map(|system| of(system, system.label())));
        if lab.graphile.is_some() {
            let batch = i32::try_from(graphile::BATCH)?;
            contenders.push(of(System::Graphile, System::Graphile.label()));
            let batches = of(System::Graphile, GRAPHILE_BATCHES);
            contenders.push(batches.doing(Action::Consume { batch }));
        }
        if size == Size::Small {
            contenders.push(of(System::Queen, DURABLE).with("SET queen_mq.durable_leases = on"));
        }
    }

    let method = format!(
        "8 and 64 sessions pop and settle single messages, in two transactions (the table: in \
         one), from {} in 1,000 partitions, pushed one by one. With durable leases the pop waits \
         for the disk, too. graphile-worker, where it is asked for, has a worker of its own, with \
         as many jobs at a time as the others have sessions; in its fastest configuration it \
         fetches 500 at once and settles them in batches, which the others do in scenario 3",
        lab.scale.singles
    );
    let mut outcome = Outcome::new(4, "pop 1 + ack 1", method);
    outcome.samples = lab.contest(&db, &contenders).await?;
    for (size, sessions) in CASES {
        let label = |name: &str| label(name, size, sessions);
        let [queen, pgmq, table] = SYSTEMS.map(|system| label(system.label()));
        outcome.compare(&queen, &pgmq, Some(Goal::AtLeast(2.0)));
        outcome.compare(&queen, &table, Some(Goal::AtLeast(1.0)));
        if size == Size::Small {
            outcome.compare(&label(DURABLE), &pgmq, Some(Goal::AtLeast(1.6)));
        }
        if lab.graphile.is_some() {
            outcome.compare(&queen, &label(System::Graphile.label()), None);
            outcome.compare(&queen, &label(GRAPHILE_BATCHES), None);
        }
    }
    lab.server.drop_database(db).await?;
    Ok(outcome)
}

fn label(name: &str, size: Size, sessions: usize) -> String {
    format!("{name}, {sessions} sessions, {}", size.label())
}

/// The backlog for single messages: each was pushed by itself.
pub fn single_backlog(lab: &Lab) -> Backlog {
    Backlog { messages: lab.scale.singles, partitions: 1000, segment: 1 }
}
