//! Which windows were hit by a placement jump: the vCPU moved to another LLC and lost everything at once.
//!
//! A strong burst of neighbors can lose everything too, and nothing in a single window tells the two apart.
//! The windows together do: bursts make the logarithmic pressure (see [`crate::attribution`]) vary smoothly,
//! so a host with many windows that lost all and few that lost nearly all moves its vCPUs. (On a Milan host
//! 47 of 1,500 windows of 2 ms lost more than 97 % of the lines, and 10 lost 80-97 %.) So the windows are
//! taken as a mixture: pressure is log-normal, and jumps come at a constant rate. Expectation-maximization
//! (Dempster, Laird and Rubin, 1977) fits it; a window's weight is the chance that no jump hit it.

use statrs::distribution::{Continuous, ContinuousCDF, Normal};

use crate::attribution::pressure;
use crate::curve::Observation;

/// A jump loses everything: the canary, up to reading errors and lines that had stayed in the L2 …
const LOST: f64 = 0.95;
/// … and the sentinels, which were touched last.
const SENTINELS_LOST: f64 = 0.9;
/// Fewer other windows than this say too little about bursts.
const WITNESSES: usize = 5;
/// What is believed of jumps before any window was seen: half a jump in half a second of windows.
const PRIOR: [f64; 2] = [0.5, 500.0];
/// Pressure varies at least this much (standard deviation of its logarithm).
const MIN_DEVIATION: f64 = 0.15;
const ITERATIONS: usize = 60;

/// A window as the mixture sees it.
struct Seen {
    /// Logarithm of its pressure; a lower limit if all was lost.
    log_pressure: f64,
    exposure_ms: f64,
    all_lost: bool,
    /// The sentinels do not speak against a jump.
    may_be_jump: bool,
}

/// Whether nothing seen in the window itself speaks against a jump.
#[must_use]
pub(crate) fn may_be_jump(observation: &Observation) -> bool {
    observation.window.share >= LOST && observation.sentinels_lost >= SENTINELS_LOST
}

/// For each window the chance, 0 to 1, that a jump hit it. `shape` is the Weibull shape of the host.
#[must_use]
pub(crate) fn jump_chances(observations: &[Observation], shape: f64) -> Vec<f64> {
    let seen: Vec<Seen> = observations
        .iter()
        .map(|o| {
            let all_lost = o.window.share >= LOST;
            let share = if all_lost { LOST } else { o.window.share };
            Seen {
                log_pressure: pressure(share, o.window.exposure_ms, shape).ln(),
                exposure_ms: o.window.exposure_ms,
                all_lost,
                may_be_jump: may_be_jump(o),
            }
        })
        .collect();
    let mut chances = vec![0.0; seen.len()];
    let witnesses = seen.iter().filter(|s| !s.all_lost).count();
    if witnesses < WITNESSES || witnesses == seen.len() {
        return chances;
    }
    let exposure: f64 = seen.iter().map(|s| s.exposure_ms).sum::<f64>() + PRIOR[1];
    let mut per_ms = PRIOR[0] / PRIOR[1];
    let mut bursts = start(&seen);
    for _ in 0..ITERATIONS {
        for (chance, seen) in chances.iter_mut().zip(&seen) {
            *chance = if seen.may_be_jump { chance_of(seen, &bursts, per_ms) } else { 0.0 };
        }
        per_ms = (chances.iter().sum::<f64>() + PRIOR[0]) / exposure;
        bursts = refit(&seen, &chances, &bursts);
    }
    chances
}

/// The log-normal law of pressure.
struct Bursts {
    mean: f64,
    deviation: f64,
}

impl Bursts {
    /// Standardized value.
    fn z(&self, log_pressure: f64) -> f64 {
        (log_pressure - self.mean) / self.deviation
    }
}

/// Bursts as the windows show them that did not lose everything.
fn start(seen: &[Seen]) -> Bursts {
    let values: Vec<f64> = seen.iter().filter(|s| !s.all_lost).map(|s| s.log_pressure).collect();
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
    Bursts { mean, deviation: variance.sqrt().max(MIN_DEVIATION) }
}

/// Chance that a window which lost everything was hit by a jump rather than by a burst.
fn chance_of(seen: &Seen, bursts: &Bursts, jumps_per_ms: f64) -> f64 {
    let jump = -(-jumps_per_ms * seen.exposure_ms).exp_m1();
    let burst = (1.0 - jump) * tail(bursts.z(seen.log_pressure));
    jump / (jump + burst)
}

/// Mean and deviation with the windows that lost everything filled in by their expectation.
fn refit(seen: &[Seen], chances: &[f64], old: &Bursts) -> Bursts {
    let (mut weight, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for (seen, jump) in seen.iter().zip(chances) {
        let (first, second) = if seen.all_lost {
            // Moments of a normal variable above z: φ(z)/Q(z), and 1 + z·φ(z)/Q(z).
            let z = old.z(seen.log_pressure);
            let mills = mills(z);
            let (m1, m2) = (mills, 1.0 + z * mills);
            let value = old.mean + old.deviation * m1;
            (value, old.mean.powi(2) + 2.0 * old.mean * old.deviation * m1 + old.deviation.powi(2) * m2)
        } else {
            (seen.log_pressure, seen.log_pressure.powi(2))
        };
        weight += 1.0 - jump;
        sum += (1.0 - jump) * first;
        squares += (1.0 - jump) * second;
    }
    let mean = sum / weight;
    Bursts { mean, deviation: (squares / weight - mean.powi(2)).max(0.0).sqrt().max(MIN_DEVIATION) }
}

/// Chance that a standard normal variable exceeds `z`.
fn tail(z: f64) -> f64 {
    Normal::standard().sf(z)
}

/// φ(z)/Q(z); its asymptote z + 1/z where both underflow.
fn mills(z: f64) -> f64 {
    if z > 30.0 { z + 1.0 / z } else { Normal::standard().pdf(z) / tail(z) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quell_core::stats::survival::Window;
    use rand::{RngExt, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    /// Windows of a host with bursts of a given deviation and jumps at a given rate, and which were hit.
    fn host(deviation: f64, jumps_per_ms: f64, count: usize, seed: u64) -> (Vec<Observation>, Vec<bool>) {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let normal = Normal::standard();
        (0..count)
            .map(|_| {
                let exposure_ms = 6.0 * rng.random_range(0.6..1.6);
                let hit = rng.random::<f64>() < 1.0 - (-jumps_per_ms * exposure_ms).exp();
                let rate = 0.14 * (deviation * normal.inverse_cdf(rng.random_range(0.0001..0.9999))).exp();
                let share = if hit { 1.0 } else { 1.0 - (-(rate * exposure_ms).powf(2.5)).exp() };
                let window = Window::new(exposure_ms, share, 0);
                (Observation { window, sentinels_lost: if share > 0.5 { 1.0 } else { 0.3 } }, hit)
            })
            .unzip()
    }

    fn found_and_true(deviation: f64, jumps_per_ms: f64) -> (f64, f64) {
        let (mut found, mut true_jumps) = (0.0, 0.0);
        for seed in 0..20 {
            let (observations, hit) = host(deviation, jumps_per_ms, 120, seed);
            found += jump_chances(&observations, 2.5).iter().sum::<f64>();
            true_jumps += hit.iter().filter(|&&hit| hit).count() as f64;
        }
        (found, true_jumps)
    }

    #[test]
    fn bursts_alone_are_not_taken_for_jumps() {
        for deviation in [0.1, 0.4, 0.8] {
            let (found, _) = found_and_true(deviation, 0.0);
            assert!(
                found < 0.03 * 2400.0,
                "deviation {deviation}: {found} jumps seen in 2400 windows without any"
            );
        }
    }

    #[test]
    fn jumps_are_found_among_moderate_bursts() {
        for deviation in [0.1, 0.3] {
            let (found, truth) = found_and_true(deviation, 0.01);
            assert!((0.4..1.3).contains(&(found / truth)), "deviation {deviation}: {found} of {truth}");
        }
    }

    proptest! {
        #[test]
        fn chances_are_chances(raw in prop::collection::vec((0.1_f64..50.0, 0.0_f64..=1.0, 0.0_f64..=1.0), 0..40)) {
            let observations: Vec<Observation> = raw
                .iter()
                .map(|&(exposure, share, sentinels_lost)| Observation {
                    window: Window::new(exposure, share, 0),
                    sentinels_lost,
                })
                .collect();
            for chance in jump_chances(&observations, 2.5) {
                prop_assert!((0.0..=1.0).contains(&chance));
            }
        }
    }
}
