//! Confidence intervals that respect dependent observations.

use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::Estimate;

/// Fewer blocks than this give no interval: with three blocks the t quantile is already 4.3.
pub const MIN_BLOCKS: usize = 4;

/// Delete-one-block jackknife of a statistic, with a 95 % interval from Student's t.
///
/// Observations that depend on one another (windows of the same second, samples of the same guest) go into
/// one block; blocks are taken to be independent. `statistic` gets the indices of the blocks to use and
/// returns the statistic on a scale where it is roughly symmetric, or `None` where it does not exist.
/// `n` is the number of observations to report.
///
/// The interval is `θ ± t(0.975, b−1) · SE`, with `SE² = (b−1)/b · Σ (θ₍ᵢ₎ − mean θ₍·₎)²` (Tukey 1958;
/// Efron and Tibshirani, "An Introduction to the Bootstrap", chapter 11).
pub fn jackknife(blocks: usize, n: usize, statistic: impl Fn(&[usize]) -> Option<f64>) -> Estimate {
    if blocks < MIN_BLOCKS {
        return Estimate::unknown(format!("only {blocks} of at least {MIN_BLOCKS} independent rounds"));
    }
    let all: Vec<usize> = (0..blocks).collect();
    let Some(value) = statistic(&all) else {
        return Estimate::unknown("the rounds do not determine a value");
    };
    let mut left_out = Vec::with_capacity(blocks);
    for skipped in 0..blocks {
        let rest: Vec<usize> = all.iter().copied().filter(|&block| block != skipped).collect();
        let Some(partial) = statistic(&rest) else {
            return Estimate::unknown("the value hangs on a single round");
        };
        left_out.push(partial);
    }
    let b = blocks as f64;
    let mean = left_out.iter().sum::<f64>() / b;
    let error = ((b - 1.0) / b * left_out.iter().map(|v| (v - mean).powi(2)).sum::<f64>()).sqrt();
    let half = t975(blocks - 1) * error;
    Estimate::known(value, [value - half, value + half], n)
}

/// The 97.5 % quantile of Student's t with `freedom` degrees of freedom (1 or more).
#[must_use]
pub fn t975(freedom: usize) -> f64 {
    StudentsT::new(0.0, 1.0, freedom as f64).map_or(f64::INFINITY, |t| t.inverse_cdf(0.975))
}

/// The mean of `data` with its 95 % interval, each value taken as independent.
#[must_use]
pub fn mean_estimate(data: &[f64]) -> Estimate {
    jackknife(data.len(), data.len(), |kept| {
        Some(kept.iter().map(|&i| data[i]).sum::<f64>() / kept.len() as f64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_has_its_textbook_interval() {
        // Standard error of the mean of 1..=5 is sqrt(2.5/5); t(0.975, 4) is 2.776.
        let estimate = mean_estimate(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        let [lo, hi] = estimate.ci95().unwrap();
        let half = 2.776_445 * 0.5_f64.sqrt();
        assert_eq!(estimate.value(), Some(3.0));
        assert!((lo - (3.0 - half)).abs() < 1e-4 && (hi - (3.0 + half)).abs() < 1e-4, "{lo} {hi}");
    }

    #[test]
    fn too_few_blocks_give_no_interval() {
        assert!(mean_estimate(&[1.0, 2.0, 3.0]).reason().is_some());
    }
}
