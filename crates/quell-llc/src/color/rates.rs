//! Contention by color, from windows over a canary whose lines are divided by color.
//!
//! All colors are primed and probed in the same windows, so bursts and moves of the vCPU hit them alike: a color's
//! *excess*, its loss minus the mean loss of the others, is free of both. Rates refer to the Weibull law that the
//! LLC as a whole follows, with one scale per color.

use quell_core::Estimate;
use quell_core::stats::jackknife::{jackknife, t975};
use quell_core::stats::{Survival, mean};

use crate::calibrate::Counts;
use crate::curve::Observation;
use crate::jumps::may_be_jump;
use crate::tier::{REFERENCE_WINDOW_MS, Tier, TierLimits};

/// Each color's lines form so many groups, over which intervals are computed: lines differ in the pressure on their
/// sets, and one line's windows depend on one another.
pub const GROUPS: usize = 8;

/// One window over all colors.
#[derive(Clone, Debug)]
pub struct ColorWindow {
    /// Exposure and share of all lines together, and the sentinels.
    pub observation: Observation,
    /// Outcomes by color and group: [`GROUPS`] entries for each color.
    pub strata: Vec<Counts>,
}

/// What some windows say of one color.
#[derive(Clone, Debug)]
pub struct ColorRate {
    /// The color.
    pub color: u32,
    /// Percent of its lines that the windows lost, on average.
    pub lost_pct: Estimate,
    /// The same minus the mean of the other colors, in percentage points.
    pub excess_pct: Estimate,
    /// Percent evicted per ms over the reference window.
    pub rate_pct_per_ms: Estimate,
    /// Tier by the share lost at the reference window, or why there is none.
    pub tier: Result<Tier, String>,
}

/// What the rates depend on besides the windows.
#[derive(Clone, Copy, Debug)]
pub struct Law {
    /// Share that reads as lost without any wait, 0 to 1.
    pub lost_at_once: f64,
    /// Weibull shape.
    pub shape: f64,
    /// Limits of the tiers.
    pub tiers: TierLimits,
}

/// Shares of a color's lines beyond which the rate cannot be told.
const INFORMATIVE: std::ops::RangeInclusive<f64> = 0.02..=0.98;
/// Errors that do not show in the spread, as in [`crate::curve`]: the law is not exactly Weibull's.
const SYSTEMATIC: f64 = 0.07;

/// Sums windows up by color. Windows in which everything was lost, sentinels included, do not count: they may stand
/// for a move of the vCPU, and tell nothing of colors in any case.
#[must_use]
pub fn rates(windows: &[ColorWindow], colors: u32, law: Law) -> Vec<ColorRate> {
    let kept: Vec<&ColorWindow> = windows.iter().filter(|w| !may_be_jump(&w.observation)).collect();
    let of_color = |color: u32| Harvest::new(&kept, color);
    let harvests: Vec<Harvest> = (0..colors).map(of_color).collect();
    let between = between_windows(&kept, law);
    (0..colors).map(|color| harvests[color as usize].rate(color, &harvests, law, between)).collect()
}

/// A color's share lost minus the mean of `others`, over the windows given; `None` without valid samples.
pub(crate) fn excess(windows: &[&ColorWindow], color: u32, others: &[u32]) -> Option<f64> {
    let all: Vec<usize> = (0..GROUPS).collect();
    let lost = |color: u32| Harvest::new(windows, color).lost(&all);
    Some(lost(color)? - mean(&others.iter().filter_map(|&other| lost(other)).collect::<Vec<_>>())?)
}

/// One color's outcomes: per window its exposure, per group and window the counts.
struct Harvest {
    exposures: Vec<f64>,
    groups: Vec<Vec<Counts>>,
}

impl Harvest {
    fn new(windows: &[&ColorWindow], color: u32) -> Self {
        let group = |group: usize| -> Vec<Counts> {
            let stratum = color as usize * GROUPS + group;
            windows.iter().map(|w| w.strata.get(stratum).copied().unwrap_or_default()).collect()
        };
        Self {
            exposures: windows.iter().map(|w| w.observation.window.exposure_ms).collect(),
            groups: (0..GROUPS).map(group).collect(),
        }
    }

    /// Counts of some groups, by window.
    fn counts(&self, groups: &[usize]) -> Vec<Counts> {
        (0..self.exposures.len())
            .map(|window| {
                let mut sum = Counts::default();
                groups.iter().for_each(|&group| sum.add(self.groups[group][window]));
                sum
            })
            .collect()
    }

    /// Mean over the windows of the share that some groups lost.
    fn lost(&self, groups: &[usize]) -> Option<f64> {
        mean(&self.counts(groups).into_iter().filter_map(Counts::miss_share).collect::<Vec<_>>())
    }

    /// The share that some groups of this color lost minus the mean of the others.
    fn excess(&self, color: u32, all: &[Self], groups: &[usize]) -> Option<f64> {
        let others = all.iter().enumerate().filter(|(other, _)| *other != color as usize);
        let others: Vec<f64> = others.filter_map(|(_, other)| other.lost(groups)).collect();
        Some(self.lost(groups)? - mean(&others)?)
    }

    fn rate(&self, color: u32, all: &[Self], law: Law, between: f64) -> ColorRate {
        let windows = self.exposures.len();
        let percent = |estimate: Estimate| estimate.map(|share| share * 100.0);
        let lost = jackknife(GROUPS, windows, |groups| self.lost(groups)).map(|share| share.clamp(0.0, 1.0));
        let excess = jackknife(GROUPS, windows, |groups| self.excess(color, all, groups));
        let (rate, tier) = match self.log_scale(law, between) {
            Ok((value, half)) => {
                let per_ms = |log: f64| survival(log, law.shape).rate_pct_per_ms(REFERENCE_WINDOW_MS);
                let evicted = (1.0 - survival(value, law.shape).surviving(REFERENCE_WINDOW_MS)) * 100.0;
                let estimate =
                    Estimate::known(per_ms(value), [per_ms(value - half), per_ms(value + half)], windows);
                (estimate, Ok(law.tiers.tier(evicted)))
            }
            Err(reason) => (Estimate::unknown(reason.clone()), self.extreme_tier().ok_or(reason)),
        };
        ColorRate { color, lost_pct: percent(lost), excess_pct: percent(excess), rate_pct_per_ms: rate, tier }
    }

    /// The logarithm of the Weibull scale λ and the half-width of its 95 % interval. `between` is that part of the
    /// half-width that comes from the windows being a sample of time.
    fn log_scale(&self, law: Law, between: f64) -> Result<(f64, f64), String> {
        let all: Vec<usize> = (0..GROUPS).collect();
        let lost = self.lost(&all).ok_or("no usable window")?;
        if !INFORMATIVE.contains(&lost) {
            let what = if lost > 0.5 { "saturated: nearly all" } else { "quiet: hardly any" };
            return Err(format!("{what} lines of this color were evicted in the windows measured"));
        }
        let solve = |groups: &[usize]| solve(&self.exposures, &self.counts(groups), law);
        let full = solve(&all).ok_or("the windows do not determine a rate")?;
        let spread = jackknife(GROUPS, self.exposures.len(), solve);
        let [lo, hi] = spread.ci95().ok_or("too few lines of this color were lost or kept to tell a rate")?;
        Ok((full, ((hi - lo) / 2.0).hypot(between).hypot(SYSTEMATIC)))
    }

    /// The tier where no rate can be told: all lost before the reference window, or all there after it.
    fn extreme_tier(&self) -> Option<Tier> {
        let all: Vec<usize> = (0..GROUPS).collect();
        let (lost, exposure) = (self.lost(&all)?, mean(&self.exposures)?);
        if lost > *INFORMATIVE.end() && exposure <= REFERENCE_WINDOW_MS {
            Some(Tier::Saturated)
        } else if lost < *INFORMATIVE.start() && exposure >= REFERENCE_WINDOW_MS {
            Some(Tier::Quiet)
        } else {
            None
        }
    }
}

fn survival(log_scale: f64, shape: f64) -> Survival {
    Survival { rate_per_ms: log_scale.exp(), shape }
}

/// The logarithm of the scale at which as many lines are expected to be lost as were lost, all windows together.
/// That makes it right for the mean over bursts, as [`quell_core::stats::survival`] explains.
fn solve(exposures: &[f64], counts: &[Counts], law: Law) -> Option<f64> {
    let valid = |c: &Counts| f64::from(c.hits + c.misses);
    let lost: f64 = counts.iter().map(|c| f64::from(c.misses)).sum();
    let total: f64 = counts.iter().map(valid).sum();
    let expected = |log: f64| -> f64 {
        let survival = survival(log, law.shape);
        let share = |ms: f64| law.lost_at_once + (1.0 - law.lost_at_once) * (1.0 - survival.surviving(ms));
        exposures.iter().zip(counts).map(|(&ms, c)| valid(c) * share(ms)).sum()
    };
    if lost <= total * law.lost_at_once || lost >= total {
        return None;
    }
    // Scales of 10 s to 1 µs: `expected` grows from almost the controls' share to 1 between them.
    let (mut lo, mut hi) = (1e-4_f64.ln(), 1e3_f64.ln());
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(lo, hi);
        if expected(middle) < lost { lo = middle } else { hi = middle }
    }
    Some(f64::midpoint(lo, hi))
}

/// Halvings of a range of 16 in logarithm: to 0.1 %.
const BISECTIONS: u32 = 14;

/// Half-width of the 95 % interval of ln λ that comes from bursts: the windows are a sample of time. From the spread
/// of all colors' lines together, window by window.
fn between_windows(windows: &[&ColorWindow], law: Law) -> f64 {
    let logs: Vec<f64> = windows
        .iter()
        .map(|w| {
            let share = (w.observation.window.share - law.lost_at_once) / (1.0 - law.lost_at_once);
            crate::attribution::pressure(share, w.observation.window.exposure_ms, law.shape).ln()
        })
        .collect();
    let n = logs.len();
    let Some(center) = mean(&logs).filter(|_| n >= 2) else { return f64::INFINITY };
    let variance = logs.iter().map(|log| (log - center).powi(2)).sum::<f64>() / (n - 1) as f64;
    t975(n - 1) * (variance / n as f64).sqrt()
}
