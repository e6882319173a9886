//! Draws a run.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::outcome::{Check, Goal, Line, Outcome};
use crate::report::figure;

const WIDTH: u32 = 1000;
const ROW: u32 = 22;
/// The width kept for the names of the bars.
const NAMES: i32 = 480;
const MET: RGBColor = RGBColor(46, 125, 50);
const MISSED: RGBColor = RGBColor(198, 40, 40);
const COLOURS: [RGBColor; 3] =
    [RGBColor(21, 101, 192), RGBColor(239, 108, 0), RGBColor(97, 97, 97)];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws one bar for each goal: by how much it was surpassed or missed, on a logarithmic scale.
pub fn goals(file: &Path, outcomes: &[Outcome]) -> Result<()> {
    let bars: Vec<(u8, &Check, f64)> = outcomes
        .iter()
        .flat_map(|o| o.checks.iter().map(|c| (o.number, c)))
        .filter_map(|(number, check)| Some((number, check, margin(check)?)))
        .collect();
    if bars.is_empty() {
        return Ok(());
    }
    let height = ROW * (bars.len() as u32 + 3);
    let area = SVGBackend::new(file, (WIDTH, height)).into_drawing_area();
    draw_goals(&area, &bars).map_err(|error| anyhow!("{}: {error}", file.display()))
}

/// No bar is longer: a goal of zero that is missed would be missed by infinity.
const LONGEST: f64 = 32.0;

/// 1 where the goal is just met, more where it is surpassed. None where goal and value are zero.
fn margin(check: &Check) -> Option<f64> {
    let margin = match check.goal? {
        Goal::AtLeast(bound) => check.value / bound,
        Goal::AtMost(bound) | Goal::Below(bound) => bound / check.value,
    };
    (!margin.is_nan()).then(|| margin.clamp(1.0 / LONGEST, LONGEST))
}

fn draw_goals(area: &Area, bars: &[(u8, &Check, f64)]) -> Result<(), Box<dyn std::error::Error>> {
    area.fill(&WHITE)?;
    let farthest = bars.iter().map(|bar| bar.2.log2().abs()).fold(1.0, f64::max);
    let right = f64::from(WIDTH as i32 - NAMES - 90);
    let zero = f64::from(NAMES) + right / 2.0 + 10.0;
    let x = |margin: f64| (zero + margin.log2() / farthest * right / 2.0) as i32;
    let text = ("sans-serif", 13).into_font().color(&BLACK);

    let heading = "measured against the goal (the line), logarithmic; right of it: met";
    area.draw(&Text::new(heading, (10, 8), ("sans-serif", 15)))?;
    for (n, (number, check, margin)) in bars.iter().enumerate() {
        let y = (ROW * (n as u32 + 2)) as i32;
        let middle = y + ROW as i32 / 2;
        let name = text.pos(Pos::new(HPos::Right, VPos::Center));
        area.draw(&Text::new(format!("{number}  {}", check.what), (NAMES, middle), name))?;
        let colour = if check.met == Some(true) { MET } else { MISSED };
        let (from, to) = (x(1.0).min(x(*margin)), x(1.0).max(x(*margin)));
        area.draw(&Rectangle::new([(from, y + 3), (to, y + ROW as i32 - 3)], colour.filled()))?;
        let value = text.pos(Pos::new(HPos::Left, VPos::Center));
        let label = format!("{} {}", figure(check.value), check.unit);
        area.draw(&Text::new(label, (to.max(x(1.0)) + 6, middle), value))?;
    }
    let bottom = (ROW * (bars.len() as u32 + 2)) as i32;
    area.draw(&PathElement::new(vec![(x(1.0), ROW as i32 * 2), (x(1.0), bottom)], BLACK))?;
    area.present()?;
    Ok(())
}

/// Draws the lines of one scenario.
pub fn lines(file: &Path, outcome: &Outcome) -> Result<()> {
    let area = SVGBackend::new(file, (WIDTH, WIDTH * 45 / 100)).into_drawing_area();
    draw_lines(&area, outcome).map_err(|error| anyhow!("{}: {error}", file.display()))
}

fn draw_lines(area: &Area, outcome: &Outcome) -> Result<(), Box<dyn std::error::Error>> {
    area.fill(&WHITE)?;
    let points = || outcome.lines.iter().flat_map(|line| &line.points);
    let left = points().map(|p| p.0).fold(0.0, f64::min);
    let right = points().map(|p| p.0).fold(1.0, f64::max);
    let top = points().map(|p| p.1).fold(1.0, f64::max) * 1.05;
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .caption(format!("{}. {}", outcome.number, outcome.title), ("sans-serif", 18))
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(left..right, 0.0..top)?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_desc(outcome.x_axis)
        .y_desc(outcome.y_axis)
        .x_label_formatter(&|x| format!("{x}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .draw()?;
    for (Line { label, points }, colour) in outcome.lines.iter().zip(COLOURS.iter().cycle()) {
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(label)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], *colour));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_of_zero_that_is_missed_has_a_bar_of_finite_length() {
        let of = |value: f64| margin(&Check::value("", value, "/min", Some(Goal::AtMost(0.0))));
        assert_eq!((of(0.0), of(12.0)), (None, Some(1.0 / LONGEST)));
        let ratio = Check::value("", 3.0, "×", Some(Goal::AtLeast(2.0)));
        assert_eq!(margin(&ratio), Some(1.5));
    }
}
