//! Plots as self-contained SVG documents: no scripts, no fonts, no references to anything outside.
//!
//! Values that are unknown, not finite or absurdly large (beyond ±10¹⁵) are left out as gaps, never drawn as
//! zero. A plot without any value has axes and no curve.

mod cumulative;
mod histogram;
mod series;
mod survival;

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

pub use cumulative::{Group, cumulative};
pub use histogram::latency_histogram;
pub use series::{Level, Line, TimeSeries, time_series};
pub use survival::{Fit, SurvivalPlot, SurvivalPoint, survival};

use crate::look::printable;
use crate::{ReportError, number};

const SIZE: (u32, u32) = (820, 420);
const FONT: (&str, u32) = ("sans-serif", 13);

/// Colors that people with any color vision can tell apart (Okabe and Ito, "Color Universal Design", 2008).
const PALETTE: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];
/// Lines that are not data: thresholds.
const RULE: RGBColor = RGBColor(120, 120, 120);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawError = DrawingAreaErrorKind<std::io::Error>;

fn color(index: usize) -> RGBColor {
    PALETTE[index % PALETTE.len()]
}

/// Whether a value can be placed on an axis.
fn plottable(value: f64) -> bool {
    const LARGEST: f64 = 1e15;
    value.is_finite() && value.abs() <= LARGEST
}

/// The range of the plottable values, widened so that it is not empty; 0 to 1 if there are none.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    const SMALLEST_SPAN: f64 = 1e-6;
    let known = values.filter(|value| plottable(*value));
    let Some((lo, hi)) = known.fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((lo, hi)) => Some((value.min(lo), value.max(hi))),
    }) else {
        return 0.0..1.0;
    };
    let least = SMALLEST_SPAN * lo.abs().max(hi.abs()).max(SMALLEST_SPAN);
    if hi - lo >= least { lo..hi } else { lo - least..hi + least }
}

/// Draws a document of the standard size.
fn document(
    title: &str,
    draw: impl FnOnce(&Area<'_>) -> Result<(), DrawError>,
) -> Result<String, ReportError> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    let drawn = area.fill(&WHITE).and_then(|()| draw(&area)).and_then(|()| area.present());
    drop(area);
    match drawn {
        Ok(()) => Ok(svg),
        Err(source) => Err(ReportError::Draw { title: title.to_owned(), source: Box::new(source) }),
    }
}

/// Words on a plot.
struct Labels<'a> {
    title: &'a str,
    x: &'a str,
    y: &'a str,
    /// How a number on the x axis is written: [`tick`], or [`log_tick`] where many lie close together.
    x_tick: fn(f64) -> String,
}

type Chart<'a, 'b, X> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, RangedCoordf64>>;

/// Axes, grid and title; numbers have three significant digits.
fn axes<'a, 'b, X>(
    area: &Area<'b>,
    labels: &Labels<'_>,
    x: X,
    y: Range<f64>,
) -> Result<Chart<'a, 'b, X::CoordDescType>, DrawError>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .caption(printable(labels.title, &[]), ("sans-serif", 16))
        .margin(10)
        .margin_right(24)
        .x_label_area_size(45)
        .y_label_area_size(70)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .axis_desc_style(FONT)
        .label_style(FONT)
        .x_labels(10)
        .y_labels(8)
        .x_label_formatter(&|value| (labels.x_tick)(*value))
        .y_label_formatter(&|value| tick(*value))
        .x_desc(printable(labels.x, &[]))
        .y_desc(printable(labels.y, &[]))
        .draw()?;
    Ok(chart)
}

/// A number on an axis, without trailing zeros.
fn tick(value: f64) -> String {
    let text = number::significant(value);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A number on a logarithmic axis: only 1, 2, 3 and 5 times a power of ten have room.
fn log_tick(value: f64) -> String {
    let text = tick(value);
    match text.trim_start_matches(['0', '.']).chars().next() {
        Some('1' | '2' | '3' | '5') => text,
        _ => String::new(),
    }
}

/// The box that says which color is which.
fn legend<'b: 'a, 'a, X>(chart: &mut Chart<'a, 'b, X>, position: SeriesLabelPosition) -> Result<(), DrawError>
where
    X: Ranged<ValueType = f64>,
{
    chart
        .configure_series_labels()
        .position(position)
        .label_font(FONT)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.2))
        .draw()
}

/// A dashed line from `from` to `to` with its label at `label_at`.
fn rule<X>(
    chart: &mut Chart<'_, '_, X>,
    from: (f64, f64),
    to: (f64, f64),
    label: &str,
    label_at: (f64, f64),
) -> Result<(), DrawError>
where
    X: Ranged<ValueType = f64>,
{
    chart.draw_series(DashedLineSeries::new([from, to], 5, 4, RULE.stroke_width(1)))?;
    let style = FONT.into_font().color(&RULE);
    chart.draw_series([EmptyElement::at(label_at) + Text::new(printable(label, &[]), (4, 2), style)])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_never_empty_and_ignores_what_cannot_be_drawn() {
        assert_eq!(range([].into_iter()), 0.0..1.0);
        assert_eq!(range([f64::NAN, f64::INFINITY, 1e300].into_iter()), 0.0..1.0);
        assert_eq!(range([3.0, 1.0, f64::NAN, 2.0].into_iter()), 1.0..3.0);
        for constant in [0.0, 5.0, -1e15] {
            let found = range([constant].into_iter());
            assert!(found.start < constant && constant < found.end);
        }
    }

    #[test]
    fn ticks_have_no_trailing_zeros() {
        let ticks = [0.0, 0.5, 1.0, 12.5, 100.0, 1200.0].map(tick);
        assert_eq!(ticks, ["0", "0.5", "1", "12.5", "100", "1200"]);
        assert_eq!([0.02, 90.0, 500.0].map(log_tick), ["0.02", "", "500"]);
    }
}
