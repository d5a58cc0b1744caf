//! From windows to the survival curve: sorts out windows hit by a placement jump, fits, and grades.

use quell_core::Estimate;
use quell_core::stats::survival::{FitError, Survival, Window};

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
    /// Windows that took part.
    pub windows: Vec<Window>,
    /// Windows left out because the vCPU moved to another cache while they were open.
    pub jumps: usize,
    /// Share that reads as lost without any wait, which the fit takes out.
    pub lost_at_once: f64,
    expected_shape: f64,
}

/// A jump loses everything: the canary, up to reading errors …
const JUMP_LOST: f64 = 0.97;
/// … and the sentinels, which were touched last and which no neighbor in the LLC can take from our L2 …
const JUMP_SENTINELS_LOST: f64 = 0.9;
/// … where the other windows let expect that much of the canary to survive.
const JUMP_UNEXPECTED: f64 = 0.4;

impl Curve {
    /// Fits a curve to windows. `expected_shape` is what the fit leans to where the windows do not tell.
    #[must_use]
    pub fn fit(observations: &[Observation], lost_at_once: f64, expected_shape: f64) -> Self {
        let mut kept: Vec<Observation> = observations.to_vec();
        for _ in 0..2 {
            let Ok(law) = Survival::fit(&windows(&kept), lost_at_once, expected_shape) else { break };
            kept = observations.iter().copied().filter(|o| !is_jump(o, &law)).collect();
        }
        let windows = windows(&kept);
        Self {
            fit: Survival::fit(&windows, lost_at_once, expected_shape),
            jumps: observations.len() - windows.len(),
            windows,
            lost_at_once,
            expected_shape,
        }
    }

    fn estimate(&self, statistic: impl Fn(&Survival) -> f64) -> Estimate {
        Survival::estimate(&self.windows, self.lost_at_once, self.expected_shape, statistic)
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
            (w.share - expected).powi(2)
        });
        Some(squares.sum::<f64>() / self.windows.len() as f64)
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

fn windows(observations: &[Observation]) -> Vec<Window> {
    observations.iter().map(|o| o.window).collect()
}

fn is_jump(observation: &Observation, law: &Survival) -> bool {
    observation.window.share >= JUMP_LOST
        && observation.sentinels_lost >= JUMP_SENTINELS_LOST
        && law.surviving(observation.window.exposure_ms) >= JUMP_UNEXPECTED
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(half_life_ms: f64) -> Vec<Observation> {
        (0..40_u32)
            .map(|i| {
                let exposure_ms = half_life_ms * (0.5 + f64::from(i % 10) * 0.12);
                let share = 1.0 - (-(exposure_ms / half_life_ms).powf(2.5) * std::f64::consts::LN_2).exp();
                Observation { window: Window { exposure_ms, share, block: i / 4 }, sentinels_lost: 0.1 }
            })
            .collect()
    }

    #[test]
    fn jumps_are_left_out_and_counted() {
        let mut observations = observed(6.0);
        for i in [3, 13, 22] {
            observations[i].window.share = 1.0;
            observations[i].sentinels_lost = 1.0;
            observations[i].window.exposure_ms = 3.0;
        }
        let curve = Curve::fit(&observations, 0.0, 2.5);
        assert_eq!(curve.jumps, 3);
        assert!((curve.half_life_ms().value().unwrap() - 6.0).abs() < 0.05);
    }

    #[test]
    fn a_burst_that_leaves_our_l2_alone_is_no_jump() {
        let mut observations = observed(6.0);
        observations[3].window.share = 1.0;
        assert_eq!(Curve::fit(&observations, 0.0, 2.5).jumps, 0);
    }

    #[test]
    fn a_saturated_cache_is_not_mistaken_for_jumps() {
        let all_lost =
            Observation { window: Window { exposure_ms: 0.6, share: 1.0, block: 0 }, sentinels_lost: 1.0 };
        let curve = Curve::fit(&[all_lost; 12], 0.0, 2.5);
        assert_eq!((curve.jumps, curve.tier(TierLimits::default())), (0, Ok(Tier::Saturated)));
        assert!(curve.half_life_ms().reason().unwrap().contains("saturated"));
        assert!(curve.rate_pct_per_ms().value().is_none());
    }

    #[test]
    fn a_quiet_cache_has_a_tier_but_no_half_life() {
        let kept =
            Observation { window: Window { exposure_ms: 30.0, share: 0.01, block: 0 }, sentinels_lost: 0.0 };
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
