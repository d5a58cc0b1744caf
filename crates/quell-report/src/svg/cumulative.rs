//! Cumulative distributions of several groups on one logarithmic axis.

use plotters::prelude::*;

use super::{Labels, axes, color, document, legend, log_tick, plottable, range};
use crate::ReportError;
use crate::look::printable;

/// Most points drawn of one curve; between them the curve is straight.
const MOST_POINTS: usize = 400;

/// One group of values, such as an arm of an experiment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Its name in the legend.
    pub label: String,
    /// Its values in any order, in the plot's unit; those that are not positive are left out.
    pub values: Vec<f64>,
}

/// The share of each group's values at or below x, in percent, as SVG; x is logarithmic.
///
/// # Errors
///
/// [`ReportError::Draw`] if the plotting library fails.
pub fn cumulative(title: &str, x: &str, groups: &[Group]) -> Result<String, ReportError> {
    let curves: Vec<(&str, Vec<(f64, f64)>)> =
        groups.iter().map(|group| (group.label.as_str(), curve(&group.values))).collect();
    let values = range(curves.iter().flat_map(|(_, curve)| curve.iter().map(|(value, _)| *value)));
    let low = if values.start > 0.0 { values.start } else { values.end / 1e3 };
    let labels = Labels { title, x, y: "samples at or below, %", x_tick: log_tick };
    document(title, |area| {
        let mut chart = axes(area, &labels, (low * 0.9..values.end * 1.1).log_scale(), 0.0..102.0)?;
        for (index, (label, curve)) in curves.iter().enumerate() {
            let style = color(index).stroke_width(2);
            chart
                .draw_series(LineSeries::new(curve.iter().copied(), style))?
                .label(printable(label, &[]))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
        }
        if curves.is_empty() { Ok(()) } else { legend(&mut chart, SeriesLabelPosition::LowerRight) }
    })
}

fn curve(values: &[f64]) -> Vec<(f64, f64)> {
    let mut sorted: Vec<f64> =
        values.iter().copied().filter(|value| plottable(*value) && *value > 0.0).collect();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let step = (n / MOST_POINTS).max(1);
    let point = |index: usize| (sorted[index], (index + 1) as f64 / n as f64 * 100.0);
    let mut points: Vec<(f64, f64)> = (0..n).step_by(step).map(point).collect();
    if let Some(last) = n.checked_sub(1).filter(|last| last % step != 0) {
        points.push(point(last));
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_rises_to_all_of_the_values() {
        let values: Vec<f64> = (1..=1_001).rev().map(f64::from).chain([0.0, f64::NAN, -1.0]).collect();
        let curve = curve(&values);
        assert!(curve.len() <= 600 && curve.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1));
        assert_eq!(curve.last(), Some(&(1_001.0, 100.0)));
    }

    #[test]
    fn every_group_is_named_and_empty_data_is_no_error() {
        let group = |label: &str, values: &[f64]| Group { label: label.to_owned(), values: values.to_vec() };
        let svg = cumulative("t", "us", &[group("global", &[1.0, 50.0]), group("targeted", &[2.0])]).unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let texts: Vec<&str> = document.descendants().filter_map(|node| node.text()).map(str::trim).collect();
        assert!(texts.contains(&"global") && texts.contains(&"targeted"), "{texts:?}");
        roxmltree::Document::parse(&cumulative("t", "us", &[]).unwrap()).unwrap();
        cumulative("t", "us", &[group("none", &[0.0, f64::NAN])]).unwrap();
    }
}
