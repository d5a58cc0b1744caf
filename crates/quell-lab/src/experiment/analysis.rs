//! From samples to summaries and comparisons.

use std::collections::BTreeMap;

use quell_core::stats::clustered::{MIN_GUESTS, permutation_p, pooled_quantile, ratio_ci95};
use quell_core::stats::{quantile, quantile_floor};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use crate::protocol::Measurement;

/// Bootstrap resamples and, where not all are enumerated, permutations.
const RESAMPLES: usize = 2_000;
/// Fixed, so that the same samples give the same report.
const SEED: u64 = 0x51e1;
/// Two arms differ below this p-value, if the interval excludes 1 too.
const SIGNIFICANCE: f64 = 0.05;

/// Samples of one metric and one set of dimensions are comparable.
pub type Cell = (String, BTreeMap<String, String>);

/// A value for a table: nanoseconds in microseconds, everything else in its own unit.
#[must_use]
pub fn shown(unit: &str, value: f64) -> String {
    if unit == "ns" { format!("{:.1}", value / 1e3) } else { value.to_string() }
}

/// The samples of one guest.
#[derive(Clone, Debug)]
pub struct GuestSamples {
    /// Its arm.
    pub arm: String,
    /// What it measured, in order.
    pub samples: Vec<Measurement>,
}

/// One arm's samples of one cell, all its guests together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// What was measured.
    pub metric: String,
    /// On what.
    pub dimensions: BTreeMap<String, String>,
    /// In which arm.
    pub arm: String,
    /// Unit of the values.
    pub unit: String,
    /// Guests with such samples.
    pub guests: usize,
    /// Samples.
    pub samples: usize,
    /// Median, nearest rank.
    pub median: f64,
    /// Element `floor(0.99 (n − 1))` of the sorted samples, from 0.
    pub p99_floor: f64,
    /// 99th percentile by nearest rank.
    pub p99_nearest_rank: f64,
    /// Largest.
    pub max: f64,
    /// Sums of what the samples counted.
    pub counts: BTreeMap<String, u64>,
}

/// Two arms in one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// What was measured.
    pub metric: String,
    /// `median` or `p99` (nearest rank), of all samples of the arm.
    pub statistic: String,
    /// On what.
    pub dimensions: BTreeMap<String, String>,
    /// The baseline.
    pub arm_a: String,
    /// The other.
    pub arm_b: String,
    /// Statistic of `arm_a` divided by that of `arm_b`: 2 means that `arm_b` takes half as long.
    pub ratio: f64,
    /// 95 % interval of the ratio (guests resampled, then samples within); `null` with too few guests.
    pub ci95: Option<[f64; 2]>,
    /// Why there is no interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95_reason: Option<String>,
    /// Two-sided p-value of permuting whole guests; `null` with fewer than two guests in an arm.
    pub p_value: Option<f64>,
    /// Guests in `arm_a`.
    pub n_a: usize,
    /// Guests in `arm_b`.
    pub n_b: usize,
    /// The verdict.
    pub verdict: Verdict,
}

impl Comparison {
    /// The verdict with its subject, for tables.
    #[must_use]
    pub fn says(&self) -> String {
        match self.verdict {
            Verdict::Shorter | Verdict::Longer => format!("{} {}", self.arm_b, self.verdict.text()),
            Verdict::NoDifference | Verdict::Unknown => self.verdict.text().to_owned(),
        }
    }
}

/// What a comparison says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// `arm_b` takes less.
    Shorter,
    /// `arm_b` takes more.
    Longer,
    /// The data show no difference.
    NoDifference,
    /// Too few guests to say.
    Unknown,
}

impl Verdict {
    /// A difference needs both: a small p-value, and an interval without 1. Each alone is right in at least 95 %
    /// of equal arms, so both together are too.
    fn of(ratio: f64, ci95: Option<[f64; 2]>, p_value: Option<f64>) -> Self {
        let (Some([low, high]), Some(p)) = (ci95, p_value) else { return Self::Unknown };
        if p >= SIGNIFICANCE || (low <= 1.0 && 1.0 <= high) {
            Self::NoDifference
        } else if ratio > 1.0 {
            Self::Shorter
        } else {
            Self::Longer
        }
    }

    /// In words for tables.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Shorter => "shorter",
            Self::Longer => "LONGER",
            Self::NoDifference => "no difference",
            Self::Unknown => "unknown",
        }
    }
}

/// All samples by cell, and in it by arm and guest.
#[derive(Debug, Default)]
pub struct Table {
    cells: BTreeMap<Cell, CellData>,
    order: Vec<Cell>,
}

#[derive(Debug, Default)]
struct CellData {
    unit: String,
    arms: BTreeMap<String, Vec<Vec<f64>>>,
    counts: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Table {
    /// Sorts the samples of all guests.
    #[must_use]
    pub fn new(guests: &[GuestSamples]) -> Self {
        let mut table = Self::default();
        for guest in guests {
            let mut own: BTreeMap<Cell, Vec<f64>> = BTreeMap::new();
            for sample in &guest.samples {
                let cell = (sample.metric.clone(), sample.dimensions.clone());
                if !table.cells.contains_key(&cell) {
                    table.order.push(cell.clone());
                }
                let data = table.cells.entry(cell.clone()).or_default();
                data.unit.clone_from(&sample.unit);
                let counts = data.counts.entry(guest.arm.clone()).or_default();
                for (name, count) in &sample.counts {
                    *counts.entry(name.clone()).or_default() += count;
                }
                own.entry(cell).or_default().push(sample.value);
            }
            for (cell, values) in own {
                if let Some(data) = table.cells.get_mut(&cell) {
                    data.arms.entry(guest.arm.clone()).or_default().push(values);
                }
            }
        }
        table
    }

    /// The cells in the order in which they were measured.
    #[must_use]
    pub fn cells(&self) -> &[Cell] {
        &self.order
    }

    /// Unit of a cell's values.
    #[must_use]
    pub fn unit(&self, cell: &Cell) -> &str {
        self.cells.get(cell).map_or("", |data| &data.unit)
    }

    /// The values of an arm in a cell, by guest.
    #[must_use]
    pub fn values(&self, cell: &Cell, arm: &str) -> &[Vec<f64>] {
        self.cells.get(cell).and_then(|data| data.arms.get(arm)).map_or(&[], Vec::as_slice)
    }

    /// One summary per cell and arm, cell by cell.
    #[must_use]
    pub fn summaries(&self, arms: &[String]) -> Vec<Summary> {
        let one = |cell: &Cell, arm: &String| {
            let data = self.cells.get(cell)?;
            let guests = self.values(cell, arm);
            let all: Vec<f64> = guests.iter().flatten().copied().collect();
            Some(Summary {
                metric: cell.0.clone(),
                dimensions: cell.1.clone(),
                arm: arm.clone(),
                unit: data.unit.clone(),
                guests: guests.len(),
                samples: all.len(),
                median: quantile(&all, 0.5)?,
                p99_floor: quantile_floor(&all, 0.99)?,
                p99_nearest_rank: quantile(&all, 0.99)?,
                max: quantile(&all, 1.0)?,
                counts: data.counts.get(arm).cloned().unwrap_or_default(),
            })
        };
        self.order.iter().flat_map(|cell| arms.iter().filter_map(move |arm| one(cell, arm))).collect()
    }

    /// The first arm against each other one, in every cell that holds durations, for median and P99.
    #[must_use]
    pub fn comparisons(&self, arms: &[String]) -> Vec<Comparison> {
        let Some((baseline, others)) = arms.split_first() else { return Vec::new() };
        let mut comparisons = Vec::new();
        for cell in self.order.iter().filter(|cell| self.unit(cell) == "ns") {
            for other in others {
                for (statistic, p) in [("median", 0.5), ("p99", 0.99)] {
                    comparisons.extend(self.compare(cell, baseline, other, statistic, p));
                }
            }
        }
        comparisons
    }

    fn compare(&self, cell: &Cell, arm_a: &str, arm_b: &str, statistic: &str, p: f64) -> Option<Comparison> {
        let (a, b) = (self.values(cell, arm_a), self.values(cell, arm_b));
        let ratio = pooled_quantile(a, p)? / pooled_quantile(b, p)?;
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(SEED);
        let ci95 = ratio_ci95(a, b, p, RESAMPLES, &mut rng);
        let few = a.len().min(b.len()) < MIN_GUESTS;
        let reason = if few {
            format!("fewer than {MIN_GUESTS} guests in an arm")
        } else {
            String::from("a value is zero or not a number")
        };
        let p_value = permutation_p(a, b, p, RESAMPLES, &mut rng);
        Some(Comparison {
            metric: cell.0.clone(),
            statistic: statistic.to_owned(),
            dimensions: cell.1.clone(),
            arm_a: arm_a.to_owned(),
            arm_b: arm_b.to_owned(),
            ratio,
            ci95_reason: ci95.is_none().then_some(reason),
            ci95,
            p_value,
            n_a: a.len(),
            n_b: b.len(),
            verdict: Verdict::of(ratio, ci95, p_value),
        })
    }
}

#[cfg(test)]
#[path = "analysis_tests.rs"]
mod tests;
