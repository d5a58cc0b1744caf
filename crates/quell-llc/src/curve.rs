//! From windows to the survival curve: sorts out windows hit by a placement jump, fits, and grades.

use quell_core::Estimate;
use quell_core::stats::survival::{FitError, Survival, Window};

use crate::jumps::{jump_chances, may_be_jump};
use crate::tier::{REFERENCE_WINDOW_MS, Tier, TierLimits};

/// A window that was neither interrupted nor preempted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// Exposure and share lost.
    pub window: Window,
    /// Share of the sentinels, lines touched last, that were lost as well.
    pub sentinels_lost: f64,
}

/// The survival curve of one stretch of time.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The fit, or why there is none.
    pub fit: Result<Survival, FitError>,
    /// The fitted law even where it lies beyond the windows: good enough to choose better windows by.
    pub guess: Option<Survival>,
    /// The fits if no window that may have been hit by a jump was, and if all were. Which of them were is an
    /// inference, so every interval reaches to both.
    extremes: Vec<Survival>,
    /// Windows that took part.
    pub windows: Vec<Window>,
    /// Windows lost because the vCPU moved to another cache while they were open: the sum of the chances.
    pub jumps: f64,
    /// Share that reads as lost without any wait, which the fit takes out.
    pub lost_at_once: f64,
    expected_shape: f64,
}

/// Windows further than this factor from the half-life take no part in the final fit: out there it matters
/// whether the law is really Weibull's.
const NEAR_HALF_LIFE: f64 = 2.2;
/// They are only left out if at least this many remain.
const ENOUGH_NEAR: usize = 8;
/// Half-width of what is added to every interval for errors that do not show in the spread between windows
/// (the law is not exactly Weibull's, the spill itself ages the lines): 7 %, found on simulated caches with
/// steady neighbors.
const SYSTEMATIC: f64 = 0.07;
/// The same for the time that priming and probing take, in ms: lines of one window differ in age by as much.
const BLUR_MS: f64 = 0.03;

impl Curve {
    /// Fits a curve to windows. `expected_shape` is what the fit leans to where the windows do not tell.
    #[must_use]
    pub fn fit(observations: &[Observation], lost_at_once: f64, expected_shape: f64) -> Self {
        let chances = jump_chances(observations, expected_shape);
        let weighted = |jump: &dyn Fn(usize) -> f64| -> Vec<Window> {
            let of = |(i, o): (usize, &Observation)| Window { weight: 1.0 - jump(i), ..o.window };
            observations.iter().enumerate().map(of).collect()
        };
        let fit = |windows| fit_near_half_life(windows, lost_at_once, expected_shape);
        let (law, windows) = fit(weighted(&|i| chances[i]));
        let fit_ = law.and_then(|law| within_reach(law, &windows));
        let extremes: Vec<Survival> = if observations.iter().any(may_be_jump) && fit_.is_ok() {
            let none = fit(weighted(&|_| 0.0)).0;
            let all = fit(weighted(&|i| f64::from(u8::from(may_be_jump(&observations[i]))))).0;
            [none, all].into_iter().flatten().collect()
        } else {
            Vec::new()
        };
        Self {
            fit: fit_,
            guess: law.ok(),
            extremes,
            windows,
            jumps: chances.iter().sum(),
            lost_at_once,
            expected_shape,
        }
    }

    fn estimate(&self, statistic: impl Fn(&Survival) -> f64) -> Estimate {
        if let Err(error) = self.fit {
            return Estimate::unknown(error.to_string());
        }
        let estimate = Survival::estimate(&self.windows, self.lost_at_once, self.expected_shape, &statistic);
        let Estimate::Known { value, ci95: [lo, hi], n } = estimate else { return estimate };
        let blur = self.fit.map_or(0.0, |law| BLUR_MS / law.half_life_ms());
        let systematic = SYSTEMATIC.hypot(blur);
        let widen = |bound: f64| (bound / value).ln().hypot(systematic).exp();
        let [mut lo, mut hi] = [value / widen(lo), value * widen(hi)];
        for extreme in self.extremes.iter().map(statistic) {
            lo = lo.min(extreme);
            hi = hi.max(extreme);
        }
        Estimate::known(value, [lo, hi], n)
    }

    /// Median survival of a line, in ms.
    #[must_use]
    pub fn half_life_ms(&self) -> Estimate {
        self.estimate(Survival::half_life_ms)
    }

    /// Hazard at the half-life, per ms.
    #[must_use]
    pub fn hazard_per_ms(&self) -> Estimate {
        self.estimate(Survival::hazard_per_ms)
    }

    /// Percent of primed lines evicted per millisecond over the reference window.
    #[must_use]
    pub fn rate_pct_per_ms(&self) -> Estimate {
        self.estimate(|law| law.rate_pct_per_ms(REFERENCE_WINDOW_MS))
    }

    /// Weibull shape of the survival law.
    #[must_use]
    pub fn shape(&self) -> Estimate {
        self.estimate(|law| law.shape)
    }

    /// Mean square of the residual shares: how well the law describes the windows (0 = perfectly).
    #[must_use]
    pub fn misfit(&self) -> Option<f64> {
        let law = self.fit.ok()?;
        let squares = self.windows.iter().map(|w| {
            let expected =
                self.lost_at_once + (1.0 - self.lost_at_once) * (1.0 - law.surviving(w.exposure_ms));
            w.weight * (w.share - expected).powi(2)
        });
        Some(squares.sum::<f64>() / self.windows.iter().map(|w| w.weight).sum::<f64>())
    }

    /// The tier, which is known even where the half-life is not: a cache that is emptied within the shortest
    /// window is saturated, one that keeps its lines beyond the reference window is quiet.
    ///
    /// # Errors
    /// Why no tier can be given.
    pub fn tier(&self, limits: TierLimits) -> Result<Tier, String> {
        match self.fit {
            Ok(law) => Ok(limits.tier((1.0 - law.surviving(REFERENCE_WINDOW_MS)) * 100.0)),
            Err(FitError::Saturated(ms)) if ms <= REFERENCE_WINDOW_MS => Ok(Tier::Saturated),
            Err(FitError::Quiet(ms)) if ms >= REFERENCE_WINDOW_MS => Ok(Tier::Quiet),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Fits, then fits again with the windows near the half-life alone. Returns these as well.
fn fit_near_half_life(
    windows: Vec<Window>,
    lost_at_once: f64,
    shape: f64,
) -> (Result<Survival, FitError>, Vec<Window>) {
    let fit = Survival::fit(&windows, lost_at_once, shape);
    let Ok(law) = fit else { return (fit, windows) };
    let half_life = law.half_life_ms();
    let range = half_life / NEAR_HALF_LIFE..half_life * NEAR_HALF_LIFE;
    let near: Vec<Window> = windows.iter().copied().filter(|w| range.contains(&w.exposure_ms)).collect();
    if near.len() < ENOUGH_NEAR {
        return (fit, windows);
    }
    (Survival::fit(&near, lost_at_once, shape).or(fit), near)
}

/// A half-life may lie this factor beyond the windows that it was fitted to; further out is a guess.
const REACH: f64 = 1.2;

/// The law, if its half-life lies within what the windows show.
fn within_reach(law: Survival, windows: &[Window]) -> Result<Survival, FitError> {
    let exposures = || windows.iter().map(|w| w.exposure_ms);
    let shortest = exposures().fold(f64::INFINITY, f64::min);
    let longest = exposures().fold(0.0, f64::max);
    if law.half_life_ms() < shortest / REACH {
        Err(FitError::Saturated(shortest))
    } else if law.half_life_ms() > longest * REACH {
        Err(FitError::Quiet(longest))
    } else {
        Ok(law)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(half_life_ms: f64) -> Vec<Observation> {
        (0..40_u32)
            .map(|i| {
                let exposure_ms = half_life_ms * (0.5 + f64::from(i % 10) * 0.12);
                let share = 1.0 - (-(exposure_ms / half_life_ms).powf(2.5) * std::f64::consts::LN_2).exp();
                Observation { window: Window::new(exposure_ms, share, i / 4), sentinels_lost: 0.1 }
            })
            .collect()
    }

    #[test]
    fn jumps_are_left_out_and_counted() {
        let mut observations = observed(6.0);
        for i in [3, 13, 22] {
            observations[i].window.share = 1.0;
            observations[i].sentinels_lost = 1.0;
            observations[i].window.exposure_ms = 2.0;
        }
        let curve = Curve::fit(&observations, 0.0, 2.5);
        assert!((2.5..3.5).contains(&curve.jumps), "{}", curve.jumps);
        assert!((curve.half_life_ms().value().unwrap() - 6.0).abs() < 0.1);
    }

    #[test]
    fn a_burst_that_leaves_our_l2_alone_is_no_jump() {
        let mut observations = observed(6.0);
        observations[3].window.share = 1.0;
        assert_eq!(Curve::fit(&observations, 0.0, 2.5).jumps, 0.0);
    }

    #[test]
    fn a_saturated_cache_is_not_mistaken_for_jumps() {
        let all_lost = Observation { window: Window::new(0.6, 1.0, 0), sentinels_lost: 1.0 };
        let curve = Curve::fit(&[all_lost; 12], 0.0, 2.5);
        assert_eq!((curve.jumps, curve.tier(TierLimits::default())), (0.0, Ok(Tier::Saturated)));
        assert!(curve.half_life_ms().reason().unwrap().contains("saturated"));
        assert!(curve.rate_pct_per_ms().value().is_none());
    }

    #[test]
    fn a_quiet_cache_has_a_tier_but_no_half_life() {
        let kept = Observation { window: Window::new(30.0, 0.01, 0), sentinels_lost: 0.0 };
        let curve = Curve::fit(&[kept; 12], 0.0, 2.5);
        assert_eq!(curve.tier(TierLimits::default()), Ok(Tier::Quiet));
        assert!(curve.half_life_ms().reason().unwrap().contains("quiet"));
    }

    #[test]
    fn tiers_follow_the_share_at_the_reference_window() {
        for (half_life, tier) in
            [(9.0, Tier::Quiet), (6.5, Tier::Moderate), (5.2, Tier::Heavy), (3.0, Tier::Saturated)]
        {
            assert_eq!(Curve::fit(&observed(half_life), 0.0, 2.5).tier(TierLimits::default()), Ok(tier));
        }
    }
}
