//! Histograms of several classes of values over the same bins.

mod text;

use crate::ReportError;

/// Adjacent bins over a range. Every bin holds its lower edge; the last one holds both of its edges.
#[derive(Clone, Debug, PartialEq)]
pub struct Bins {
    edges: Vec<f64>,
    log: bool,
}

impl Bins {
    /// `count` bins of equal width from `lo` to `hi`.
    ///
    /// # Errors
    ///
    /// [`ReportError::Bins`] if there is no such division: no bins, an empty or infinite range, or bins
    /// too narrow for the precision of the numbers.
    pub fn linear(lo: f64, hi: f64, count: usize) -> Result<Self, ReportError> {
        Self::between(lo, hi, count, false)
    }

    /// `count` bins of equal ratio from `lo` to `hi`, both above zero.
    ///
    /// # Errors
    ///
    /// As for [`Bins::linear`], or `lo` is not above zero.
    pub fn log(lo: f64, hi: f64, count: usize) -> Result<Self, ReportError> {
        Self::between(lo, hi, count, true)
    }

    fn between(lo: f64, hi: f64, count: usize, log: bool) -> Result<Self, ReportError> {
        let scale = if log { "logarithmic" } else { "linear" };
        let error = ReportError::Bins { lo, hi, count, scale };
        if count == 0 || !(hi - lo).is_finite() || lo >= hi || (log && lo <= 0.0) {
            return Err(error);
        }
        let inner = (1..count).map(|index| {
            let share = index as f64 / count as f64;
            if log { lo * (hi / lo).powf(share) } else { lo + (hi - lo) * share }
        });
        let edges: Vec<f64> = [lo].into_iter().chain(inner).chain([hi]).collect();
        let increasing = edges.windows(2).all(|pair| pair[0] < pair[1]);
        if increasing { Ok(Self { edges, log }) } else { Err(error) }
    }

    /// Edges in increasing order, one more than there are bins.
    #[must_use]
    pub fn edges(&self) -> &[f64] {
        &self.edges
    }

    /// The number of bins.
    #[must_use]
    pub fn count(&self) -> usize {
        self.edges.len() - 1
    }

    /// Whether the bins have equal ratios rather than equal widths.
    #[must_use]
    pub fn is_log(&self) -> bool {
        self.log
    }

    /// The bin that holds a value, if any does.
    fn find(&self, value: f64) -> Option<usize> {
        if value == self.edges[self.count()] {
            return Some(self.count() - 1);
        }
        let above = self.edges.partition_point(|edge| *edge <= value);
        (value.is_finite() && above > 0 && above <= self.count()).then(|| above - 1)
    }
}

/// How often the values of one class fall into each bin.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub label: String,
    pub counts: Vec<u64>,
    /// Values below the first bin, minus infinity among them.
    pub below: u64,
    /// Values above the last bin, infinity among them.
    pub above: u64,
    /// Values that are not a number.
    pub not_numbers: u64,
}

impl Series {
    /// Values that are numbers, inside the bins or not.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum::<u64>() + self.below + self.above
    }
}

/// A named position on the axis of values, such as a threshold.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub label: String,
    pub at: f64,
}

/// Distributions of several classes over the same bins, with marks such as thresholds.
///
/// No value is dropped silently: those outside the bins are counted and shown as such.
///
/// ```
/// use quell_report::{Bins, Histogram, Look};
///
/// let mut latency = Histogram::new(Bins::linear(0.0, 300.0, 3)?);
/// latency.add("hit", [40.0, 45.0, 60.0]).add("miss", [210.0, 250.0]).mark("threshold", 150.0);
/// println!("{}", latency.render("ticks", Look::default()));
/// # Ok::<(), quell_report::ReportError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Histogram {
    bins: Bins,
    series: Vec<Series>,
    marks: Vec<Mark>,
}

impl Histogram {
    /// A histogram without any class yet.
    #[must_use]
    pub fn new(bins: Bins) -> Self {
        Self { bins, series: Vec::new(), marks: Vec::new() }
    }

    /// Adds a class of values.
    pub fn add(&mut self, label: impl Into<String>, values: impl IntoIterator<Item = f64>) -> &mut Self {
        let counts = vec![0; self.bins.count()];
        let mut series = Series { label: label.into(), counts, below: 0, above: 0, not_numbers: 0 };
        for value in values {
            match self.bins.find(value) {
                Some(bin) => series.counts[bin] += 1,
                None if value.is_nan() => series.not_numbers += 1,
                None if value < self.bins.edges[0] => series.below += 1,
                None => series.above += 1,
            }
        }
        self.series.push(series);
        self
    }

    /// Adds a named position, such as the threshold between two classes.
    pub fn mark(&mut self, label: impl Into<String>, at: f64) -> &mut Self {
        self.marks.push(Mark { label: label.into(), at });
        self
    }

    pub(crate) fn bins(&self) -> &Bins {
        &self.bins
    }

    pub(crate) fn series(&self) -> &[Series] {
        &self.series
    }

    pub(crate) fn marks(&self) -> &[Mark] {
        &self.marks
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn edges_belong_to_the_bin_above_except_the_last() {
        let bins = Bins::linear(0.0, 4.0, 4).unwrap();
        let found: Vec<_> = [-0.1, 0.0, 0.9, 1.0, 3.9, 4.0, 4.1].map(|v| bins.find(v)).to_vec();
        assert_eq!(found, [None, Some(0), Some(0), Some(1), Some(3), Some(3), None]);
    }

    #[test]
    fn logarithmic_bins_have_equal_ratios() {
        let bins = Bins::log(10.0, 1000.0, 4).unwrap();
        for pair in bins.edges().windows(2) {
            assert!((pair[1] / pair[0] - 100f64.powf(0.25)).abs() < 1e-9);
        }
    }

    #[test]
    fn impossible_ranges_are_refused() {
        for (lo, hi, count) in [(1.0, 1.0, 4), (2.0, 1.0, 4), (0.0, 1.0, 0), (f64::NAN, 1.0, 2)] {
            assert!(Bins::linear(lo, hi, count).is_err());
        }
        assert!(Bins::linear(0.0, f64::INFINITY, 2).is_err());
        assert!(Bins::linear(1.0, 1.0 + f64::EPSILON, 10).is_err());
        assert!(Bins::log(0.0, 1.0, 2).is_err());
    }

    proptest! {
        #[test]
        fn every_value_is_counted_once(
            lo in -1e6..1e6f64,
            width in 1e-3..1e6f64,
            count in 1..50usize,
            values: Vec<f64>,
        ) {
            let mut histogram = Histogram::new(Bins::linear(lo, lo + width, count).unwrap());
            histogram.add("a", values.iter().copied());
            let series = &histogram.series()[0];
            prop_assert_eq!(series.total() + series.not_numbers, values.len() as u64);
        }

        #[test]
        fn a_value_lies_between_the_edges_of_its_bin(share in 0.0..1.0f64, count in 1..50usize) {
            let bins = Bins::log(0.5, 4e5, count).unwrap();
            let value = 0.5 + share * (4e5 - 0.5);
            let bin = bins.find(value).unwrap();
            prop_assert!(bins.edges()[bin] <= value && value <= bins.edges()[bin + 1]);
        }
    }
}
