//! Which windows to measure next: long enough that lines are evicted, short enough that some are left.

use std::ops::RangeInclusive;

use rand::RngExt;
use rand::seq::SliceRandom;
use rand_xoshiro::Xoshiro256PlusPlus;

/// Windows are never shorter or longer than this, in ms.
pub const WINDOW_MS: RangeInclusive<f64> = 0.5..=32.0;
/// A window with more lost than this is too long, with less than the other too short.
const TOO_LONG: f64 = 0.9;
const TOO_SHORT: f64 = 0.1;
/// One such window moves the center by this factor.
const STEP: f64 = 1.3;
/// Windows are spread around the center by up to this factor either way: wide enough to show the curve's
/// slope at the half-life, narrow enough that it hardly matters whether the law is really Weibull's.
const SPREAD: f64 = 1.6;

/// Chooses window lengths around a center that follows the half-life.
#[derive(Clone, Debug)]
pub struct Planner {
    center_ms: f64,
}

impl Planner {
    /// Starts with windows around `center_ms`.
    #[must_use]
    pub fn new(center_ms: f64) -> Self {
        Self { center_ms: clamp(center_ms) }
    }

    /// The window that the others are spread around, in ms.
    #[must_use]
    pub fn center_ms(&self) -> f64 {
        self.center_ms
    }

    /// Factors to multiply the center with, one a window, evenly spread in logarithm and shuffled.
    #[must_use]
    pub fn factors(count: usize, rng: &mut Xoshiro256PlusPlus) -> Vec<f64> {
        let mut factors: Vec<f64> = (0..count)
            .map(|i| {
                let place = (i as f64 + rng.random::<f64>()) / count as f64;
                SPREAD.powf(2.0 * place - 1.0)
            })
            .collect();
        factors.shuffle(rng);
        factors
    }

    /// The length of the next window, in ms.
    #[must_use]
    pub fn window_ms(&self, factor: f64) -> f64 {
        clamp(self.center_ms * factor)
    }

    /// Takes in the share that a window lost (0 to 1), and its length: the next window already adapts.
    pub fn saw(&mut self, window_ms: f64, share: f64) {
        if share > TOO_LONG && window_ms <= self.center_ms * STEP {
            self.center_ms = clamp(self.center_ms / STEP);
        } else if share < TOO_SHORT && window_ms >= self.center_ms / STEP {
            self.center_ms = clamp(self.center_ms * STEP);
        }
    }

    /// Takes in a fitted half-life, in ms: the best center there is.
    pub fn fitted(&mut self, half_life_ms: f64) {
        self.center_ms = clamp(half_life_ms);
    }
}

fn clamp(window_ms: f64) -> f64 {
    window_ms.clamp(*WINDOW_MS.start(), *WINDOW_MS.end())
}

/// Window lengths from the shortest to the longest in equal logarithmic steps: the survival curve at a glance.
#[must_use]
pub fn sweep(count: usize) -> Vec<f64> {
    let (lo, hi) = (WINDOW_MS.start().ln(), WINDOW_MS.end().ln());
    (0..count).map(|i| (lo + (hi - lo) * i as f64 / (count.max(2) - 1) as f64).exp()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;

    use super::*;

    /// Runs the planner against a host with a given half-life (ms) and returns where it ends up.
    fn settle(start_ms: f64, half_life_ms: f64, windows: usize) -> f64 {
        let mut planner = Planner::new(start_ms);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        for factor in Planner::factors(windows, &mut rng) {
            let window = planner.window_ms(factor);
            planner.saw(window, 1.0 - (-(window / half_life_ms).powf(2.5) * 0.693).exp());
        }
        planner.center_ms()
    }

    proptest! {
        #[test]
        fn it_recovers_from_either_end(start in 0.5_f64..32.0, half_life in 0.7_f64..25.0) {
            let center = settle(start, half_life, 60);
            let lost = 1.0 - (-(center / half_life).powf(2.5) * 0.693).exp();
            prop_assert!((0.04..0.97).contains(&lost), "center {center}, {lost} lost");
        }

        #[test]
        fn windows_stay_in_range(center in 0.0_f64..1e3, shares in prop::collection::vec(0.0_f64..=1.0, 0..50)) {
            let mut planner = Planner::new(center);
            for share in shares {
                let window = planner.window_ms(2.0);
                prop_assert!(WINDOW_MS.contains(&window));
                planner.saw(window, share);
            }
        }
    }

    #[test]
    fn on_a_busy_host_it_goes_to_the_floor_and_on_a_calm_one_to_the_top() {
        assert!(settle(7.0, 0.05, 40) < 0.51);
        assert!(settle(7.0, 1e4, 40) > 31.9);
    }

    #[test]
    fn factors_cover_the_spread_evenly() {
        let mut factors = Planner::factors(16, &mut Xoshiro256PlusPlus::seed_from_u64(3));
        factors.sort_by(f64::total_cmp);
        assert!(factors[0] < 0.67 && factors[15] > 1.5);
        assert!(factors.windows(2).all(|pair| pair[1] / pair[0] < 1.2));
    }

    #[test]
    fn the_sweep_spans_the_allowed_windows() {
        let lengths = sweep(12);
        assert_eq!(lengths.len(), 12);
        assert!((lengths[0] - 0.5).abs() < 1e-9 && (lengths[11] - 32.0).abs() < 1e-9);
    }
}
