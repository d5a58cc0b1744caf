//! Several periods taken together: what a scan reports of one LLC.

use quell_core::Estimate;
use quell_core::stats::survival::{DEFAULT_SHAPE, Window};

use crate::attribution::{Attribution, LoadedWindow, Verdict};
use crate::curve::{Curve, Observation};
use crate::monitor::{Discarded, Period};
use crate::tier::{Tier, TierLimits};

/// From so many periods on, periods are the blocks of every confidence interval; below, groups of windows.
const ENOUGH_PERIODS: usize = 6;

/// The estimates over a whole stretch of periods.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The fitted survival curve.
    pub curve: Curve,
    /// Median survival in ms.
    pub half_life_ms: Estimate,
    /// Hazard at the half-life, per ms.
    pub hazard_per_ms: Estimate,
    /// Percent evicted per ms over the reference window.
    pub rate_pct_per_ms: Estimate,
    /// Weibull shape.
    pub shape: Estimate,
    /// The tier, or why there is none.
    pub tier: Result<Tier, String>,
    /// Who evicts.
    pub source: Verdict,
    /// Center of the windows of the last period, in ms.
    pub window_ms: f64,
    /// Windows measured, discarded ones included.
    pub windows: usize,
    /// Windows thrown away.
    pub discarded: Discarded,
    /// Share lost without any wait, in the last period (control); `None` without a period.
    pub lost_at_once: Option<f64>,
    /// Largest share of flushed lines that read as hits in any period (control).
    pub false_hits: Option<f64>,
    /// CPU time of the probing thread, in ms per second.
    pub cpu_ms_per_s: f64,
}

impl Summary {
    /// Sums up `periods`. A period whose controls failed takes no part in the estimates.
    #[must_use]
    pub fn of(periods: &[Period], tiers: TierLimits) -> Self {
        let sound: Vec<&Period> = periods.iter().filter(|period| period.refusal.is_none()).collect();
        let by_period = sound.len() >= ENOUGH_PERIODS;
        let observations: Vec<Observation> = sound
            .iter()
            .flat_map(|period| {
                period.observations.iter().map(move |o| {
                    let block = if by_period { period.index } else { o.window.block };
                    Observation { window: Window { block, ..o.window }, ..*o }
                })
            })
            .collect();
        // Of a period that was refused the control is still worth reporting: it may be why.
        let lost_at_once = sound.last().copied().or(periods.last()).map(|period| period.lost_at_once);
        let curve = Curve::fit(&observations, lost_at_once.unwrap_or(0.0), DEFAULT_SHAPE);
        let shape = curve.fit.map_or(DEFAULT_SHAPE, |law| law.shape);
        let loaded: Vec<LoadedWindow> =
            sound.iter().flat_map(|period| period.loaded.iter().copied()).collect();
        let refusal = if sound.is_empty() { Some(refusal(periods)) } else { None };
        let estimate = |known: Estimate| refusal.clone().map_or(known, Estimate::unknown);
        let wall_s: f64 = periods.iter().map(|period| period.wall_ms).sum::<f64>() / 1e3;
        let mut discarded = Discarded::default();
        for period in periods {
            discarded.add(period.discarded);
        }
        Self {
            half_life_ms: estimate(curve.half_life_ms()),
            hazard_per_ms: estimate(curve.hazard_per_ms()),
            rate_pct_per_ms: estimate(curve.rate_pct_per_ms()),
            shape: estimate(curve.shape()),
            tier: refusal.clone().map_or_else(|| curve.tier(tiers), Err),
            source: match refusal {
                None => Attribution::default().label(&loaded, shape),
                Some(reason) => Verdict::unknown(reason),
            },
            window_ms: periods.last().map_or(0.0, |period| period.window_ms),
            windows: periods.iter().map(|period| period.windows).sum(),
            discarded: Discarded { placement: curve.jumps.round() as usize, ..discarded },
            lost_at_once,
            false_hits: periods.iter().filter_map(|period| period.false_hits).reduce(f64::max),
            cpu_ms_per_s: periods.iter().map(|period| period.cpu_ms).sum::<f64>() / wall_s.max(1e-3),
            curve,
        }
    }
}

fn refusal(periods: &[Period]) -> String {
    periods
        .iter()
        .find_map(|period| period.refusal.clone())
        .unwrap_or_else(|| "no period was measured".into())
}
