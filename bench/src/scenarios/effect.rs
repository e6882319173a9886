//! Scenario 6: charge, marker and ack in one transaction.

use anyhow::Result;

use super::consume::single_backlog;
use crate::job::{Action, CHARGES, Effect, System};
use crate::lab::{Contender, Lab};
use crate::outcome::{Goal, Outcome};

const BARE: &str = "pop + ack alone";
const EFFECTS: [(Effect, &str); 3] = [
    (Effect::Plain, "plain SQL"),
    (Effect::Bundle, "queen_tx_commit"),
    (Effect::Statement, "queen_tx_commit, one statement"),
];

pub async fn run(lab: &Lab) -> Result<Outcome> {
    let db = lab.server.database("effect").await?;
    db.session().await?.batch_execute(CHARGES).await?;
    let bare = Contender::consumes(System::Queen, 1, 64, single_backlog(lab));
    let mut contenders = vec![bare.clone().labelled(BARE)];
    contenders.extend(
        EFFECTS.map(|(effect, label)| bare.clone().doing(Action::Effect(effect)).labelled(label)),
    );

    let method = "scenario 4, but instead of the ack: insert a charge, put its marker if absent, \
                  ack, all in one transaction; in plain SQL five round trips, with queen_tx_commit \
                  four, or one when the charge is inserted by the same statement";
    let mut outcome = Outcome::new(6, "charge + marker + ack in one transaction", method);
    outcome.samples = lab.contest(&db, &contenders).await?;
    for (_, label) in EFFECTS {
        outcome.compare(label, BARE, Some(Goal::AtLeast(0.6)));
    }
    lab.server.drop_database(db).await?;
    Ok(outcome)
}
