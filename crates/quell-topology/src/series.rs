//! Placement over time: hosts move vCPUs between LLCs, so sharing is a time series.

use std::fmt;
use std::time::Duration;

use quell_core::Estimate;
use quell_core::stats::quantile;
use serde::Serialize;
use statrs::distribution::{ChiSquared, ContinuousCDF, StudentsT};

use crate::{NearFar, Placement};

/// Fewer classified rounds than this support no statement.
const MIN_ROUNDS: usize = 8;
/// Rounds further apart than this many typical distances tell nothing about what happened in between.
const MAX_GAP: f64 = 5.0;

/// Rounds that a series keeps at most (1 MiB); the oldest quarter goes first.
const MAX_KEPT: usize = 65_536;

/// Round trips of one pair of vCPUs over time: the last 65,536 rounds, so that watching may go on for days.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlacementSeries {
    rounds: Vec<(Duration, f64)>,
    unanswered: Vec<Duration>,
}

/// What a series says, given the limit between near and far.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlacementSummary {
    /// Share of the rounds in which the pair was near, in percent.
    ///
    /// The interval is Wilson's with Student's t, for the effective number of rounds: rounds in a row see the same placement,
    /// so `n` rounds count as `n/τ`, where τ is the larger of the autocorrelation time of a two-state Markov
    /// chain with the observed transitions and, from 64 rounds on, that of batch means. It describes the time
    /// watched; a host that moves vCPUs more rarely may look different later.
    pub near_pct: Estimate,
    /// Changes between near and far, per second watched; changes that were undone between two rounds are
    /// missed, so this is a lower bound. Exact Poisson interval.
    pub switches_per_s: Estimate,
    /// Mean stay in one LLC before a change, in milliseconds; unknown if that was never seen to end.
    pub near_dwell_ms: Estimate,
    /// Mean stay in different LLCs before a change, in milliseconds.
    pub far_dwell_ms: Estimate,
    /// Median of the rounds' minimum round trips, in nanoseconds.
    pub rtt_ns: Option<f64>,
    /// Rounds measured.
    pub rounds: usize,
    /// Rounds among them that are neither near nor far.
    pub unclear: usize,
    /// Further rounds in which the other vCPU did not answer in time.
    pub unanswered: usize,
    /// The same in one word.
    pub verdict: Verdict,
}

/// Where a pair is, over the time watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// In one LLC whenever it was seen.
    Near,
    /// In different LLCs whenever it was seen.
    Far,
    /// Now in one, now in different LLCs: the host moves the vCPUs.
    Floating,
    /// Too few rounds, or no limit between near and far.
    Unknown,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Near => "share a cache",
            Self::Far => "do not share a cache",
            Self::Floating => "share a cache only at times: the host moves them",
            Self::Unknown => "unknown",
        })
    }
}

impl PlacementSeries {
    /// An empty series.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a round: its time since any fixed start, not before the last one's, and its minimum round trip
    /// in nanoseconds.
    pub fn push(&mut self, at: Duration, min_rtt_ns: f64) {
        let at = self.rounds.last().map_or(at, |(last, _)| at.max(*last));
        if self.rounds.len() >= MAX_KEPT {
            self.rounds.drain(..MAX_KEPT / 4);
        }
        self.rounds.push((at, min_rtt_ns));
    }

    /// Adds a round in which the other vCPU did not answer in time.
    pub fn push_unanswered(&mut self, at: Duration) {
        if self.unanswered.len() >= MAX_KEPT {
            self.unanswered.drain(..MAX_KEPT / 4);
        }
        self.unanswered.push(at);
    }

    /// The rounds: time since the start, and minimum round trip in nanoseconds.
    #[must_use]
    pub fn rounds(&self) -> &[(Duration, f64)] {
        &self.rounds
    }

    /// The minimum round trips alone, in nanoseconds, to fit [`NearFar`] on.
    pub fn round_trips_ns(&self) -> impl Iterator<Item = f64> + '_ {
        self.rounds.iter().map(|(_, ns)| *ns)
    }

    /// The rounds from `start` on, as a series of their own.
    #[must_use]
    pub fn since(&self, start: Duration) -> Self {
        let first = self.rounds.partition_point(|(at, _)| *at < start);
        let unanswered = self.unanswered.iter().copied().filter(|at| *at >= start).collect();
        Self { rounds: self.rounds[first..].to_vec(), unanswered }
    }

    /// What the series says under this limit.
    #[must_use]
    pub fn summary(&self, limit: &NearFar) -> PlacementSummary {
        let states: Vec<(f64, Placement)> =
            self.rounds.iter().map(|(at, ns)| (at.as_secs_f64(), limit.classify(*ns))).collect();
        let clear: Vec<bool> = states
            .iter()
            .filter(|(_, placement)| *placement != Placement::Unknown)
            .map(|(_, placement)| *placement == Placement::Near)
            .collect();
        let steps = Steps::of(&states);
        let mut summary = PlacementSummary {
            near_pct: near_share(&clear, &steps).map(|share| 100.0 * share),
            switches_per_s: rate(steps.switches(), steps.seconds(), steps.count()),
            near_dwell_ms: dwell("one LLC", steps.seconds_near, steps.near_far),
            far_dwell_ms: dwell("different LLCs", steps.seconds_far, steps.far_near),
            rtt_ns: quantile(&self.round_trips_ns().collect::<Vec<_>>(), 0.5),
            rounds: states.len(),
            unclear: states.len() - clear.len(),
            unanswered: self.unanswered.len(),
            verdict: Verdict::Unknown,
        };
        if clear.len() < MIN_ROUNDS {
            let reason = if self.rounds.is_empty() && !self.unanswered.is_empty() {
                format!("the other vCPU answered in none of {} rounds", self.unanswered.len())
            } else if states.len() < MIN_ROUNDS {
                format!("only {} rounds, at least {MIN_ROUNDS} are needed", states.len())
            } else {
                format!(
                    "{} of {} rounds are neither near nor far: {}",
                    summary.unclear,
                    states.len(),
                    limit.basis
                )
            };
            let unknown = || Estimate::unknown(reason.clone());
            summary.near_pct = unknown();
            summary.switches_per_s = unknown();
            summary.near_dwell_ms = unknown();
            summary.far_dwell_ms = unknown();
            return summary;
        }
        let near = clear.iter().filter(|near| **near).count();
        // One odd round can be a slow one; two are a pattern.
        summary.verdict = match (near, clear.len() - near) {
            (_, 0 | 1) => Verdict::Near,
            (0 | 1, _) => Verdict::Far,
            _ => Verdict::Floating,
        };
        summary
    }
}

/// What happened between rounds that follow each other closely and are both clear.
#[derive(Debug, Default)]
struct Steps {
    near_near: usize,
    near_far: usize,
    far_near: usize,
    far_far: usize,
    seconds_near: f64,
    seconds_far: f64,
}

impl Steps {
    fn of(states: &[(f64, Placement)]) -> Self {
        let distances: Vec<f64> = states.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        let typical = quantile(&distances, 0.5).unwrap_or(0.0);
        let mut steps = Self::default();
        for (pair, seconds) in states.windows(2).zip(distances) {
            if seconds > MAX_GAP * typical {
                continue;
            }
            // A change happened somewhere in between, so each side gets half of the time.
            match (pair[0].1, pair[1].1) {
                (Placement::Near, Placement::Near) => steps.near_near += 1,
                (Placement::Near, Placement::Far) => steps.near_far += 1,
                (Placement::Far, Placement::Near) => steps.far_near += 1,
                (Placement::Far, Placement::Far) => steps.far_far += 1,
                _ => continue,
            }
            for side in [pair[0].1, pair[1].1] {
                match side {
                    Placement::Near => steps.seconds_near += seconds / 2.0,
                    _ => steps.seconds_far += seconds / 2.0,
                }
            }
        }
        steps
    }

    fn count(&self) -> usize {
        self.near_near + self.near_far + self.far_near + self.far_far
    }

    fn switches(&self) -> usize {
        self.near_far + self.far_near
    }

    fn seconds(&self) -> f64 {
        self.seconds_near + self.seconds_far
    }

    /// Autocorrelation time, in rounds, of a two-state Markov chain with these transitions.
    ///
    /// Its autocorrelation at lag k is ρ^k with ρ = 1 - p(near→far) - p(far→near), so the time is
    /// (1+ρ)/(1-ρ). Half a transition is added to every count (Jeffreys' prior), so that a series without
    /// any change does not pass for one of independent rounds.
    fn autocorrelation_time(&self) -> f64 {
        let leave = |left: usize, stayed: usize| (left as f64 + 0.5) / ((left + stayed) as f64 + 1.0);
        let rho = 1.0 - leave(self.near_far, self.near_near) - leave(self.far_near, self.far_far);
        // Short series make ρ too small by (1+3ρ)/n (Marriott and Pope, "Bias in the estimation of
        // autocorrelations", 1954).
        let n = self.count().max(1) as f64;
        let rho = (rho + (1.0 + 3.0 * rho) / n).min(1.0 - 1.0 / n);
        ((1.0 + rho) / (1.0 - rho)).max(1.0)
    }
}

/// Share of near rounds, 0 to 1.
fn near_share(near: &[bool], steps: &Steps) -> Estimate {
    let n = near.len() as f64;
    if near.is_empty() {
        return Estimate::unknown("no round could be classified");
    }
    let share = near.iter().filter(|near| **near).count() as f64 / n;
    let time = steps.autocorrelation_time().max(batch_means_time(near, share).unwrap_or(1.0));
    let independent = (n / time).max(1.0);
    // Wilson, "Probable inference, the law of succession, and statistical inference", 1927.
    // The number of independent rounds is itself an estimate, so Student's t takes the place of the normal.
    let t = StudentsT::new(0.0, 1.0, (independent - 1.0).max(1.0)).map_or(f64::NAN, |t| t.inverse_cdf(0.975));
    let denominator = 1.0 + t * t / independent;
    let center = (share + t * t / (2.0 * independent)) / denominator;
    let half = t / denominator
        * (share * (1.0 - share) / independent + t * t / (4.0 * independent * independent)).sqrt();
    let bounds = [(center - half).min(share).max(0.0), (center + half).max(share).min(1.0)];
    Estimate::known(share, bounds, independent.round() as usize)
}

/// Autocorrelation time by batch means: how much more the means of √n batches vary than independent rounds
/// would let them.
fn batch_means_time(near: &[bool], share: f64) -> Option<f64> {
    let variance = share * (1.0 - share);
    if near.len() < 64 || variance == 0.0 {
        return None;
    }
    let size = near.len().isqrt();
    let means: Vec<f64> = near
        .chunks_exact(size)
        .map(|batch| batch.iter().filter(|near| **near).count() as f64 / size as f64)
        .collect();
    let center = means.iter().sum::<f64>() / means.len() as f64;
    let between = means.iter().map(|mean| (mean - center).powi(2)).sum::<f64>() / (means.len() - 1) as f64;
    Some(size as f64 * between / variance)
}

/// The exact (Garwood, 1936) 95 % interval of the expectation of a Poisson count.
fn poisson_interval(count: usize) -> [f64; 2] {
    let quantile = |p: f64, freedom: usize| {
        ChiSquared::new(freedom as f64).map_or(f64::NAN, |chi| chi.inverse_cdf(p) / 2.0)
    };
    let low = if count == 0 { 0.0 } else { quantile(0.025, 2 * count) };
    [low, quantile(0.975, 2 * count + 2)]
}

fn rate(count: usize, seconds: f64, steps: usize) -> Estimate {
    if seconds <= 0.0 {
        return Estimate::unknown("no two rounds followed each other closely");
    }
    let [low, high] = poisson_interval(count);
    Estimate::known(count as f64 / seconds, [low / seconds, high / seconds], steps)
}

fn dwell(place: &str, seconds: f64, ends: usize) -> Estimate {
    if ends == 0 {
        let reason = if seconds > 0.0 {
            format!("no stay in {place} was seen to end in the {:.0} ms watched", 1e3 * seconds)
        } else {
            format!("they were never seen in {place}")
        };
        return Estimate::unknown(reason);
    }
    let [low, high] = poisson_interval(ends);
    let ms = 1e3 * seconds;
    Estimate::known(ms / ends as f64, [ms / high, ms / low], ends)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::prelude::*;
    use rand_xoshiro::Xoshiro256PlusPlus;

    const NEAR: f64 = 80.0;
    const FAR: f64 = 300.0;

    fn limit() -> NearFar {
        NearFar {
            classes: Vec::new(),
            near_max_ns: Some(150.0),
            far_min_ns: Some(200.0),
            basis: "invented".into(),
        }
    }

    fn series(states: &[bool], step_ms: u64) -> PlacementSeries {
        let mut series = PlacementSeries::new();
        for (i, near) in states.iter().enumerate() {
            series.push(Duration::from_millis(step_ms * i as u64), if *near { NEAR } else { FAR });
        }
        series
    }

    /// A two-state Markov chain with these chances to leave near and far per round.
    fn chain(leave_near: f64, leave_far: f64, n: usize, rng: &mut impl Rng) -> Vec<bool> {
        let mut near = rng.random_bool(leave_far / (leave_near + leave_far));
        (0..n)
            .map(|_| {
                near ^= rng.random_bool(if near { leave_near } else { leave_far });
                near
            })
            .collect()
    }

    #[test]
    fn the_interval_covers_the_truth_although_rounds_are_not_independent() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        for (leave_near, leave_far, n) in [(0.2, 0.1, 40), (0.1, 0.3, 100), (0.05, 0.05, 400), (0.5, 0.5, 40)]
        {
            let truth = 100.0 * leave_far / (leave_near + leave_far);
            let covered = (0..400)
                .filter(|_| {
                    let states = chain(leave_near, leave_far, n, &mut rng);
                    let [low, high] = series(&states, 20).summary(&limit()).near_pct.ci95().unwrap();
                    (low..=high).contains(&truth)
                })
                .count();
            assert!(covered >= 360, "{covered} of 400 intervals cover, n = {n}, leaving {leave_near}");
        }
    }

    #[test]
    fn switches_and_stays_are_counted() {
        // 10 near, 10 far, 10 near rounds, 10 ms apart.
        let states: Vec<bool> = (0..30).map(|i| i / 10 != 1).collect();
        let summary = series(&states, 10).summary(&limit());
        assert_eq!(summary.verdict, Verdict::Floating);
        assert!((summary.near_pct.value().unwrap() - 200.0 / 3.0).abs() < 1e-9);
        assert!((summary.switches_per_s.value().unwrap() - 2.0 / 0.29).abs() < 1e-9);
        assert!((summary.near_dwell_ms.value().unwrap() - 190.0).abs() < 1e-9);
        assert!((summary.far_dwell_ms.value().unwrap() - 100.0).abs() < 1e-9);
    }

    #[test]
    fn a_constant_series_is_not_certain() {
        let summary = series(&[true; 40], 20).summary(&limit());
        assert_eq!(summary.verdict, Verdict::Near);
        assert_eq!(summary.near_pct.value(), Some(100.0));
        let [low, high] = summary.near_pct.ci95().unwrap();
        assert!(low < 95.0 && high == 100.0, "{low} to {high}");
        assert_eq!(summary.switches_per_s.value(), Some(0.0));
        assert!(summary.near_dwell_ms.reason().unwrap().contains("780 ms"));
        assert_eq!(series(&[false; 40], 20).summary(&limit()).verdict, Verdict::Far);
    }

    #[test]
    fn too_little_is_unknown_with_the_reason() {
        let mut few = series(&[true; 3], 20);
        assert!(few.summary(&limit()).near_pct.reason().unwrap().contains("only 3 rounds"));
        few = PlacementSeries::new();
        few.push_unanswered(Duration::ZERO);
        assert!(few.summary(&limit()).switches_per_s.reason().unwrap().contains("none of 1"));
        let unclear = series(&[true; 20], 20).summary(&NearFar::fit(&[], None));
        assert_eq!((unclear.verdict, unclear.unclear), (Verdict::Unknown, 20));
        assert!(unclear.near_pct.reason().unwrap().contains("no round trip"));
    }

    #[test]
    fn a_pause_in_the_series_is_not_a_stay() {
        let mut paused = series(&[true; 20], 10);
        paused.push(Duration::from_secs(60), FAR);
        paused.push(Duration::from_millis(60_010), FAR);
        let summary = paused.summary(&limit());
        assert_eq!(summary.switches_per_s.value(), Some(0.0));
        assert_eq!(summary.verdict, Verdict::Floating);
        assert_eq!(paused.since(Duration::from_secs(1)).rounds().len(), 2);
    }

    #[test]
    fn a_series_does_not_grow_without_bound() {
        let long = series(&vec![true; MAX_KEPT + 10], 1);
        assert_eq!(long.rounds().len(), MAX_KEPT * 3 / 4 + 10);
        assert_eq!(long.rounds().last().unwrap().0, Duration::from_millis(MAX_KEPT as u64 + 9));
    }

    #[test]
    fn the_poisson_interval_is_garwoods() {
        for (count, low, high) in [(0, 0.0, 3.689), (1, 0.0253, 5.572), (10, 4.795, 18.39)] {
            let [l, h] = poisson_interval(count);
            assert!((l - low).abs() < 1e-3 && (h - high).abs() < 1e-2, "{count}: {l} {h}");
        }
    }
}
