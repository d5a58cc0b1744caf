//! How many classes a one-dimensional sample has: a mixture of normal distributions, fitted by
//! expectation-maximization, with the number of components chosen by the Bayesian information criterion
//! (Fraley and Raftery, "Model-based clustering, discriminant analysis, and density estimation", 2002).
//!
//! A thin uniform background takes up outliers, as in section 5 of the same paper.

/// Components tried.
const MAX_COMPONENTS: usize = 4;
/// Largest share of the sample that may be outliers.
const MAX_BACKGROUND: f64 = 0.03;
/// Steps of expectation and maximization per start.
const STEPS: usize = 40;

/// One normal component.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Component {
    /// Share of the sample, 0 to 1.
    pub weight: f64,
    /// Its center.
    pub mean: f64,
    /// Its standard deviation.
    pub sd: f64,
}

impl Component {
    fn density(&self, x: f64) -> f64 {
        let z = (x - self.mean) / self.sd;
        self.weight * (-0.5 * z * z).exp() / (self.sd * (2.0 * std::f64::consts::PI).sqrt())
    }
}

#[derive(Clone, Debug)]
struct Fit {
    components: Vec<Component>,
    log_likelihood: f64,
}

/// Fits one to four components to sorted, finite data and returns them in ascending order; none without data.
///
/// No component gets a standard deviation below `floor`, so that equal values do not form a spike.
pub(crate) fn components(sorted: &[f64], floor: f64) -> Vec<Component> {
    let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
        return Vec::new();
    };
    let range = (max - min).max(floor);
    // Each component more brings a weight, a center and a spread.
    let penalty = 1.5 * (sorted.len() as f64).ln();
    let median = sorted[sorted.len() / 2];
    let mut best =
        maximize(sorted, vec![Component { weight: 1.0, mean: median, sd: range / 4.0 }], floor, range);
    while best.components.len() < MAX_COMPONENTS {
        let more = starts(&best.components, sorted, floor)
            .into_iter()
            .map(|start| maximize(sorted, start, floor, range))
            .max_by(|a, b| a.log_likelihood.total_cmp(&b.log_likelihood));
        match more {
            Some(more) if more.log_likelihood > best.log_likelihood + penalty => best = more,
            _ => break,
        }
    }
    best.components.sort_by(|a, b| a.mean.total_cmp(&b.mean));
    best.components
}

/// Ways to add a component: split one, or put a new one where little data may be.
fn starts(components: &[Component], sorted: &[f64], floor: f64) -> Vec<Vec<Component>> {
    let split = (0..components.len()).map(|i| {
        let Component { weight, mean, sd } = components[i];
        let mut start = components.to_vec();
        start[i] = Component { weight: weight / 2.0, mean: mean - sd, sd: (sd / 2.0).max(floor) };
        start.push(Component { weight: weight / 2.0, mean: mean + sd, sd: (sd / 2.0).max(floor) });
        start
    });
    let added = [0.03, 0.25, 0.75, 0.97].into_iter().map(|p| {
        let mean = sorted[(p * (sorted.len() - 1) as f64) as usize];
        let mut start: Vec<Component> =
            components.iter().map(|c| Component { weight: 0.95 * c.weight, ..*c }).collect();
        start.push(Component { weight: 0.05, mean, sd: 2.0 * floor });
        start
    });
    split.chain(added).collect()
}

/// Expectation-maximization from a start.
fn maximize(sorted: &[f64], mut components: Vec<Component>, floor: f64, range: f64) -> Fit {
    let mut background = MAX_BACKGROUND / 2.0;
    let mut log_likelihood = f64::NEG_INFINITY;
    for _ in 0..STEPS {
        // Per component: the sums of responsibility, of x and of x², weighted with it.
        let mut sums = [(0.0, 0.0, 0.0); MAX_COMPONENTS];
        let mut outliers = 0.0;
        let mut likelihood = 0.0;
        for &x in sorted {
            let mut densities = [0.0; MAX_COMPONENTS];
            let mut total = background / range;
            for (density, component) in densities.iter_mut().zip(&components) {
                *density = (1.0 - background) * component.density(x);
                total += *density;
            }
            likelihood += total.ln();
            outliers += background / range / total;
            for (sum, density) in sums.iter_mut().zip(densities) {
                let share = density / total;
                sum.0 += share;
                sum.1 += share * x;
                sum.2 += share * x * x;
            }
        }
        let inside: f64 = sums.iter().map(|sum| sum.0).sum();
        for (component, (weight, x, xx)) in components.iter_mut().zip(sums) {
            if weight > 1e-9 {
                component.mean = x / weight;
                component.sd = (xx / weight - component.mean * component.mean).max(0.0).sqrt().max(floor);
            }
            component.weight = weight / inside;
        }
        background = (outliers / sorted.len() as f64).clamp(1e-6, MAX_BACKGROUND);
        let gain = likelihood - log_likelihood;
        log_likelihood = likelihood;
        if gain.abs() < 1e-2 {
            break;
        }
    }
    Fit { components, log_likelihood }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::prelude::*;
    use rand_distr::Normal;
    use rand_xoshiro::Xoshiro256PlusPlus;

    #[test]
    fn finds_centers_spreads_and_weights() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(3);
        let (a, b) = (Normal::new(1.0, 0.1).unwrap(), Normal::new(3.0, 0.4).unwrap());
        let mut data: Vec<f64> =
            (0..400).map(|i| if i % 4 == 0 { a.sample(&mut rng) } else { b.sample(&mut rng) }).collect();
        data.push(20.0);
        data.sort_by(f64::total_cmp);
        let found = components(&data, 0.05);
        assert_eq!(found.len(), 2, "{found:?}");
        for (got, (weight, mean, sd)) in found.iter().zip([(0.25, 1.0, 0.1), (0.75, 3.0, 0.4)]) {
            assert!((got.weight - weight).abs() < 0.03, "{got:?}");
            assert!((got.mean - mean).abs() < 0.06 && (got.sd - sd).abs() < 0.06, "{got:?}");
        }
    }

    #[test]
    fn equal_values_and_little_data_are_survived() {
        assert!(components(&[], 0.05).is_empty());
        assert_eq!(components(&[2.0], 0.05).len(), 1);
        let equal = components(&[2.0; 50], 0.05);
        assert_eq!((equal.len(), equal[0].mean, equal[0].sd), (1, 2.0, 0.05));
    }
}
