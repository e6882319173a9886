//! Scenario 5: more and more consumers.

use anyhow::Result;

use super::consume::single_backlog;
use crate::job::System;
use crate::lab::{Contender, Lab};
use crate::outcome::{Check, Goal, Line, Outcome};

const SESSIONS: [usize; 5] = [16, 32, 64, 128, 256];
const SYSTEMS: [System; 2] = [System::Queen, System::Pgmq];
/// A fall of less than a tenth is noise.
const NO_FALL: f64 = 0.9;

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
                  of which 10 % count as noise";
    let mut outcome = Outcome::new(5, "16 to 256 sessions in pop 1 + ack 1", method);
    outcome.samples = lab.contest(&db, &contenders).await?;
    for system in SYSTEMS {
        let rates = SESSIONS.map(|n| outcome.median(&label(system, n)));
        let goal = (system == System::Queen).then_some(Goal::AtLeast(NO_FALL));
        let what = format!("{}, more sessions / fewer, worst", system.label());
        outcome.checks.push(Check::value(what, deepest_fall(&rates), "×", goal));
        let points = SESSIONS.iter().map(|n| *n as f64).zip(rates).collect();
        outcome.lines.push(Line { label: system.label().to_owned(), points });
    }
    outcome.x_axis = "sessions";
    lab.server.drop_database(db).await?;
    Ok(outcome)
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
