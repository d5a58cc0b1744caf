//! Values over time.

use plotters::prelude::*;

use super::{Labels, axes, color, document, legend, plottable, range, rule, tick};
use crate::ReportError;

/// One curve of a [`TimeSeries`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// Its name in the legend.
    pub label: String,
    /// Time in seconds and value, in the order of time. `None` is unknown and interrupts the curve.
    pub points: Vec<(f64, Option<f64>)>,
}

/// A horizontal dashed line, such as the border between two tiers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Level {
    /// Its name, written on the line.
    pub label: String,
    /// Its value.
    pub at: f64,
}

/// What [`time_series`] draws.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimeSeries {
    /// Stands above the plot.
    pub title: String,
    /// Quantity and unit of the values, for example `evicted, %`.
    pub y_label: String,
    /// The curves.
    pub lines: Vec<Line>,
    /// Levels to compare with.
    pub levels: Vec<Level>,
}

/// Values over time as SVG; a curve has a gap wherever its value is unknown.
///
/// # Errors
///
/// [`ReportError::Draw`] if the plotting library fails.
pub fn time_series(plot: &TimeSeries) -> Result<String, ReportError> {
    let runs: Vec<_> = plot.lines.iter().map(|line| runs(&line.points)).collect();
    let known = || runs.iter().flatten().flatten();
    let x = range(known().map(|(time, _)| *time));
    let levels: Vec<_> = plot.levels.iter().filter(|level| plottable(level.at)).collect();
    let y = range(known().map(|(_, value)| *value).chain(levels.iter().map(|level| level.at)));
    // Zero belongs on the axis where values are positive: it shows how large the changes really are.
    let bottom = if y.start >= 0.0 { 0.0 } else { y.start };
    let top = y.end + (y.end - bottom) * 0.15;
    let labels = Labels { title: &plot.title, x: "time, s", y: &plot.y_label, x_tick: tick };
    document(&plot.title, |area| {
        let mut chart = axes(area, &labels, x.clone(), bottom..top)?;
        for level in levels {
            rule(&mut chart, (x.start, level.at), (x.end, level.at), &level.label, (x.start, level.at))?;
        }
        for (index, (line, runs)) in plot.lines.iter().zip(&runs).enumerate() {
            let color = color(index);
            for run in runs {
                chart.draw_series(LineSeries::new(run.iter().copied(), color.stroke_width(2)))?;
            }
            // A dot a value: a single value between two gaps would otherwise be invisible.
            let dots = runs.iter().flatten().map(|point| Circle::new(*point, 2, color.filled()));
            chart
                .draw_series(dots)?
                .label(crate::look::printable(&line.label, &[]))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
        }
        if plot.lines.len() > 1 { legend(&mut chart, SeriesLabelPosition::UpperRight) } else { Ok(()) }
    })
}

/// Splits a curve at its unknown values.
fn runs(points: &[(f64, Option<f64>)]) -> Vec<Vec<(f64, f64)>> {
    let known = |(time, value): &(f64, Option<f64>)| {
        value.filter(|value| plottable(*value) && plottable(*time)).map(|value| (*time, value))
    };
    points
        .split(|point| known(point).is_none())
        .map(|run| run.iter().filter_map(known).collect::<Vec<_>>())
        .filter(|run| !run.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_values_split_a_curve() {
        let points = [
            (0.0, Some(1.0)),
            (1.0, Some(2.0)),
            (2.0, None),
            (3.0, Some(f64::NAN)),
            (4.0, Some(3.0)),
            (5.0, None),
        ];
        assert_eq!(runs(&points), [vec![(0.0, 1.0), (1.0, 2.0)], vec![(4.0, 3.0)]]);
        assert!(runs(&[]).is_empty());
    }
}
