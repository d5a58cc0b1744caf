//! How long a cache line survives, from windows in which a share of lines was evicted.
//!
//! The survival curve is a Weibull law, S(t) = exp(−(λt)^k). It is fitted to the *mean* evicted share as a
//! function of the window, so that its median is the median survival of a line that starts at a random
//! moment, whatever bursts the neighbors have: single windows may hold 0 or 100 %, their mean is what counts.

use std::f64::consts::LN_2;

use super::jackknife::jackknife;
use crate::Estimate;

/// What one window saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Time between the end of priming and the probe, in milliseconds; above zero.
    pub exposure_ms: f64,
    /// Share of the primed lines that were evicted, 0 to 1.
    pub share: f64,
    /// Windows with the same block number are taken to depend on one another.
    pub block: u32,
    /// How much the window counts, 0 to 1.
    pub weight: f64,
}

impl Window {
    /// A window that counts in full.
    #[must_use]
    pub const fn new(exposure_ms: f64, share: f64, block: u32) -> Self {
        Self { exposure_ms, share, block, weight: 1.0 }
    }
}

/// The fitted law, loss without waiting already taken out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Survival {
    /// Scale λ in 1/ms.
    pub rate_per_ms: f64,
    /// Weibull shape k: 1 = constant hazard, above 1 = the hazard grows with the time since the last touch.
    pub shape: f64,
}

/// Why windows do not determine a survival curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FitError {
    /// No usable window.
    NoWindows,
    /// Most lines were gone even in the shortest window (its length in ms): the half-life lies below.
    Saturated(f64),
    /// Few lines were gone even in the longest window (its length in ms): the half-life lies above.
    Quiet(f64),
}

/// Shares beyond these say only on which side the half-life lies, not where.
const INFORMATIVE: std::ops::Range<f64> = 0.08..0.92;
/// Shape that a fit leans to when the windows are too alike to tell: k = 2.5 was measured on AMD Milan.
pub const DEFAULT_SHAPE: f64 = 2.5;
/// Spread (standard deviation of ln k) that the lean towards the expected shape allows.
const SHAPE_SPREAD: f64 = 0.6;
/// Least variance that a window's share is given. Under bursts, a window where next to nothing (or everything)
/// is expected now and then shows the opposite; binomial weights would let it outvote all others.
const MIN_VARIANCE: f64 = 0.04;
const MIN_SHAPE: f64 = 0.4;
const MAX_SHAPE: f64 = 8.0;

impl Survival {
    /// Share of lines still there after `t_ms`.
    #[must_use]
    pub fn surviving(&self, t_ms: f64) -> f64 {
        (-(self.rate_per_ms * t_ms).powf(self.shape)).exp()
    }

    /// Median survival in ms: (ln 2)^(1/k) / λ.
    #[must_use]
    pub fn half_life_ms(&self) -> f64 {
        LN_2.powf(1.0 / self.shape) / self.rate_per_ms
    }

    /// Hazard at the half-life, per ms: k · ln 2 / t½ (the Weibull hazard kλ(λt)^(k−1) at t½).
    #[must_use]
    pub fn hazard_per_ms(&self) -> f64 {
        self.shape * LN_2 / self.half_life_ms()
    }

    /// Percent of lines evicted per millisecond, averaged over a window of `t_ms`.
    #[must_use]
    pub fn rate_pct_per_ms(&self, t_ms: f64) -> f64 {
        (1.0 - self.surviving(t_ms)) * 100.0 / t_ms
    }

    /// Fits the law by quasi-likelihood of the shares (binomial variance with a floor), with a weak lean of ln k towards ln `expected_shape`. `lost_at_once` is the share that reads as evicted
    /// without any wait (0 to 1), measured by a control.
    ///
    /// # Errors
    /// [`FitError`] when the windows do not surround the half-life.
    pub fn fit(windows: &[Window], lost_at_once: f64, expected_shape: f64) -> Result<Self, FitError> {
        check_informative(windows, lost_at_once)?;
        let start = start_rate(windows, lost_at_once, expected_shape);
        Ok(newton(windows, lost_at_once, expected_shape, start))
    }

    /// A statistic of the fitted curve with its 95 % interval, from a jackknife over the windows' blocks.
    ///
    /// `statistic` must be positive (half-life, hazard, rate); the interval is symmetric in its logarithm.
    pub fn estimate(
        windows: &[Window],
        lost_at_once: f64,
        expected_shape: f64,
        statistic: impl Fn(&Self) -> f64,
    ) -> Estimate {
        let full = match Self::fit(windows, lost_at_once, expected_shape) {
            Ok(fit) => fit,
            Err(error) => return Estimate::unknown(error.to_string()),
        };
        let mut blocks: Vec<u32> = windows.iter().map(|w| w.block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let log = jackknife(blocks.len(), windows.len(), |kept| {
            let subset: Vec<Window> = windows
                .iter()
                .copied()
                .filter(|w| blocks.binary_search(&w.block).is_ok_and(|i| kept.binary_search(&i).is_ok()))
                .collect();
            let start = [full.rate_per_ms.ln(), full.shape.ln()];
            Some(statistic(&newton(&subset, lost_at_once, expected_shape, start)).ln())
        });
        log.map(f64::exp)
    }
}

impl std::fmt::Display for FitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoWindows => f.write_str("no usable window"),
            Self::Saturated(ms) => {
                write!(f, "saturated: most lines were evicted within {ms:.2} ms, the shortest window")
            }
            Self::Quiet(ms) => {
                write!(f, "quiet: few lines were evicted within {ms:.1} ms, the longest window")
            }
        }
    }
}

/// Share evicted by waiting alone.
fn net_share(share: f64, lost_at_once: f64) -> f64 {
    ((share - lost_at_once) / (1.0 - lost_at_once)).clamp(0.0, 1.0)
}

fn check_informative(windows: &[Window], lost_at_once: f64) -> Result<(), FitError> {
    if windows.is_empty() {
        return Err(FitError::NoWindows);
    }
    let mut sorted = windows.to_vec();
    sorted.sort_by(|a, b| a.exposure_ms.total_cmp(&b.exposure_ms));
    let third = sorted.len().div_ceil(3);
    let mean = |part: &[Window]| {
        let weight: f64 = part.iter().map(|w| w.weight).sum();
        part.iter().map(|w| w.weight * net_share(w.share, lost_at_once)).sum::<f64>() / weight.max(1e-9)
    };
    if mean(&sorted[..third]) > INFORMATIVE.end {
        return Err(FitError::Saturated(sorted[0].exposure_ms));
    }
    let last = &sorted[sorted.len() - third..];
    if mean(last) < INFORMATIVE.start {
        return Err(FitError::Quiet(last[third - 1].exposure_ms));
    }
    Ok(())
}

/// ln λ and ln k to start from: the window whose neighborhood is closest to half evicted.
fn start_rate(windows: &[Window], lost_at_once: f64, shape: f64) -> [f64; 2] {
    let logs: f64 = windows
        .iter()
        .map(|w| {
            let share = net_share(w.share, lost_at_once).clamp(0.02, 0.98);
            w.exposure_ms.ln() - (-(1.0 - share).ln()).ln() / shape
        })
        .sum();
    [-logs / windows.len() as f64, shape.ln()]
}

/// Newton's method with expected information (Fisher scoring) on (ln λ, ln k), steps bounded.
fn newton(windows: &[Window], lost_at_once: f64, expected_shape: f64, start: [f64; 2]) -> Survival {
    let [mut log_rate, mut log_shape] = start;
    for _ in 0..60 {
        let shape = log_shape.exp();
        let mut gradient = [0.0; 2];
        let mut information = [0.0; 3];
        for window in windows {
            let log_time = log_rate + window.exposure_ms.ln();
            let cumulative = (shape * log_time).exp().min(50.0);
            let survival = (-cumulative).exp();
            let expected = lost_at_once + (1.0 - lost_at_once) * (1.0 - survival);
            let slope = (1.0 - lost_at_once) * survival * cumulative * shape;
            let derivative = [slope, slope * log_time];
            let weight = window.weight / (expected * (1.0 - expected)).max(MIN_VARIANCE);
            let residual = window.share - expected;
            for (g, d) in gradient.iter_mut().zip(derivative) {
                *g += weight * residual * d;
            }
            information[0] += weight * derivative[0] * derivative[0];
            information[1] += weight * derivative[0] * derivative[1];
            information[2] += weight * derivative[1] * derivative[1];
        }
        let precision = SHAPE_SPREAD.powi(-2);
        gradient[1] -= precision * (log_shape - expected_shape.ln());
        information[2] += precision;
        information[0] += 1e-9;
        let determinant = information[0] * information[2] - information[1] * information[1];
        let step = [
            (information[2] * gradient[0] - information[1] * gradient[1]) / determinant,
            (information[0] * gradient[1] - information[1] * gradient[0]) / determinant,
        ];
        if !step.iter().all(|s| s.is_finite()) {
            break;
        }
        log_rate += step[0].clamp(-0.5, 0.5);
        log_shape = (log_shape + step[1].clamp(-0.3, 0.3)).clamp(MIN_SHAPE.ln(), MAX_SHAPE.ln());
        if step.iter().all(|s| s.abs() < 1e-7) {
            break;
        }
    }
    Survival { rate_per_ms: log_rate.exp(), shape: log_shape.exp() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    fn exact(law: Survival, lost: f64, exposures: &[f64]) -> Vec<Window> {
        exposures
            .iter()
            .zip(0..)
            .map(|(&exposure_ms, block)| {
                Window::new(exposure_ms, lost + (1.0 - lost) * (1.0 - law.surviving(exposure_ms)), block)
            })
            .collect()
    }

    proptest! {
        #[test]
        fn an_exact_curve_is_found_again(half_life in 0.7_f64..30.0, shape in 0.8_f64..5.0, lost in 0.0_f64..0.1) {
            let law = Survival { rate_per_ms: LN_2.powf(1.0 / shape) / half_life, shape };
            let exposures: Vec<f64> = (0..60).map(|i| half_life * (0.3 + f64::from(i % 20) * 0.1)).collect();
            let fit = Survival::fit(&exact(law, lost, &exposures), lost, shape).unwrap();
            prop_assert!((fit.half_life_ms() / half_life - 1.0).abs() < 1e-3, "{fit:?}");
            prop_assert!((fit.shape / shape - 1.0).abs() < 1e-2, "{fit:?}");
        }

        #[test]
        fn no_input_breaks_the_fit(raw in prop::collection::vec((0.01_f64..100.0, 0.0_f64..=1.0), 0..40),
                                   lost in 0.0_f64..0.5) {
            let windows: Vec<Window> = raw.iter().zip(0..)
                .map(|(&(exposure_ms, share), block)| Window::new(exposure_ms, share, block)).collect();
            if let Ok(fit) = Survival::fit(&windows, lost, DEFAULT_SHAPE) {
                prop_assert!(fit.half_life_ms() > 0.0 && fit.shape >= MIN_SHAPE && fit.shape <= MAX_SHAPE);
            }
            let _ = Survival::estimate(&windows, lost, DEFAULT_SHAPE, Survival::half_life_ms);
        }
    }

    #[test]
    fn saturated_and_quiet_windows_are_told_apart() {
        let windows = |share| vec![Window::new(2.0, share, 0); 9];
        assert_eq!(Survival::fit(&windows(1.0), 0.0, 2.5), Err(FitError::Saturated(2.0)));
        assert_eq!(Survival::fit(&windows(0.01), 0.0, 2.5), Err(FitError::Quiet(2.0)));
        assert_eq!(Survival::fit(&[], 0.0, 2.5), Err(FitError::NoWindows));
    }

    #[test]
    fn the_hazard_matches_the_rate_for_an_exponential_law() {
        let law = Survival { rate_per_ms: 0.2, shape: 1.0 };
        assert!((law.hazard_per_ms() - 0.2).abs() < 1e-12);
        assert!((law.half_life_ms() - LN_2 / 0.2).abs() < 1e-12);
    }

    /// Windows that are all or nothing with the probability of the curve: the harshest bursts there are.
    #[test]
    fn the_interval_covers_the_truth_with_all_or_nothing_windows() {
        let law = Survival { rate_per_ms: 0.15, shape: 2.0 };
        let mut covered = 0;
        for seed in 0..400 {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
            let windows: Vec<Window> = (0..160)
                .map(|i| {
                    let exposure_ms = law.half_life_ms() * rng.random_range(0.6..1.6);
                    let gone = rng.random::<f64>() > law.surviving(exposure_ms);
                    Window::new(exposure_ms, f64::from(u8::from(gone)), i / 16)
                })
                .collect();
            let estimate = Survival::estimate(&windows, 0.0, DEFAULT_SHAPE, Survival::half_life_ms);
            let [lo, hi] = estimate.ci95().unwrap();
            covered += u32::from(lo <= law.half_life_ms() && law.half_life_ms() <= hi);
        }
        assert!((368..=396).contains(&covered), "{covered} of 400 intervals cover the truth");
    }
}
