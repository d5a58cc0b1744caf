//! Rates by color over time: moving average and hysteresis, as for the LLC as a whole.

use quell_core::Estimate;
use quell_core::stats::{Ewma, Hysteresis};
use serde::Serialize;

use super::rates::ColorRate;
use crate::tier::Tier;

/// One color in one period.
#[derive(Clone, Debug, Serialize)]
pub struct ColorPeriod {
    /// The color's number, which means the same pages for the whole run.
    pub color: u32,
    /// Percent of its lines that the period's windows lost, on average.
    pub lost_pct: Estimate,
    /// The same minus the mean of the other colors, in percentage points.
    pub excess_pct: Estimate,
    /// Percent evicted per ms over 7 ms.
    pub rate_pct_per_ms: Estimate,
    /// Moving average of the rate (0.85 old, 0.15 new); none while it is unknown.
    pub ewma_rate_pct_per_ms: Option<f64>,
    /// Tier in force, after hysteresis.
    pub tier: Option<Tier>,
    /// Why there is no tier.
    pub tier_reason: Option<String>,
}

/// Remembers what the colors were like.
#[derive(Clone, Debug)]
pub struct ColorTracker {
    weight: f64,
    rates: Vec<Ewma>,
    tiers: Vec<Hysteresis<Tier>>,
}

impl ColorTracker {
    /// A tracker for so many colors. `old_weight` is that of the former average, and a tier changes after `rounds`
    /// equal ones in a row.
    #[must_use]
    pub fn new(colors: u32, old_weight: f64, rounds: u32) -> Self {
        let colors = colors as usize;
        Self {
            weight: old_weight,
            rates: vec![Ewma::new(old_weight); colors],
            tiers: vec![Hysteresis::new(rounds); colors],
        }
    }

    /// Number of colors.
    #[must_use]
    pub fn colors(&self) -> u32 {
        self.rates.len() as u32
    }

    /// Takes in a period's rates, one a color. With a `refusal` nothing may be said.
    pub fn update(&mut self, rates: Vec<ColorRate>, refusal: Option<&str>) -> Vec<ColorPeriod> {
        rates.into_iter().map(|rate| self.one(rate, refusal)).collect()
    }

    fn one(&mut self, rate: ColorRate, refusal: Option<&str>) -> ColorPeriod {
        let place = rate.color as usize;
        let allowed = |estimate: Estimate| match refusal {
            None => estimate,
            Some(reason) => Estimate::unknown(reason.to_owned()),
        };
        let per_ms = allowed(rate.rate_pct_per_ms);
        let tier = refusal.map_or(rate.tier, |reason| Err(reason.to_owned()));
        // What follows a gap says nothing about what was before.
        if per_ms.value().is_none() {
            self.rates[place] = Ewma::new(self.weight);
        }
        if tier.is_err() {
            self.tiers[place].reset();
        }
        ColorPeriod {
            color: rate.color,
            lost_pct: allowed(rate.lost_pct),
            excess_pct: allowed(rate.excess_pct),
            ewma_rate_pct_per_ms: per_ms.value().map(|value| self.rates[place].update(value)),
            rate_pct_per_ms: per_ms,
            tier: tier.as_ref().ok().map(|&seen| self.tiers[place].update(seen)),
            tier_reason: tier.err(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_ms: Option<f64>) -> ColorRate {
        let known = |value: f64| Estimate::known(value, [value - 1.0, value + 1.0], 4);
        ColorRate {
            color: 0,
            lost_pct: known(50.0),
            excess_pct: known(0.0),
            rate_pct_per_ms: per_ms.map_or_else(|| Estimate::unknown("quiet"), known),
            tier: per_ms.map(|_| Tier::Heavy).ok_or("quiet".into()),
        }
    }

    #[test]
    fn a_gap_ends_the_average_and_a_refusal_leaves_no_number() {
        let mut tracker = ColorTracker::new(1, 0.85, 3);
        let ewma = |tracker: &mut ColorTracker, per_ms| {
            tracker.update(vec![rate(per_ms)], None)[0].ewma_rate_pct_per_ms
        };
        assert_eq!(ewma(&mut tracker, Some(10.0)), Some(10.0));
        assert!((ewma(&mut tracker, Some(20.0)).unwrap() - 11.5).abs() < 1e-9);
        assert_eq!(ewma(&mut tracker, None), None);
        assert_eq!(ewma(&mut tracker, Some(20.0)), Some(20.0));
        let refused = &tracker.update(vec![rate(Some(20.0))], Some("misses are being hidden"))[0];
        assert_eq!(refused.tier_reason.as_deref(), Some("misses are being hidden"));
        assert!(refused.lost_pct.value().is_none() && refused.ewma_rate_pct_per_ms.is_none());
    }
}
