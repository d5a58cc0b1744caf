//! The time-stamp counter's step: on many clouds it advances 20-30 ticks at a time, which hides the
//! difference between an L1 and an L2 hit from any single load.

use quell_core::{Line, Memory, Ticks};

/// What is known of the time-stamp counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timer {
    /// Rate in ticks per millisecond.
    pub ticks_per_ms: f64,
    /// The counter's step in ticks, 1 where it counts singly.
    pub step_ticks: f64,
    /// The counter was never seen to go backwards.
    pub monotonic: bool,
}

impl Timer {
    /// The step in nanoseconds.
    #[must_use]
    pub fn step_ns(&self) -> f64 {
        self.step_ticks / self.ticks_per_ms * 1e6
    }
}

/// Longest interval that takes part, in ticks: the error of a guessed step grows with the interval.
const LONGEST: u64 = 1200;
/// Share of intervals that must be multiples of the step.
const ENOUGH: f64 = 0.97;

/// Measures the step from a few thousand intervals of different lengths. `lines` are touched in between to
/// vary them.
pub(crate) fn measure(memory: &mut impl Memory, lines: &[Line]) -> Timer {
    let mut intervals = Vec::new();
    let mut monotonic = true;
    let mut last = memory.now();
    for round in 0..800 {
        memory.load(&lines[..round % lines.len()]);
        let now = memory.now();
        monotonic &= now >= last;
        let interval = now.since(last);
        if interval > Ticks(0) && interval < Ticks(LONGEST) {
            intervals.push(interval.0 as f64);
        }
        last = now;
    }
    Timer { ticks_per_ms: memory.ticks_per_ms(), step_ticks: step(&intervals), monotonic }
}

/// The largest step of which nearly all intervals are multiples, to within a tick of rounding at either end.
fn step(intervals: &[f64]) -> f64 {
    if intervals.is_empty() {
        return 1.0;
    }
    let fits = |step: f64| {
        let good = intervals.iter().filter(|&&t| (t - (t / step).round() * step).abs() <= 1.05).count();
        good as f64 >= ENOUGH * intervals.len() as f64
    };
    // Below 8 ticks nearly everything lies within a tick of a multiple, which proves nothing.
    let coarse = (160..=4000).rev().map(|twentieths| f64::from(twentieths) / 20.0).find(|&step| fits(step));
    if let Some(guess) = coarse {
        let multiples = intervals.iter().map(|t| (t / guess).round());
        let (product, square) =
            intervals.iter().zip(multiples).fold((0.0, 0.0), |(p, s), (t, m)| (p + t * m, s + m * m));
        return product / square;
    }
    if intervals.iter().all(|t| t % 2.0 == 0.0) { 2.0 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_coarse_step_is_found(step_ticks in 15.0_f64..80.0, seed in 1_u32..1000) {
            let intervals: Vec<f64> = (0..300_u32)
                .map(|i| (f64::from(1 + (i * 7 + seed) % 12) * step_ticks).round())
                .collect();
            let found = step(&intervals);
            prop_assert!((found / step_ticks - 1.0).abs() < 0.05, "{found}");
        }

        #[test]
        fn a_counter_without_step_has_step_one(offset in 30_u32..60) {
            let intervals: Vec<f64> = (0..300_u32).map(|i| f64::from(offset + (i * 7919) % 97)).collect();
            prop_assert_eq!(step(&intervals), 1.0);
        }
    }
}
