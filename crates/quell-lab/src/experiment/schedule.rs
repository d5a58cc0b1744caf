//! The order of the guests.

/// The arm of each guest, by index: A B, then B A, then A B …, so that slow drift of the host hits all arms
/// alike.
#[must_use]
pub fn schedule(arms: usize, guests_per_arm: u32) -> Vec<usize> {
    let mut order = Vec::with_capacity(arms * guests_per_arm as usize);
    for round in 0..guests_per_arm {
        if round % 2 == 0 {
            order.extend(0..arms);
        } else {
            order.extend((0..arms).rev());
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_arms_go_abba() {
        assert_eq!(schedule(2, 4), [0, 1, 1, 0, 0, 1, 1, 0]);
        assert_eq!(schedule(3, 2), [0, 1, 2, 2, 1, 0]);
        assert_eq!(schedule(1, 3), [0, 0, 0]);
        assert_eq!(schedule(0, 3), Vec::<usize>::new());
    }

    #[test]
    fn a_linear_drift_is_the_same_for_both_arms() {
        let order = schedule(2, 6);
        let sum =
            |arm: usize| order.iter().enumerate().filter(|(_, a)| **a == arm).map(|(i, _)| i).sum::<usize>();
        assert_eq!(sum(0), sum(1));
    }
}
