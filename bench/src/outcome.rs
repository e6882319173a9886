//! The result of a scenario: figures, and how they compare with the goals.

use serde::Serialize;

use crate::load::Latencies;

#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    pub label: String,
    /// The unit of the values.
    pub unit: &'static str,
    /// One value per round; empty where only the latency matters.
    pub values: Vec<f64>,
    pub median: f64,
    pub p50_ms: Option<f64>,
    pub p95_ms: Option<f64>,
    pub p99_ms: Option<f64>,
}

impl Sample {
    pub fn of_rates(label: impl Into<String>, rates: Vec<f64>, latencies: &Latencies) -> Self {
        let median = median(&rates);
        Self { median, values: rates, unit: "msg/s", ..Self::of_latencies(label, latencies) }
    }

    pub fn of_latencies(label: impl Into<String>, latencies: &Latencies) -> Self {
        let at = |q: f64| {
            let is_known = !latencies.is_empty();
            is_known.then(|| latencies.value_at_quantile(q) as f64 / 1000.0)
        };
        Self {
            label: label.into(),
            unit: "ms",
            values: Vec::new(),
            median: at(0.5).unwrap_or_default(),
            p50_ms: at(0.5),
            p95_ms: at(0.95),
            p99_ms: at(0.99),
        }
    }

    pub fn of_values(label: impl Into<String>, unit: &'static str, values: Vec<f64>) -> Self {
        let median = median(&values);
        Self { label: label.into(), unit, values, median, p50_ms: None, p95_ms: None, p99_ms: None }
    }
}

/// The smallest and the largest value, where there are several.
pub fn spread(values: &[f64]) -> Option<(f64, f64)> {
    let smallest = values.iter().copied().reduce(f64::min)?;
    let largest = values.iter().copied().reduce(f64::max)?;
    (values.len() > 1).then_some((smallest, largest))
}

pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

impl Goal {
    fn met_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
            Self::Below(bound) => value < bound,
        }
    }

    pub fn text(self, unit: &str) -> String {
        match self {
            Self::AtLeast(bound) => format!("≥ {bound} {unit}"),
            Self::AtMost(bound) => format!("≤ {bound} {unit}"),
            Self::Below(bound) => format!("< {bound} {unit}"),
        }
    }
}

/// One comparison. Without a goal it is only reported.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    pub what: String,
    pub value: f64,
    /// The smallest and the largest of the rounds whose median the value is.
    pub spread: Option<(f64, f64)>,
    /// The unit of the value: `×` for ratios.
    pub unit: &'static str,
    pub goal: Option<Goal>,
    pub met: Option<bool>,
}

impl Check {
    pub fn ratio(what: impl Into<String>, of: f64, to: f64, goal: Option<Goal>) -> Self {
        Self::value(what, of / to, "×", goal)
    }

    pub fn value(
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        goal: Option<Goal>,
    ) -> Self {
        let met = goal.map(|g| g.met_by(value));
        Self { what: what.into(), value, spread: None, unit, goal, met }
    }

    /// The median of one value per round.
    pub fn rounds(
        what: impl Into<String>,
        values: &[f64],
        unit: &'static str,
        goal: Option<Goal>,
    ) -> Self {
        Self { spread: spread(values), ..Self::value(what, median(values), unit, goal) }
    }

    /// The median of the rounds' ratios. The turns of a round follow each other, so a machine that
    /// is slower for a while slows both. Where there are no rounds, the ratio of the two medians.
    pub fn paired(what: impl Into<String>, of: &Sample, to: &Sample, goal: Option<Goal>) -> Self {
        if of.values.is_empty() || of.values.len() != to.values.len() {
            return Self::ratio(what, of.median, to.median, goal);
        }
        let ratios: Vec<f64> = of.values.iter().zip(&to.values).map(|(of, to)| of / to).collect();
        Self::rounds(what, &ratios, "×", goal)
    }
}

/// A curve to plot.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub label: String,
    pub points: Vec<(f64, f64)>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub number: u8,
    pub title: &'static str,
    /// How it was measured.
    pub method: String,
    pub samples: Vec<Sample>,
    pub checks: Vec<Check>,
    /// The axes of the lines below.
    pub x_axis: &'static str,
    pub y_axis: &'static str,
    pub lines: Vec<Line>,
}

impl Outcome {
    pub fn new(number: u8, title: &'static str, method: impl Into<String>) -> Self {
        Self {
            number,
            title,
            method: method.into(),
            samples: Vec::new(),
            checks: Vec::new(),
            x_axis: "",
            y_axis: "messages/s",
            lines: Vec::new(),
        }
    }

    pub fn sample(&self, label: &str) -> Option<&Sample> {
        self.samples.iter().find(|sample| sample.label == label)
    }

    /// The median of the sample that has this label.
    pub fn median(&self, label: &str) -> f64 {
        self.sample(label).map_or(f64::NAN, |sample| sample.median)
    }

    /// The values of the rounds of a sample.
    pub fn rounds(&self, label: &str) -> &[f64] {
        self.sample(label).map_or(&[], |sample| &sample.values)
    }

    pub fn compare(&mut self, of: &str, to: &str, goal: Option<Goal>) {
        let what = format!("{of} / {to}");
        let check = match (self.sample(of), self.sample(to)) {
            (Some(of), Some(to)) => Check::paired(what, of, to, goal),
            _ => Check::value(what, f64::NAN, "×", goal),
        };
        self.checks.push(check);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_between() {
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < f64::EPSILON);
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
    }

    #[test]
    fn ratios_are_those_of_each_round() {
        let of = Sample::of_values("of", "msg/s", vec![20.0, 5.0, 40.0]);
        let to = Sample::of_values("to", "msg/s", vec![10.0, 1.0, 80.0]);
        let check = Check::paired("of / to", &of, &to, Some(Goal::AtLeast(2.0)));
        assert_eq!((check.value, check.spread, check.met), (2.0, Some((0.5, 5.0)), Some(true)));
    }

    #[test]
    fn one_round_has_no_spread() {
        assert_eq!(Check::rounds("one", &[3.0], "ms", None).spread, None);
    }

    #[test]
    fn below_is_strict() {
        assert!(!Goal::Below(2.0).met_by(2.0));
        assert!(Goal::AtMost(2.0).met_by(2.0));
    }
}
