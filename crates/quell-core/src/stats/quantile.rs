//! Quantiles of a sample.

/// The nearest-rank quantile of unsorted data: the smallest value with at least a share `p` of the data at
/// or below it. `None` for no data or a `p` outside 0 to 1.
///
/// Definition 1 of Hyndman and Fan, "Sample quantiles in statistical packages", 1996.
#[must_use]
pub fn quantile(data: &[f64], p: f64) -> Option<f64> {
    let index = rank_index(data.len(), p)?;
    let mut sorted = data.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some(sorted[index])
}

/// The index, from 0, of the nearest-rank quantile in `n` sorted values.
pub(super) fn rank_index(n: usize, p: f64) -> Option<usize> {
    let known = n > 0 && (0.0..=1.0).contains(&p);
    known.then(|| ((p * n as f64).ceil() as usize).saturating_sub(1))
}

/// The element `floor(p (n − 1))` of the sorted data, counted from 0: what much benchmark code calls a
/// percentile. In small samples it is below [`quantile`].
/// `None` for no data or a `p` outside 0 to 1.
#[must_use]
pub fn quantile_floor(data: &[f64], p: f64) -> Option<f64> {
    if data.is_empty() || !(0.0..=1.0).contains(&p) {
        return None;
    }
    let mut sorted = data.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some(sorted[(p * (sorted.len() - 1) as f64).floor() as usize])
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

    #[test]
    fn the_two_definitions_differ_where_they_should() {
        let data: Vec<f64> = (1..=600).map(f64::from).collect();
        assert_eq!(quantile(&data, 0.99), Some(594.0));
        assert_eq!(quantile_floor(&data, 0.99), Some(594.0));
        let data: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!(quantile(&data, 0.99), Some(10.0));
        assert_eq!(quantile_floor(&data, 0.99), Some(9.0));
        assert_eq!(quantile_floor(&data, 1.0), Some(10.0));
        assert_eq!(quantile_floor(&[], 0.5), None);
    }
}
