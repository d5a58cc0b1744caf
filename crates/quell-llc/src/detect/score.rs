//! How well the measured hazard follows the polluter's duty.

use quell_core::stats::{auc, mean, quantile, spearman};
use quell_topology::Placement;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

/// One round of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// Share of the time that the polluter streamed, in percent.
    pub duty_pct: u32,
    /// Hazard at the half-life that the round's windows stand for, per ms; `None` if no window was valid.
    pub hazard_per_ms: Option<f64>,
    /// Where the polluter's vCPU was during the whole round: `near`, `far`, or `unknown` when it moved
    /// meanwhile or did not answer.
    pub placement: Placement,
    /// Valid windows behind it.
    pub windows: usize,
    /// Median of the round's ping-pong minima, in ns.
    pub rtt_ns: Option<f64>,
    /// What the polluter read during the round, in GB/s.
    pub polluter_gb_per_s: f64,
    /// When the round began, in ms since the first.
    pub at_ms: f64,
}

/// Detection figures of a group of rounds; `None` where the group is too small.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Score {
    /// Rounds with a hazard.
    pub n: usize,
    /// Spearman's rank correlation of duty and hazard.
    pub spearman: Option<f64>,
    /// AUC of duty 0 against 50 %.
    pub auc50: Option<f64>,
    /// AUC of duty 0 against 100 %.
    pub auc100: Option<f64>,
    /// The smallest m for which the mean value (of hazards, the logarithm) of m random full-duty rounds exceeds the 99th percentile
    /// of the idle rounds in 95 % of draws; `None` if no m up to 100 does.
    pub rounds_to_detect: Option<u32>,
}

/// Fewer rounds of one duty than this give no figure.
const MIN_GROUP: usize = 5;
const MAX_ROUNDS_TO_DETECT: u32 = 100;
const DRAWS: u32 = 2000;

impl Score {
    /// Scores the rounds that `belongs` picks.
    #[must_use]
    pub fn of(rounds: &[Round], belongs: impl Fn(&Round) -> bool) -> Self {
        // Logarithms: means of several rounds are then those of relative pressure.
        let of = |round: &Round| Some((round.duty_pct, round.hazard_per_ms?.ln()));
        Self::of_values(&rounds.iter().filter(|round| belongs(round)).filter_map(of).collect::<Vec<_>>())
    }

    /// Scores pairs of duty (percent) and measured value, on a scale on which values may be averaged.
    #[must_use]
    pub fn of_values(pairs: &[(u32, f64)]) -> Self {
        let of_duty = |duty: u32| -> Vec<f64> { pairs.iter().filter(|p| p.0 == duty).map(|p| p.1).collect() };
        let (idle, half, full) = (of_duty(0), of_duty(50), of_duty(100));
        let auc_of = |positive: &[f64]| {
            (idle.len() >= MIN_GROUP && positive.len() >= MIN_GROUP).then(|| auc(&idle, positive)).flatten()
        };
        let (duties, hazards): (Vec<f64>, Vec<f64>) =
            pairs.iter().map(|&(duty, hazard)| (f64::from(duty), hazard)).unzip();
        Self {
            n: pairs.len(),
            spearman: (pairs.len() >= 2 * MIN_GROUP).then(|| spearman(&duties, &hazards)).flatten(),
            auc50: auc_of(&half),
            auc100: auc_of(&full),
            rounds_to_detect: rounds_to_detect(&idle, &full),
        }
    }
}

fn rounds_to_detect(idle: &[f64], full: &[f64]) -> Option<u32> {
    if idle.len() < MIN_GROUP || full.len() < MIN_GROUP {
        return None;
    }
    let limit = quantile(idle, 0.99)?;
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    (1..=MAX_ROUNDS_TO_DETECT).find(|&m| {
        let detected = (0..DRAWS)
            .filter(|_| {
                let drawn: Vec<f64> = (0..m).map(|_| full[rng.random_range(0..full.len())]).collect();
                mean(&drawn).is_some_and(|mean| mean > limit)
            })
            .count();
        detected as f64 >= 0.95 * f64::from(DRAWS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(duty_pct: u32, hazard_per_ms: f64) -> Round {
        Round {
            duty_pct,
            hazard_per_ms: Some(hazard_per_ms),
            placement: Placement::Near,
            windows: 8,
            rtt_ns: None,
            polluter_gb_per_s: 0.0,
            at_ms: 0.0,
        }
    }

    #[test]
    fn a_perfect_detector_needs_one_round() {
        let rounds: Vec<Round> =
            (0..100).map(|i| round(i % 5 * 25, 0.1 + f64::from(i % 5) + f64::from(i) * 1e-4)).collect();
        let score = Score::of(&rounds, |_| true);
        assert_eq!((score.n, score.auc50, score.auc100), (100, Some(1.0), Some(1.0)));
        assert_eq!(score.rounds_to_detect, Some(1));
        assert!(score.spearman.unwrap() > 0.97);
    }

    #[test]
    fn a_blind_detector_finds_nothing() {
        let rounds: Vec<Round> =
            (0..100).map(|i| round(i % 5 * 25, 0.1 + f64::from(i * 37 % 101) * 1e-3)).collect();
        let score = Score::of(&rounds, |_| true);
        assert_eq!(score.rounds_to_detect, None);
        assert!(score.spearman.unwrap().abs() < 0.3);
    }

    #[test]
    fn small_groups_give_no_figures() {
        let score = Score::of(&[round(0, 0.1), round(100, 0.2)], |_| true);
        assert_eq!((score.n, score.spearman, score.auc100, score.rounds_to_detect), (2, None, None, None));
    }
}
