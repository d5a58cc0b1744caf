//! Rank statistics: do two series order alike, does a score tell two groups apart.

/// Spearman's rank correlation, ties given their mean rank. `None` for fewer than three pairs, different
/// lengths, or a series that does not vary.
#[must_use]
pub fn spearman(x: &[f64], y: &[f64]) -> Option<f64> {
    if x.len() != y.len() || x.len() < 3 {
        return None;
    }
    pearson(&ranks(x), &ranks(y))
}

/// Area under the ROC curve: the chance that a random value of `positive` exceeds one of `negative`, ties
/// counting half (Mann-Whitney U over n·m). `None` if either is empty.
#[must_use]
pub fn auc(negative: &[f64], positive: &[f64]) -> Option<f64> {
    if negative.is_empty() || positive.is_empty() {
        return None;
    }
    let all: Vec<f64> = negative.iter().chain(positive).copied().collect();
    let rank_sum: f64 = ranks(&all)[negative.len()..].iter().sum();
    let m = positive.len() as f64;
    Some((rank_sum - m * (m + 1.0) / 2.0) / (m * negative.len() as f64))
}

/// Ranks from 1, tied values sharing the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    while start < order.len() {
        let tied = order[start..].iter().take_while(|&&i| values[i] == values[order[start]]).count();
        let rank = start as f64 + (tied as f64 + 1.0) / 2.0;
        for &i in &order[start..start + tied] {
            ranks[i] = rank;
        }
        start += tied;
    }
    ranks
}

fn pearson(x: &[f64], y: &[f64]) -> Option<f64> {
    let n = x.len() as f64;
    let (mean_x, mean_y) = (x.iter().sum::<f64>() / n, y.iter().sum::<f64>() / n);
    let covariance: f64 = x.iter().zip(y).map(|(a, b)| (a - mean_x) * (b - mean_y)).sum();
    let variance = |v: &[f64], mean: f64| v.iter().map(|a| (a - mean).powi(2)).sum::<f64>();
    let product = variance(x, mean_x) * variance(y, mean_y);
    (product > 0.0).then(|| covariance / product.sqrt())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn monotonic_series_correlate_fully() {
        let x = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(spearman(&x, &[1.0, 4.0, 9.0, 16.0]), Some(1.0));
        assert_eq!(spearman(&x, &[4.0, 3.0, 2.0, -1.0]), Some(-1.0));
        assert_eq!(spearman(&x, &[5.0; 4]), None);
    }

    #[test]
    fn ties_share_their_rank() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [3.5, 1.0, 3.5, 2.0]);
    }

    #[test]
    fn auc_of_separate_equal_and_reversed_groups() {
        assert_eq!(auc(&[1.0, 2.0], &[3.0, 4.0]), Some(1.0));
        assert_eq!(auc(&[1.0, 2.0], &[1.0, 2.0]), Some(0.5));
        assert_eq!(auc(&[3.0, 4.0], &[1.0, 2.0]), Some(0.0));
        assert_eq!(auc(&[], &[1.0]), None);
    }

    proptest! {
        #[test]
        fn auc_is_the_share_of_ordered_pairs(a in prop::collection::vec(0_u8..20, 1..20),
                                             b in prop::collection::vec(0_u8..20, 1..20)) {
            let (a, b): (Vec<f64>, Vec<f64>) =
                (a.into_iter().map(f64::from).collect(), b.into_iter().map(f64::from).collect());
            let mut won = 0.0;
            for x in &a {
                for y in &b {
                    won += if y > x { 1.0 } else if y == x { 0.5 } else { 0.0 };
                }
            }
            let expected = won / (a.len() * b.len()) as f64;
            prop_assert!((auc(&a, &b).unwrap() - expected).abs() < 1e-9);
        }
    }
}
