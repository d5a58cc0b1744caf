//! Smoothing of a series over time: a moving average for numbers, hysteresis for grades.

/// Exponentially weighted moving average; the weight is that of the *old* value.
#[derive(Clone, Copy, Debug)]
pub struct Ewma {
    old_weight: f64,
    value: Option<f64>,
}

impl Ewma {
    /// An average that keeps a share `old_weight` (0 to 1) of its former value at each update.
    #[must_use]
    pub const fn new(old_weight: f64) -> Self {
        Self { old_weight, value: None }
    }

    /// The same, with a first value.
    #[must_use]
    pub const fn starting_at(old_weight: f64, value: f64) -> Self {
        Self { old_weight, value: Some(value) }
    }

    /// Takes in a new value and returns the average; the first value is taken as it is.
    pub fn update(&mut self, new: f64) -> f64 {
        let value = self.value.map_or(new, |old| self.old_weight * old + (1.0 - self.old_weight) * new);
        self.value = Some(value);
        value
    }

    /// The average, if there was any value yet.
    #[must_use]
    pub const fn get(&self) -> Option<f64> {
        self.value
    }
}

/// A grade that changes only after the same other grade was seen several times in a row.
#[derive(Clone, Copy, Debug)]
pub struct Hysteresis<T> {
    rounds: u32,
    current: Option<T>,
    candidate: Option<(T, u32)>,
}

impl<T: Copy + PartialEq> Hysteresis<T> {
    /// A change needs `rounds` equal observations in a row; the first observation is taken at once.
    #[must_use]
    pub const fn new(rounds: u32) -> Self {
        Self { rounds, current: None, candidate: None }
    }

    /// Takes in an observation and returns the grade in force.
    pub fn update(&mut self, seen: T) -> T {
        let Some(current) = self.current else {
            self.current = Some(seen);
            return seen;
        };
        self.candidate = match self.candidate {
            _ if seen == current => None,
            Some((grade, times)) if grade == seen => Some((grade, times + 1)),
            _ => Some((seen, 1)),
        };
        if self.candidate.is_some_and(|(_, times)| times >= self.rounds) {
            self.current = Some(seen);
            self.candidate = None;
            return seen;
        }
        current
    }

    /// Forgets everything: what follows a gap in the observations says nothing about what was before.
    pub fn reset(&mut self) {
        *self = Self::new(self.rounds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ewma_weights_the_old_value() {
        let mut average = Ewma::new(0.85);
        assert_eq!(average.get(), None);
        assert_eq!(average.update(10.0), 10.0);
        assert!((average.update(20.0) - 11.5).abs() < 1e-12);
    }

    #[test]
    fn a_grade_changes_after_three_equal_rounds_only() {
        let mut grade = Hysteresis::new(3);
        let seen = ['a', 'b', 'b', 'a', 'b', 'b', 'c', 'b', 'b', 'b'];
        let in_force: String = seen.into_iter().map(|s| grade.update(s)).collect();
        assert_eq!(in_force, "aaaaaaaaab");
    }

    #[test]
    fn after_a_reset_the_first_observation_counts_at_once() {
        let mut grade = Hysteresis::new(3);
        grade.update(1);
        grade.reset();
        assert_eq!(grade.update(2), 2);
    }
}
