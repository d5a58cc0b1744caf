//! Comparison of two groups of machines, each of which gave many samples.
//!
//! Samples of one guest are alike (same boot, same memory layout), so the guests are the independent
//! observations, not the samples. The confidence interval resamples guests and then samples within each; the
//! test permutes whole guests between the groups. Davison and Hinkley, "Bootstrap Methods and their
//! Application", 1997, sections 3.8 and 4.3.

use rand::{Rng, RngExt};

use super::quantile::rank_index;

/// Fewest guests in a group for a confidence interval.
pub const MIN_GUESTS: usize = 4;
/// Permutations above which they are drawn instead of enumerated.
const MAX_EXACT: u64 = 5_000;

/// The quantile of all samples of some guests together (nearest rank). `None` if there are none.
#[must_use]
pub fn pooled_quantile(guests: &[Vec<f64>], p: f64) -> Option<f64> {
    let mut all: Vec<f64> = guests.iter().flatten().copied().collect();
    select(&mut all, p)
}

fn select(data: &mut [f64], p: f64) -> Option<f64> {
    let index = rank_index(data.len(), p)?;
    Some(*data.select_nth_unstable_by(index, f64::total_cmp).1)
}

/// The 95 % percentile-bootstrap interval of "quantile of `a` divided by quantile of `b`".
///
/// `None` with fewer than [`MIN_GUESTS`] guests in a group: so few say nothing about how guests differ.
#[must_use]
pub fn ratio_ci95<R: Rng>(
    a: &[Vec<f64>],
    b: &[Vec<f64>],
    p: f64,
    resamples: usize,
    rng: &mut R,
) -> Option<[f64; 2]> {
    if a.len().min(b.len()) < MIN_GUESTS {
        return None;
    }
    let mut ratios = Vec::with_capacity(resamples);
    let mut buffer = Vec::new();
    for _ in 0..resamples {
        let top = resampled_quantile(a, p, &mut buffer, rng)?;
        let bottom = resampled_quantile(b, p, &mut buffer, rng)?;
        ratios.push(top / bottom);
    }
    let lower = select(&mut ratios, 0.025)?;
    let upper = select(&mut ratios, 0.975)?;
    (lower.is_finite() && upper.is_finite()).then_some([lower, upper])
}

fn resampled_quantile<R: Rng>(
    guests: &[Vec<f64>],
    p: f64,
    buffer: &mut Vec<f64>,
    rng: &mut R,
) -> Option<f64> {
    buffer.clear();
    for _ in 0..guests.len() {
        let guest = &guests[rng.random_range(0..guests.len())];
        if !guest.is_empty() {
            buffer.extend((0..guest.len()).map(|_| guest[rng.random_range(0..guest.len())]));
        }
    }
    select(buffer, p)
}

/// The two-sided p-value of "the guests' groups do not matter".
///
/// The effect is the difference between the groups' means of the logarithm of each guest's own quantile, so
/// that groups without any overlap always have the largest effect of all divisions. All divisions of the guests
/// are enumerated if there are at most 5,000, otherwise `draws` are drawn. `None` with fewer than two guests in a
/// group, or a quantile that is not positive.
#[must_use]
pub fn permutation_p<R: Rng>(
    a: &[Vec<f64>],
    b: &[Vec<f64>],
    p: f64,
    draws: usize,
    rng: &mut R,
) -> Option<f64> {
    if a.len().min(b.len()) < 2 {
        return None;
    }
    let level = |guest: &Vec<f64>| select(&mut guest.clone(), p).filter(|value| *value > 0.0).map(f64::ln);
    let levels: Vec<f64> = a.iter().chain(b).map(level).collect::<Option<_>>()?;
    let effect = |in_a: &[bool]| {
        let sum = |wanted: bool| {
            levels.iter().zip(in_a).filter(|(_, is)| **is == wanted).map(|(level, _)| level).sum::<f64>()
        };
        (sum(true) / a.len() as f64 - sum(false) / b.len() as f64).abs()
    };
    let mut labels: Vec<bool> = (0..levels.len()).map(|index| index < a.len()).collect();
    // Equal effects must compare equal although they are summed differently.
    let observed = effect(&labels) - 1e-9;
    let (mut at_least, mut total) = (0_u64, 0_u64);
    if binomial(levels.len(), a.len()).is_some_and(|count| count <= MAX_EXACT) {
        labels.sort_unstable();
        loop {
            total += 1;
            at_least += u64::from(effect(&labels) >= observed);
            if !next_permutation(&mut labels) {
                break;
            }
        }
    } else {
        // The observed division counts as one of the draws, so that p is never zero.
        (at_least, total) = (1, 1);
        for _ in 0..draws {
            for last in (1..labels.len()).rev() {
                labels.swap(last, rng.random_range(0..=last));
            }
            total += 1;
            at_least += u64::from(effect(&labels) >= observed);
        }
    }
    Some(at_least as f64 / total as f64)
}

fn binomial(n: usize, k: usize) -> Option<u64> {
    (0..k.min(n - k) as u64).try_fold(1_u64, |product, i| Some(product.checked_mul(n as u64 - i)? / (i + 1)))
}

/// The next division in lexicographic order; `false` after the last.
fn next_permutation(labels: &mut [bool]) -> bool {
    let Some(pivot) = (1..labels.len()).rev().find(|&i| !labels[i - 1] && labels[i]) else { return false };
    let last = (pivot..labels.len()).rev().find(|&i| labels[i]).unwrap_or(pivot);
    labels.swap(pivot - 1, last);
    labels[pivot..].reverse();
    true
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    /// A skewed sample with a heavy tail around `scale`, as latencies are.
    fn guest(scale: f64, n: usize, rng: &mut Xoshiro256PlusPlus) -> Vec<f64> {
        let own = scale * (0.3 * normal(rng)).exp();
        (0..n)
            .map(|_| own * (0.2 * normal(rng)).exp() * if rng.random_bool(0.02) { 8.0 } else { 1.0 })
            .collect()
    }

    fn normal(rng: &mut Xoshiro256PlusPlus) -> f64 {
        (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0
    }

    fn group(scale: f64, guests: usize, rng: &mut Xoshiro256PlusPlus) -> Vec<Vec<f64>> {
        (0..guests).map(|_| guest(scale, 60, rng)).collect()
    }

    #[test]
    fn all_divisions_are_visited_once() {
        let mut labels = vec![false, false, true, true, true];
        let mut seen = std::collections::BTreeSet::from([labels.clone()]);
        while next_permutation(&mut labels) {
            assert!(seen.insert(labels.clone()));
        }
        assert_eq!(seen.len() as u64, binomial(5, 3).unwrap());
        assert_eq!(binomial(200, 100), None);
    }

    #[test]
    fn the_smallest_p_is_one_division_of_all_and_its_mirror() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let (a, b) = (vec![vec![10.0], vec![11.0], vec![12.0], vec![13.0]], vec![vec![1.0]; 4]);
        assert_eq!(permutation_p(&a, &b, 0.5, 0, &mut rng), Some(2.0 / 70.0));
        assert_eq!(permutation_p(&a[..1], &b, 0.5, 0, &mut rng), None);
        assert_eq!(ratio_ci95(&a[..3], &b, 0.5, 50, &mut rng), None);
    }

    #[test]
    fn equal_groups_are_called_different_in_at_most_one_case_of_twenty() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(20);
        let rounds = 300;
        let mut different = 0;
        for round in 0..rounds {
            let n = 4 + round % 3;
            let (a, b) = (group(100.0, n, &mut rng), group(100.0, n, &mut rng));
            let p = permutation_p(&a, &b, 0.5, 300, &mut rng).unwrap();
            let ci = ratio_ci95(&a, &b, 0.5, 200, &mut rng).unwrap();
            different += usize::from(p < 0.05 && !(ci[0] <= 1.0 && 1.0 <= ci[1]));
        }
        assert!(different * 20 <= rounds, "{different} of {rounds}");
    }

    #[test]
    fn a_real_difference_is_found_and_bracketed() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(3);
        let (mut found, mut covered) = (0, 0);
        for _ in 0..40 {
            let (a, b) = (group(300.0, 6, &mut rng), group(100.0, 6, &mut rng));
            let ci = ratio_ci95(&a, &b, 0.5, 200, &mut rng).unwrap();
            found += usize::from(permutation_p(&a, &b, 0.5, 300, &mut rng).unwrap() < 0.05 && ci[0] > 1.0);
            covered += usize::from(ci[0] <= 3.0 && 3.0 <= ci[1]);
        }
        assert!(found >= 38 && covered >= 32, "found {found}, covered {covered} of 40");
    }
}
