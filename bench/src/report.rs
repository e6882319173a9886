//! The text for the terminal, and the file of results.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::outcome::{Check, Outcome, Sample};

/// Everything about one run.
#[derive(Serialize)]
pub struct Report {
    pub started: String,
    pub mode: &'static str,
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

    /// The goals and how they were met.
    pub fn summary(&self) -> String {
        let mut rows = vec![["#", "comparison", "value", "goal", ""].map(str::to_owned)];
        for outcome in &self.outcomes {
            rows.extend(outcome.checks.iter().map(|check| check_row(outcome.number, check)));
        }
        table(&rows)
    }
}

/// The figures of one scenario.
pub fn details(outcome: &Outcome) -> String {
    let mut rows = vec![["", "median", "unit", "p50 ms", "p95 ms", "p99 ms"].map(str::to_owned)];
    rows.extend(outcome.samples.iter().map(sample_row));
    format!("\n{}. {}\n{}\n{}", outcome.number, outcome.title, outcome.method, table(&rows))
}

fn check_row(number: u8, check: &Check) -> [String; 5] {
    let verdict = match check.met {
        Some(true) => "met",
        Some(false) => "MISSED",
        None => "",
    };
    [
        number.to_string(),
        check.what.clone(),
        format!("{} {}", figure(check.value), check.unit),
        check.goal.map(|goal| goal.text(check.unit)).unwrap_or_default(),
        verdict.to_owned(),
    ]
}

fn sample_row(sample: &Sample) -> [String; 6] {
    let ms = |value: Option<f64>| value.map(figure).unwrap_or_default();
    [
        sample.label.clone(),
        figure(sample.median),
        sample.unit.to_owned(),
        ms(sample.p50_ms),
        ms(sample.p95_ms),
        ms(sample.p99_ms),
    ]
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

    #[test]
    fn figures_have_three_digits() {
        assert_eq!([0.1234, 1.234, 12.34, 1234.5].map(figure), ["0.123", "1.23", "12.3", "1234"]);
    }
}
