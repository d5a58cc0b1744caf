//! Near or far: the limit between round trips within one LLC and across LLCs, fitted on this host.
//!
//! # Criterion
//! The logarithms of the round trips are taken for a mixture of normal distributions and a few outliers;
//! the Bayesian information criterion chooses the number of components. Neighboring
//! components are classes of their own if
//! 1. each holds at least 2 % of the rounds and at least five,
//! 2. their centers differ by a factor of 1.4 or more, and
//! 3. Ashman's D, the distance of the centers over the mean spread, is at least 3 (Ashman, Bird and Zepf,
//!    "Detecting bimodality in astronomical datasets", 1994, call 2 a clean separation; a skewed class can
//!    need two components that are further apart than that).
//!
//! More than two classes are possible: siblings of a core, one LLC, one socket, two sockets.
//!
//! # Yardstick
//! Classes alone do not say which are near. A round trip within an LLC is a few L3 latencies, one across
//! LLCs passes the memory controllers' fabric twice. Measured in memory latencies (without address translation) in
//! guests on AMD EPYC of the third and fourth generation, near round trips took 0.4 to 1.1 and far ones 1.5 to 3;
//! there, a buffer that one vCPU had just left in its L3 was read by the other at L3 speed (8 ns a load) in
//! near rounds, and never (48-90 ns) in far ones. Published core-to-core tables agree, for example
//! github.com/nviennot/core-to-core-latency (one way 20-60 ns within an LLC, 80 ns and more across). So up to 1.2
//! is near, from 1.4 on far, and a single class in between is unknown.

use serde::Serialize;

use crate::mixture::{self, Component};

/// A round trip of at most this many memory latencies is near.
const NEAR_DRAM: f64 = 1.2;
/// A round trip of at least this many memory latencies is far.
const FAR_DRAM: f64 = 1.4;
/// Least share of the rounds in a class of its own.
const MIN_SHARE: f64 = 0.02;
/// Least number of rounds in a class of its own.
const MIN_CLASS: f64 = 5.0;
/// Least ratio of the centers of two classes.
const MIN_RATIO: f64 = 1.4;
/// Least Ashman's D of two classes.
const MIN_D: f64 = 3.0;
/// Least relative spread assumed: the counter itself moves in steps of about 10 ns on some CPUs.
const SPREAD_FLOOR: f64 = 0.05;
/// More rounds than this are thinned out before fitting, which keeps the shares.
const MAX_ROUNDS: usize = 400;

/// Where two vCPUs are relative to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// In one LLC.
    Near,
    /// In different LLCs.
    Far,
    /// Not to be told.
    Unknown,
}

/// A group of round trips that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Class {
    /// Its center (geometric mean), in nanoseconds.
    pub center_ns: f64,
    /// Share of all rounds, in percent; what is missing to 100 were too few to be a class.
    pub share_pct: f64,
}

/// The limit between near and far on this host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NearFar {
    /// The classes found, fastest first; one if the sample does not separate, none without data.
    pub classes: Vec<Class>,
    /// Round trips up to this are near, in nanoseconds; `None` if nothing can be called near.
    pub near_max_ns: Option<f64>,
    /// Round trips from this on are far, in nanoseconds; `None` if nothing can be called far.
    pub far_min_ns: Option<f64>,
    /// How the limit was found, in words.
    pub basis: String,
}

impl NearFar {
    /// Fits the limit to the minimum round trips of many rounds, in nanoseconds (any order; values that are
    /// not positive numbers are left out), with the latency of memory in nanoseconds as the yardstick.
    ///
    /// Without a yardstick, two classes are taken for near and far (which is wrong for a sample of hyperthread
    /// siblings and neighbors of one LLC), and one class is unknown.
    #[must_use]
    pub fn fit(round_trips_ns: &[f64], dram_ns: Option<f64>) -> Self {
        let mut logs: Vec<f64> =
            round_trips_ns.iter().filter(|ns| ns.is_finite() && **ns > 0.0).map(|ns| ns.ln()).collect();
        logs.sort_by(f64::total_cmp);
        let thinned: Vec<f64> = if logs.len() > MAX_ROUNDS {
            (0..MAX_ROUNDS).map(|i| logs[(2 * i + 1) * logs.len() / (2 * MAX_ROUNDS)]).collect()
        } else {
            logs
        };
        let dram_ns = dram_ns.filter(|ns| ns.is_finite() && *ns > 0.0);
        let classes = separate(mixture::components(&thinned, SPREAD_FLOOR), thinned.len());
        Self::name(&classes, dram_ns)
    }

    /// Whether a round trip is near or far.
    #[must_use]
    pub fn classify(&self, rtt_ns: f64) -> Placement {
        if self.near_max_ns.is_some_and(|limit| rtt_ns <= limit) {
            Placement::Near
        } else if self.far_min_ns.is_some_and(|limit| rtt_ns >= limit) {
            Placement::Far
        } else {
            Placement::Unknown
        }
    }

    /// Says which classes are near.
    fn name(groups: &[Component], dram_ns: Option<f64>) -> Self {
        let classes = groups
            .iter()
            .map(|group| Class { center_ns: group.mean.exp(), share_pct: 100.0 * group.weight })
            .collect();
        let (near_max_ns, far_min_ns, basis) = match (boundary(groups, dram_ns), dram_ns) {
            _ if groups.is_empty() => (None, None, "no round trip was measured".into()),
            (Some(last_near), dram) => {
                let (near, far) = (groups[last_near], groups[last_near + 1]);
                let limit = limit_between(near, far);
                let against = dram.map_or_else(
                    || "; the latency of memory is not known".to_owned(),
                    |dram| format!(", memory {dram:.0} ns"),
                );
                let (near, far) = (near.mean.exp(), far.mean.exp());
                let basis =
                    format!("round trips come as {near:.0} ns and {far:.0} ns, limit {limit:.0} ns{against}");
                (Some(limit), Some(limit), basis)
            }
            (None, None) => (
                None,
                None,
                "the round trips form one group, and only the latency of memory could tell which".into(),
            ),
            (None, Some(dram)) => by_yardstick(groups, dram),
        };
        Self { classes, near_max_ns, far_min_ns, basis }
    }
}

/// Limits for classes that are all on one side of the yardstick. The limits give way to the classes' spread:
/// a class as a whole has one name.
fn by_yardstick(groups: &[Component], dram_ns: f64) -> (Option<f64>, Option<f64>, String) {
    let (near, far) = (NEAR_DRAM * dram_ns, FAR_DRAM * dram_ns);
    let reach = |group: &Component, spreads: f64| (group.mean + spreads * group.sd).exp();
    let (first, last) = (&groups[0], &groups[groups.len() - 1]);
    if reach(last, 0.0) <= near {
        let near = near.max(reach(last, 2.0));
        (
            Some(near),
            Some(far.max(near)),
            format!("all round trips are short against memory ({dram_ns:.0} ns)"),
        )
    } else if reach(first, 0.0) >= far {
        let far = far.min(reach(first, -2.0));
        (Some(near.min(far)), Some(far), format!("all round trips are long against memory ({dram_ns:.0} ns)"))
    } else {
        (None, None, format!("the round trips are neither short nor long against memory ({dram_ns:.0} ns)"))
    }
}

/// The index of the last near class, if the next one is far.
fn boundary(groups: &[Component], dram_ns: Option<f64>) -> Option<usize> {
    let gap = |i: usize| groups[i + 1].mean - groups[i].mean;
    (0..groups.len().saturating_sub(1))
        .filter(|&i| {
            dram_ns.is_none_or(|dram| {
                groups[i].mean.exp() < FAR_DRAM * dram && groups[i + 1].mean.exp() > NEAR_DRAM * dram
            })
        })
        .max_by(|&i, &j| gap(i).total_cmp(&gap(j)))
}

/// The point as many spreads above the lower class as below the upper one.
fn limit_between(lower: Component, upper: Component) -> f64 {
    ((lower.mean * upper.sd + upper.mean * lower.sd) / (lower.sd + upper.sd)).exp()
}

/// Merges the components that are no class of their own: first the small ones, then those that overlap.
fn separate(mut groups: Vec<Component>, rounds: usize) -> Vec<Component> {
    let least = MIN_SHARE.max(MIN_CLASS / rounds.max(1) as f64);
    while groups.len() > 1 {
        let small = (0..groups.len()).find(|&i| groups[i].weight < least);
        if let Some(small) = small {
            // Too few for a class: outliers, which must not widen a neighbor.
            groups.remove(small);
            continue;
        }
        let worst = (0..groups.len() - 1).min_by(|&i, &j| ashman(&groups, i).total_cmp(&ashman(&groups, j)));
        match worst {
            Some(i) if ashman(&groups, i) < MIN_D || groups[i + 1].mean - groups[i].mean < MIN_RATIO.ln() => {
                let upper = groups.remove(i + 1);
                groups[i] = merged(groups[i], upper);
            }
            _ => break,
        }
    }
    groups
}

/// Ashman's D of a component and the next.
fn ashman(groups: &[Component], i: usize) -> f64 {
    let (a, b) = (groups[i], groups[i + 1]);
    (b.mean - a.mean) / (f64::midpoint(a.sd * a.sd, b.sd * b.sd)).sqrt()
}

/// One component with the mean and variance of two.
fn merged(a: Component, b: Component) -> Component {
    let weight = a.weight + b.weight;
    let mean = (a.weight * a.mean + b.weight * b.mean) / weight;
    let square = |c: Component| c.weight * (c.sd * c.sd + (c.mean - mean).powi(2));
    Component { weight, mean, sd: ((square(a) + square(b)) / weight).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::prelude::*;
    use rand_distr::LogNormal;
    use rand_xoshiro::Xoshiro256PlusPlus;

    struct Mixture {
        near_ns: f64,
        far_ns: f64,
        far_share: f64,
        sigma: f64,
        outliers: f64,
    }

    /// Round trips and whether each is truly far; outliers are slow rounds of either kind.
    fn sample(mixture: &Mixture, n: usize, seed: u64) -> Vec<(f64, bool)> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let noise = LogNormal::new(0.0, mixture.sigma).unwrap();
        (0..n)
            .map(|_| {
                let far = rng.random_bool(mixture.far_share);
                let center = if far { mixture.far_ns } else { mixture.near_ns };
                let slow = if rng.random_bool(mixture.outliers) { rng.random_range(5.0..50.0) } else { 1.0 };
                (center * noise.sample(&mut rng) * slow, far)
            })
            .collect()
    }

    fn values(rounds: &[(f64, bool)]) -> Vec<f64> {
        rounds.iter().map(|(ns, _)| *ns).collect()
    }

    /// Share of rounds that are called what they are.
    fn agreement(fit: &NearFar, rounds: &[(f64, bool)]) -> f64 {
        let right = rounds
            .iter()
            .filter(|(ns, far)| fit.classify(*ns) == if *far { Placement::Far } else { Placement::Near })
            .count();
        right as f64 / rounds.len() as f64
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn mixtures_are_separated_whatever_the_shares_and_the_unit(
            near in 20.0..150.0f64,
            ratio in 2.6..8.0f64,
            far_share in 0.08..0.92f64,
            sigma in 0.02..0.2f64,
            outliers in 0.0..0.015f64,
            seed: u64,
        ) {
            let mixture = Mixture { near_ns: near, far_ns: near * ratio, far_share, sigma, outliers };
            let rounds = sample(&mixture, 400, seed);
            let fit = NearFar::fit(&values(&rounds), Some(near * ratio.sqrt() / 1.3));
            let right = agreement(&fit, &rounds);
            prop_assert!(right > 0.95, "{right} right: {fit:?}");
        }

        #[test]
        fn one_class_gets_one_name_from_the_yardstick(
            center in 20.0..500.0f64,
            sigma in 0.02..0.25f64,
            seed: u64,
        ) {
            let one = Mixture { near_ns: center, far_ns: center, far_share: 0.0, sigma, outliers: 0.0 };
            let rounds = values(&sample(&one, 300, seed));
            for (dram, expected) in
                [(center / 0.9, Placement::Near), (center / 4.0, Placement::Far), (center / 1.3, Placement::Unknown)]
            {
                let fit = NearFar::fit(&rounds, Some(dram));
                let named = rounds.iter().filter(|ns| fit.classify(**ns) == expected).count();
                prop_assert!(named >= 280, "{named} of 300 are {expected:?}: {fit:?}");
            }
            prop_assert_eq!(NearFar::fit(&rounds, None).classify(center), Placement::Unknown);
        }

        #[test]
        fn any_numbers_are_survived_and_the_limits_are_in_order(
            rounds in prop::collection::vec(prop::num::f64::ANY, 0..60),
            dram in prop::option::of(prop::num::f64::ANY),
        ) {
            let fit = NearFar::fit(&rounds, dram);
            if let (Some(near), Some(far)) = (fit.near_max_ns, fit.far_min_ns) {
                prop_assert!(near <= far);
            }
        }
    }

    /// Counted over many seeds, because a small share can be missing from a sample by chance.
    #[test]
    fn small_shares_are_found_and_none_are_invented() {
        let (mut missed, mut invented) = (0, 0);
        for seed in 0..300 {
            let far_share = if seed % 2 == 0 { 0.05 } else { 0.95 };
            let two = Mixture { near_ns: 80.0, far_ns: 300.0, far_share, sigma: 0.2, outliers: 0.01 };
            let rounds = sample(&two, 600, seed);
            let fit = NearFar::fit(&values(&rounds), None);
            missed += u32::from(agreement(&fit, &rounds) < 0.95);
            let one = Mixture { far_share: 0.0, sigma: 0.3, ..two };
            let n = [40, 100, 600][seed as usize % 3];
            invented += u32::from(NearFar::fit(&values(&sample(&one, n, seed)), None).classes.len() > 1);
        }
        assert!(missed <= 6 && invented <= 6, "of 300: {missed} missed, {invented} invented");
    }

    #[test]
    fn four_levels_put_the_limit_where_the_yardstick_is() {
        let mut rounds = Vec::new();
        for (seed, center) in [(1, 25.0), (2, 70.0), (3, 230.0), (4, 600.0)] {
            let level =
                Mixture { near_ns: center, far_ns: center, far_share: 0.0, sigma: 0.08, outliers: 0.0 };
            rounds.extend(values(&sample(&level, 100, seed)));
        }
        let fit = NearFar::fit(&rounds, Some(100.0));
        assert_eq!(fit.classes.len(), 4, "{fit:?}");
        for (ns, expected) in [(25.0, Placement::Near), (70.0, Placement::Near), (230.0, Placement::Far)] {
            assert_eq!(fit.classify(ns), expected);
        }
    }

    #[test]
    fn siblings_and_neighbors_of_one_llc_are_both_near() {
        let mut rounds = vec![20.0; 40];
        rounds.extend([60.0; 40]);
        let fit = NearFar::fit(&rounds, Some(90.0));
        assert_eq!(fit.classes.len(), 2);
        assert_eq!(fit.classify(60.0), Placement::Near);
        assert_eq!(fit.classify(400.0), Placement::Far);
    }

    #[test]
    fn without_data_nothing_is_known() {
        let fit = NearFar::fit(&[], Some(100.0));
        assert_eq!(fit.classify(50.0), Placement::Unknown);
        assert!(fit.classes.is_empty());
        assert_eq!(NearFar::fit(&[f64::NAN, -1.0], None), NearFar::fit(&[], None));
    }
}
