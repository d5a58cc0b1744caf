//! How long cache lines survive: measured points and the fitted curve.

use plotters::prelude::*;

use super::{Labels, axes, color, document, legend, plottable, range, tick};
use crate::ReportError;

/// The measured share of lines that are still cached after a wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SurvivalPoint {
    /// The wait, in milliseconds.
    pub wait_ms: f64,
    /// Share of lines still cached, 0 to 1.
    pub share: f64,
    /// 95 % confidence interval of the share, if known.
    pub ci95: Option<[f64; 2]>,
}

/// A fitted curve and what it is called in the legend.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// For example `half-life 3.2 ms (2.9-3.6)`.
    pub label: String,
    /// Points of the curve: wait in milliseconds and share from 0 to 1.
    pub curve: Vec<(f64, f64)>,
}

/// What [`survival`] draws.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SurvivalPlot {
    /// Stands above the plot.
    pub title: String,
    /// The measurement.
    pub points: Vec<SurvivalPoint>,
    /// The fit; none if it is unknown.
    pub fit: Option<Fit>,
}

/// A survival curve as SVG: measured points with their intervals, and the fitted curve if there is one.
///
/// # Errors
///
/// [`ReportError::Draw`] if the plotting library fails.
pub fn survival(plot: &SurvivalPlot) -> Result<String, ReportError> {
    let points: Vec<_> =
        plot.points.iter().filter(|point| plottable(point.wait_ms) && plottable(point.share)).collect();
    let curve = plot.fit.iter().flat_map(|fit| &fit.curve).copied();
    let curve: Vec<_> = curve.filter(|(wait, share)| plottable(*wait) && plottable(*share)).collect();
    let waits = points.iter().map(|point| point.wait_ms).chain(curve.iter().map(|(wait, _)| *wait));
    let waits = range(waits.chain([0.0]));
    let labels = Labels {
        title: &plot.title,
        x: "time since the lines were loaded, ms",
        y: "still cached, %",
        x_tick: tick,
    };
    document(&plot.title, |area| {
        let mut chart = axes(area, &labels, waits.start..waits.end * 1.03, 0.0..105.0)?;
        let measured = color(0);
        let percent = |share: f64| share.clamp(0.0, 1.0) * 100.0;
        if let Some(fit) = &plot.fit {
            let fitted = color(4);
            let curve = curve.iter().map(|(wait, share)| (*wait, percent(*share)));
            chart
                .draw_series(LineSeries::new(curve, fitted.stroke_width(2)))?
                .label(crate::look::printable(&fit.label, &[]))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], fitted.stroke_width(2)));
        }
        chart.draw_series(points.iter().filter_map(|point| {
            let [lo, hi] = point.ci95.filter(|ci| ci.iter().all(|bound| plottable(*bound)))?;
            let ends = [(point.wait_ms, percent(lo)), (point.wait_ms, percent(hi))];
            Some(PathElement::new(ends, measured.mix(0.6).stroke_width(2)))
        }))?;
        chart
            .draw_series(
                points
                    .iter()
                    .map(|point| Circle::new((point.wait_ms, percent(point.share)), 4, measured.filled())),
            )?
            .label("measured, 95 % interval")
            .legend(move |(x, y)| Circle::new((x + 8, y), 4, measured.filled()));
        legend(&mut chart, SeriesLabelPosition::UpperRight)
    })
}
