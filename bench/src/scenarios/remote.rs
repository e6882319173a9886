//! Scenario 19: each commit that waits for the disk waits for a standby as well.

use anyhow::Result;

use super::consume::single_backlog;
use crate::db::Db;
use crate::job::System;
use crate::lab::{Contender, Lab};
use crate::outcome::{Goal, Outcome, Sample};
use crate::standby::Standby;

const SESSIONS: [usize; 2] = [8, 64];
const REMOTE: &str = "SET synchronous_commit = remote_apply";
const DURABLE: &str = "SET synchronous_commit = remote_apply; SET queen_mq.durable_leases = on";
const DURABLE_LABEL: &str = "queen_mq, durable leases";

pub async fn run(lab: &Lab) -> Result<Outcome> {
    let method = format!(
        "scenario 4 with 8 and 64 sessions and synchronous_commit = remote_apply, beside a \
         synchronous standby on the same machine with recovery_min_apply_delay = 5ms; from {} \
         messages in 1,000 partitions, pushed one by one",
        lab.scale.singles
    );
    let mut outcome = Outcome::new(19, "pop 1 + ack 1 beside a standby 5 ms away", method);
    let Some(standby) = &lab.standby else {
        "needs --standby, a program that starts one; see scripts/bench.sh"
            .clone_into(&mut outcome.method);
        return Ok(outcome);
    };
    let db = lab.server.database("remote").await?;
    outcome.samples = beside(lab, &db, standby).await?;
    for sessions in SESSIONS {
        let [queen, pgmq] = [System::Queen, System::Pgmq].map(|s| label(s.label(), sessions));
        outcome.compare(&queen, &pgmq, Some(Goal::AtLeast(1.8)));
        outcome.compare(&label(DURABLE_LABEL, sessions), &pgmq, None);
    }
    lab.server.drop_database(db).await?;
    Ok(outcome)
}

/// Measures beside the standby, which is gone afterwards, also after an error.
async fn beside(lab: &Lab, db: &Db, standby: &Standby) -> Result<Vec<Sample>> {
    let mut contenders = Vec::new();
    for sessions in SESSIONS {
        let of = |system: System, name: &str, setting: &'static str| {
            Contender::consumes(system, 1, sessions, single_backlog(lab))
                .labelled(label(name, sessions))
                .with(setting)
        };
        contenders.push(of(System::Queen, System::Queen.label(), REMOTE));
        contenders.push(of(System::Pgmq, System::Pgmq.label(), REMOTE));
        contenders.push(of(System::Queen, DURABLE_LABEL, DURABLE));
        contenders.push(of(System::Table, System::Table.label(), REMOTE));
    }
    lab.progress.set_message("starting a standby");
    let admin = db.session().await?;
    let started = standby.start(&admin).await;
    let samples = match started {
        Ok(()) => lab.contest(db, &contenders).await,
        Err(error) => Err(error),
    };
    standby.stop(&admin).await?;
    samples
}

fn label(name: &str, sessions: usize) -> String {
    format!("{name}, {sessions} sessions")
}
