//! Distributions of several classes as outlines over one axis.

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::{Area, DrawError, Labels, axes, color, document, legend, log_tick, rule, tick};
use crate::histogram::{Bins, Histogram, Series};
use crate::{ReportError, number};

/// A histogram as SVG: the share of each class that falls into each bin, and the marks as dashed lines.
///
/// Shares are of all values of the class, those outside the bins included, so a curve that misses some does
/// not add up to 100 %; the legend then says how many. The axis is logarithmic if the bins are.
///
/// # Errors
///
/// [`ReportError::Draw`] if the plotting library fails.
pub fn latency_histogram(title: &str, unit: &str, histogram: &Histogram) -> Result<String, ReportError> {
    let edges = histogram.bins().edges();
    let range = edges[0]..edges[edges.len() - 1];
    let x_tick = if histogram.bins().is_log() { log_tick } else { tick };
    let labels = Labels { title, x: unit, y: "share of the class, %", x_tick };
    document(title, |area| {
        if histogram.bins().is_log() {
            draw(area, &labels, range.log_scale(), histogram)
        } else {
            draw(area, &labels, range, histogram)
        }
    })
}

fn draw<X>(area: &Area<'_>, labels: &Labels<'_>, x: X, histogram: &Histogram) -> Result<(), DrawError>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
{
    let outlines: Vec<_> =
        histogram.series().iter().map(|series| outline(histogram.bins(), series)).collect();
    let highest = outlines.iter().flatten().map(|(_, share)| *share).fold(0.0, f64::max);
    let top = if highest > 0.0 { highest * 1.15 } else { 100.0 };
    let mut chart = axes(area, labels, x, 0.0..top)?;
    for (index, (series, outline)) in histogram.series().iter().zip(outlines).enumerate() {
        let color = color(index);
        chart
            .draw_series(LineSeries::new(outline, color.stroke_width(2)))?
            .label(name(series))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    let edges = histogram.bins().edges();
    let visible = edges[0]..=edges[edges.len() - 1];
    for (index, mark) in histogram.marks().iter().filter(|mark| visible.contains(&mark.at)).enumerate() {
        let label = format!("{} {}", mark.label, number::significant(mark.at));
        // Neighboring labels stand at different heights, so that they stay readable.
        let height = top * (0.99 - 0.05 * (index % 4) as f64);
        rule(&mut chart, (mark.at, 0.0), (mark.at, top), &label, (mark.at, height))?;
    }
    if !histogram.series().is_empty() {
        legend(&mut chart, SeriesLabelPosition::UpperRight)?;
    }
    Ok(())
}

/// The steps of a class's shares in percent.
fn outline(bins: &Bins, series: &Series) -> Vec<(f64, f64)> {
    let total = series.total().max(1) as f64;
    let edges = bins.edges();
    let steps = series.counts.iter().zip(edges.windows(2)).flat_map(|(count, edge)| {
        let share = *count as f64 / total * 100.0;
        [(edge[0], share), (edge[1], share)]
    });
    [(edges[0], 0.0)].into_iter().chain(steps).chain([(edges[edges.len() - 1], 0.0)]).collect()
}

fn name(series: &Series) -> String {
    let mut text = format!("{} (n={}", crate::look::printable(&series.label, &[]), series.total());
    let outside = series.below + series.above;
    if outside > 0 {
        text += &format!(", {outside} outside");
    }
    text + ")"
}
