//! Quantiles of a sample.

/// The nearest-rank quantile of unsorted data: the smallest value with at least a share `p` of the data at
/// or below it. `None` for no data or a `p` outside 0 to 1.
///
/// Definition 1 of Hyndman and Fan, "Sample quantiles in statistical packages", 1996.
#[must_use]
pub fn quantile(data: &[f64], p: f64) -> Option<f64> {
    if data.is_empty() || !(0.0..=1.0).contains(&p) {
        return None;
    }
    let mut sorted = data.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (p * sorted.len() as f64).ceil() as usize;
    Some(sorted[rank.saturating_sub(1)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rank() {
        let data = [40.0, 10.0, 30.0, 20.0];
        assert_eq!(quantile(&data, 0.0), Some(10.0));
        assert_eq!(quantile(&data, 0.5), Some(20.0));
        assert_eq!(quantile(&data, 0.51), Some(30.0));
        assert_eq!(quantile(&data, 1.0), Some(40.0));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&data, 1.5), None);
    }
}
