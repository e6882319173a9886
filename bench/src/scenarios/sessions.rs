//! Scenario 5: more and more consumers.

use anyhow::Result;

use super::consume::{SYSTEMS, single_backlog};
use crate::job::System;
use crate::lab::{Contender, Lab};
use crate::outcome::{Check, Goal, Line, Outcome};

const SESSIONS: [usize; 5] = [16, 32, 64, 128, 256];
/// A fall a tenth deeper than that of the bare table is noise.
const AS_DEEP: f64 = 0.9;

pub async fn run(lab: &Lab) -> Result<Outcome> {
    let db = lab.server.database("sessions").await?;
    let backlog = single_backlog(lab);
    let contenders: Vec<Contender> = SESSIONS
        .into_iter()
        .flat_map(|sessions| {
            SYSTEMS.map(|system| {
                Contender::consumes(system, 1, sessions, backlog).labelled(label(system, sessions))
            })
        })
        .collect();

    let method = "scenario 4 with 16 to 256 sessions; \
                  judged is the deepest fall: a rate against the best one with fewer sessions, \
                  beside that of the table, of which 10 % count as noise";
    let mut outcome = Outcome::new(5, "16 to 256 sessions in pop 1 + ack 1", method);
    outcome.samples = lab.contest(&db, &contenders).await?;
    let falls = SYSTEMS.map(|system| falls(&outcome, system));
    for (system, falls) in SYSTEMS.into_iter().zip(&falls) {
        let what = format!("{}, more sessions / fewer, worst", system.label());
        outcome.checks.push(Check::rounds(what, falls, "×", None));
        let rates = SESSIONS.map(|n| outcome.median(&label(system, n)));
        let points = SESSIONS.iter().map(|n| *n as f64).zip(rates).collect();
        outcome.lines.push(Line { label: system.label().to_owned(), points });
    }
    let [ours, _, table] = falls;
    let deeper: Vec<f64> = ours.iter().zip(table).map(|(ours, table)| ours / table).collect();
    let what = "what is left at the deepest fall, queen_mq / table";
    outcome.checks.push(Check::rounds(what, &deeper, "×", Some(Goal::AtLeast(AS_DEEP))));
    outcome.x_axis = "sessions";
    lab.server.drop_database(db).await?;
    Ok(outcome)
}

/// The deepest fall of each round.
fn falls(outcome: &Outcome, system: System) -> Vec<f64> {
    let rounds = SESSIONS.map(|n| outcome.rounds(&label(system, n)));
    let count = rounds.iter().map(|values| values.len()).min().unwrap_or(0);
    let fall = |round: usize| deepest_fall(&rounds.map(|values| values[round]));
    (0..count).map(fall).collect()
}

/// The smallest ratio of a rate to the best one before it.
fn deepest_fall(rates: &[f64]) -> f64 {
    let mut best = f64::MIN;
    let mut fall = f64::INFINITY;
    for rate in rates {
        if best > f64::MIN {
            fall = fall.min(rate / best);
        }
        best = best.max(*rate);
    }
    fall
}

fn label(system: System, sessions: usize) -> String {
    format!("{}, {sessions} sessions", system.label())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fall_is_measured_from_the_best_rate_before() {
        assert!((deepest_fall(&[1.0, 4.0, 2.0, 3.0]) - 0.5).abs() < f64::EPSILON);
        assert!((deepest_fall(&[1.0, 2.0, 3.0]) - 1.5).abs() < f64::EPSILON);
    }
}
