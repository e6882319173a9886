//! The text for the terminal, and the file of results.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::outcome::{Check, Outcome, Sample, spread};

/// Everything about one run.
#[derive(Serialize)]
pub struct Report {
    pub started: String,
    pub mode: &'static str,
    pub rounds: usize,
    pub seconds: f64,
    pub cpus: usize,
    pub server: Vec<(String, String)>,
    pub outcomes: Vec<Outcome>,
}

impl Report {
    pub fn write(&self, file: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self)?;
        fs::write(file, json).with_context(|| format!("writing {}", file.display()))
    }

    /// Every comparison, those with a goal and how it was met.
    pub fn summary(&self) -> String {
        let heading = ["#", "comparison", "value", "of the rounds", "goal", ""];
        let mut rows = vec![heading.map(str::to_owned)];
        for outcome in &self.outcomes {
            rows.extend(outcome.checks.iter().map(|check| check_row(outcome.number, check)));
        }
        table(&rows)
    }

    pub fn write_goals(&self, file: &Path) -> Result<()> {
        fs::write(file, self.goals()).with_context(|| format!("writing {}", file.display()))
    }

    /// The goals as a table in Markdown, to be pasted into a page.
    pub fn goals(&self) -> String {
        let (rounds, mode) = (self.rounds, self.mode);
        let mut text = format!(
            "Medians of {rounds} interleaved rounds ({mode} run); in brackets the smallest and the \
             largest of the rounds.\n\n\
             | # | scenario | goal | reached | |\n|---|---|---|---|---|\n"
        );
        for outcome in &self.outcomes {
            let judged = outcome.checks.iter().filter(|check| check.goal.is_some());
            text.extend(judged.map(|check| goal_row(outcome, check)));
        }
        text
    }
}

fn goal_row(outcome: &Outcome, check: &Check) -> String {
    let [number, what, value, spread, goal, _] = check_row(outcome.number, check);
    let spread = if spread.is_empty() { spread } else { format!(" ({spread})") };
    let (value, verdict) = match check.met {
        Some(true) => (value, "met"),
        _ => (format!("**{value}**"), "**missed**"),
    };
    let title = outcome.title;
    format!("| {number} | {title}: {what} | {goal} | {value}{spread} | {verdict} |\n")
}

/// The figures of one scenario.
pub fn details(outcome: &Outcome) -> String {
    let heading = ["", "median", "of the rounds", "unit", "p50 ms", "p95 ms", "p99 ms"];
    let mut rows = vec![heading.map(str::to_owned)];
    rows.extend(outcome.samples.iter().map(sample_row));
    format!("\n{}. {}\n{}\n{}", outcome.number, outcome.title, outcome.method, table(&rows))
}

fn check_row(number: u8, check: &Check) -> [String; 6] {
    let verdict = match check.met {
        Some(true) => "met",
        Some(false) => "MISSED",
        None => "",
    };
    [
        number.to_string(),
        check.what.clone(),
        format!("{} {}", figure(check.value), check.unit),
        range(check.spread),
        check.goal.map(|goal| goal.text(check.unit)).unwrap_or_default(),
        verdict.to_owned(),
    ]
}

fn sample_row(sample: &Sample) -> [String; 7] {
    let ms = |value: Option<f64>| value.map(figure).unwrap_or_default();
    [
        sample.label.clone(),
        figure(sample.median),
        range(spread(&sample.values)),
        sample.unit.to_owned(),
        ms(sample.p50_ms),
        ms(sample.p95_ms),
        ms(sample.p99_ms),
    ]
}

fn range(spread: Option<(f64, f64)>) -> String {
    spread.map_or_else(String::new, |(low, high)| format!("{} … {}", figure(low), figure(high)))
}

/// Three digits, or all before the decimal point.
pub fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// Columns as wide as they must be. The first one is aligned to the left, the others to the right.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let widths: [usize; N] =
        std::array::from_fn(|n| rows.iter().map(|row| row[n].chars().count()).max().unwrap_or(0));
    let widest = (0..N).max_by_key(|n| widths[*n]).unwrap_or(0);
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).enumerate().map(|(n, (cell, width))| {
            if n == widest { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Goal;

    #[test]
    fn the_table_of_goals_says_what_was_missed() {
        let mut outcome = Outcome::new(4, "pop 1", "");
        let goal = Some(Goal::AtLeast(2.0));
        outcome.checks.push(Check::rounds("a / b", &[1.5, 2.5, 1.75], "×", goal));
        outcome.checks.push(Check::value("c", 2.0, "×", goal));
        outcome.checks.push(Check::value("only reported", 2.0, "×", None));
        let report = Report {
            started: String::new(),
            mode: "full",
            rounds: 3,
            seconds: 0.0,
            cpus: 2,
            server: Vec::new(),
            outcomes: vec![outcome],
        };
        let goals = report.goals();
        let rows: Vec<&str> = goals.lines().skip(4).collect();
        let expected = [
            "| 4 | pop 1: a / b | ≥ 2 × | **1.75 ×** (1.50 … 2.50) | **missed** |",
            "| 4 | pop 1: c | ≥ 2 × | 2.00 × | met |",
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!([0.1234, 1.234, 12.34, 1234.5].map(figure), ["0.123", "1.23", "12.3", "1234"]);
    }
}
