//! Random numbers that are the same on every machine.
//!
//! The samplers are own code for one reason: `f64::exp` and `f64::ln` call the platform's mathematics library,
//! whose last bits differ, and then two machines disagree on a whole run. The `libm` crate is portable.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

/// Above this mean, a Poisson number is drawn from its normal approximation of second order.
const POISSON_DIRECT: f64 = 30.0;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Rng(Xoshiro256PlusPlus);

impl Rng {
    /// The stream `stream` of a run: streams of one seed are unrelated to each other.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(mix(seed).wrapping_add(mix(stream ^ 0x51ed_2701_89ab_cdef))))
    }

    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in [0, 1).
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform below `n`.
    #[inline]
    pub fn below(&mut self, n: u32) -> u32 {
        (((self.0.next_u64() >> 32) * u64::from(n)) >> 32) as u32
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -libm::log(1.0 - self.unit())
    }

    /// Standard normal.
    pub fn normal(&mut self) -> f64 {
        // The centre of one of 2^53 equal cells: never 0 or 1.
        normal_quantile((self.unit() + 0.5 / (1u64 << 53) as f64).min(1.0 - f64::EPSILON / 2.0))
    }

    /// `median` times a log-normal number whose logarithm has standard deviation `log_sd`.
    pub fn log_normal(&mut self, median: f64, log_sd: f64) -> f64 {
        median * libm::exp(log_sd * self.normal())
    }

    /// Poisson (at most a million) with the given mean, by inversion of the uniform number `u`, which the
    /// caller may already have looked at.
    pub fn poisson(mean: f64, u: f64) -> u32 {
        if mean < POISSON_DIRECT {
            let (mut k, mut p) = (0u32, exp_minus(mean));
            let mut sum = p;
            while u >= sum && k < 200 {
                k += 1;
                p *= mean / f64::from(k);
                sum += p;
            }
            return k;
        }
        // Cornish-Fisher expansion to second order; its error is far below one event for such means.
        let z = normal_quantile(u.clamp(1e-15, 1.0 - 1e-15));
        let x = mean + mean.sqrt() * z + (z * z - 1.0) / 6.0;
        (x + 0.5).floor().clamp(0.0, 1e6) as u32
    }
}

/// exp(-x) for x ≥ 0. For small x a Taylor polynomial, good to 1e-11, is several times faster.
#[inline]
fn exp_minus(x: f64) -> f64 {
    if x > 0.125 {
        return libm::exp(-x);
    }
    1.0 - x * (1.0 - x / 2.0 * (1.0 - x / 3.0 * (1.0 - x / 4.0 * (1.0 - x / 5.0 * (1.0 - x / 6.0)))))
}

/// The finaliser of `SplitMix64`: spreads every input bit over the whole word.
pub(crate) const fn mix(value: u64) -> u64 {
    let x = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Quantile of the standard normal distribution for 0 < p < 1: Acklam's rational approximation, relative
/// error below 1.2e-9 (P. J. Acklam, "An algorithm for computing the inverse normal cumulative distribution
/// function", 2003).
pub(crate) fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969683028665376e+01,
        2.209460984245205e+02,
        -2.759285104469687e+02,
        1.38357751867269e+02,
        -3.066479806614716e+01,
        2.506628277459239e+00,
    ];
    const B: [f64; 5] = [
        -5.447609879822406e+01,
        1.615858368580409e+02,
        -1.556989798598866e+02,
        6.680131188771972e+01,
        -1.328068155288572e+01,
    ];
    const C: [f64; 6] = [
        -7.784894002430293e-03,
        -3.223964580411365e-01,
        -2.400758277161838e+00,
        -2.549732539343734e+00,
        4.374664141464968e+00,
        2.938163982698783e+00,
    ];
    const D: [f64; 4] =
        [7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00];
    const TAIL: f64 = 0.02425;
    let horner = |coefficients: &[f64], x: f64| coefficients.iter().fold(0.0, |sum, c| sum * x + c);
    if p < TAIL {
        let q = (-2.0 * libm::log(p)).sqrt();
        horner(&C, q) / (horner(&D, q) * q + 1.0)
    } else if p > 1.0 - TAIL {
        -normal_quantile(1.0 - p)
    } else {
        let q = p - 0.5;
        let r = q * q;
        horner(&A, r) * q / (horner(&B, r) * r + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(mut draw: impl FnMut() -> f64) -> (f64, f64) {
        let n = 200_000;
        let values: Vec<f64> = (0..n).map(|_| draw()).collect();
        let mean = values.iter().sum::<f64>() / f64::from(n);
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / f64::from(n);
        (mean, variance)
    }

    #[test]
    fn poisson_has_the_right_mean_and_variance_in_both_branches() {
        for mean in [0.01, 0.7, 8.0, 29.9, 30.1, 300.0] {
            let mut rng = Rng::new(1, 2);
            let (m, v) = moments(|| f64::from(Rng::poisson(mean, rng.unit())));
            let error = (mean / 200_000f64).sqrt();
            assert!((m - mean).abs() < 5.0 * error, "mean {m} for {mean}");
            assert!((v / mean - 1.0).abs() < 0.05, "variance {v} for {mean}");
        }
    }

    #[test]
    fn normal_and_exponential_have_their_moments() {
        let mut rng = Rng::new(3, 4);
        let (m, v) = moments(|| rng.normal());
        assert!(m.abs() < 0.012 && (v - 1.0).abs() < 0.02, "{m} {v}");
        let (m, v) = moments(|| rng.exponential());
        assert!((m - 1.0).abs() < 0.012 && (v - 1.0).abs() < 0.04, "{m} {v}");
    }

    #[test]
    fn the_normal_quantile_meets_the_tabulated_values() {
        for (p, z) in [(0.5, 0.0), (0.975, 1.959_964), (0.01, -2.326_348), (0.999_9, 3.719_016)] {
            assert!((normal_quantile(p) - z).abs() < 1e-6, "{p}");
        }
    }

    #[test]
    fn streams_of_one_seed_and_seeds_of_one_stream_differ() {
        assert_ne!(Rng::new(1, 1).bits(), Rng::new(1, 2).bits());
        assert_ne!(Rng::new(1, 1).bits(), Rng::new(2, 1).bits());
        assert_eq!(Rng::new(1, 1).bits(), Rng::new(1, 1).bits());
    }
}
