//! Scenario 9: single messages popped from what was pushed in batches.

use anyhow::Result;

use crate::fill::Backlog;
use crate::job::System;
use crate::lab::{Contender, Lab};
use crate::outcome::{Goal, Outcome};
use crate::payload::Size;

const SESSIONS: usize = 8;
const SEGMENTS: [u64; 3] = [1, 100, 500];

pub async fn run(lab: &Lab) -> Result<Outcome> {
    let db = lab.server.database("segments").await?;
    // A whole number of the largest segments.
    let messages = lab.scale.singles / 500 * 500;
    let contenders: Vec<Contender> = [Size::Small, Size::Large]
        .into_iter()
        .flat_map(|size| {
            SEGMENTS.map(|segment| {
                // At least as many partitions as there are segments of the largest size.
                let backlog = Backlog { messages, partitions: 12, segment };
                Contender::consumes(System::Queen, 1, SESSIONS, backlog)
                    .of_size(size)
                    .labelled(label(segment, size))
            })
        })
        .collect();

    let method = "8 sessions pop and ack single messages from 12 partitions, which were pushed 1, \
                  100 and 500 per call";
    let mut outcome = Outcome::new(9, "pop 1 from segments of 1, 100, 500", method);
    outcome.samples = lab.contest(&db, &contenders).await?;
    for size in [Size::Small, Size::Large] {
        for segment in [100, 500] {
            let goal = Some(Goal::AtLeast(0.5));
            outcome.compare(&label(segment, size), &label(1, size), goal);
        }
    }
    lab.server.drop_database(db).await?;
    Ok(outcome)
}

fn label(segment: u64, size: Size) -> String {
    format!("segments of {segment}, {}", size.label())
}
