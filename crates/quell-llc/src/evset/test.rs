//! The eviction test: does loading some lines push another one out of a level of the cache?
//!
//! One trial loads the target, traverses the candidates and times the target. Timers that advance in steps of
//! tens of ticks, other tenants of the same core and interruptions make single trials unreliable, so trials are
//! repeated until one answer leads clearly (Wald, "Sequential tests of statistical hypotheses", 1945); when none
//! does, the answer is [`Outcome::Unsure`].

use quell_core::stats::{mean, quantile};
use quell_core::{Line, Memory, Sample, Ticks};

use crate::calibrate::{Calibration, Discriminator};
use crate::layout::Layout;

/// How the latency of a timed load tells whether a level still holds the line.
///
/// A sample's score is 0 at the typical latency of a line that is held and 1 at that of a line that is lost,
/// linear between and cut off a little beyond either, so that one slow load cannot outvote the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    held: f64,
    lost: f64,
    slowest: f64,
    interrupted_above: u32,
}

/// A score is cut off so far beyond 0 and 1.
const OVERSHOOT: f64 = 0.5;
/// Two levels must differ by this much of the timer's step, or means of a few samples do not tell them apart.
const LEAST_STEPS: f64 = 0.5;
/// Lines that are timed in the L2 to learn how it looks, and how often.
const L2_LINES: usize = 32;
const L2_ROUNDS: u32 = 16;

impl Level {
    /// The private L2: held there, but no longer in L1, against served by the LLC. Times lines of `layout` in
    /// the L2; how the LLC looks is known from the calibration.
    ///
    /// # Errors
    /// Why the two cannot be told apart on this machine.
    pub fn l2(memory: &mut impl Memory, calibration: &Calibration, layout: &Layout) -> Result<Self, String> {
        let limits = calibration.discriminator.clone()?;
        let llc = &calibration.classes[1].single_ticks;
        let (inner, others) = layout.canary.split_at(L2_LINES);
        let mut samples = Vec::new();
        for _ in 0..L2_ROUNDS {
            memory.load(inner);
            // On the same offsets, hence in the same sets of L1: they push the lines out of it.
            memory.load(others);
            memory.time(inner, &mut samples);
        }
        // Lines that the LLC lost read as memory and would shift its mean; cut them off.
        let slowest = quantile(llc, 0.75).unwrap_or(0.0);
        let typical = |ticks: Vec<f64>| {
            mean(&ticks.iter().map(|t| t.min(slowest)).collect::<Vec<_>>()).unwrap_or(f64::NAN)
        };
        let l2 = samples.iter().filter(|s| !s.migrated).map(|s| f64::from(s.ticks)).collect();
        let [held, lost] = [l2, llc.clone()].map(typical);
        if lost - held >= LEAST_STEPS * calibration.timer.step_ticks {
            Ok(Self { held, lost, slowest, interrupted_above: limits.interrupted_above })
        } else {
            Err(format!(
                "loads from the L2 take {held:.0} ticks and from the LLC {lost:.0}, which a timer with a step of {:.0} \
                 cannot tell apart",
                calibration.timer.step_ticks
            ))
        }
    }

    /// Any cache against memory: whether the LLC still holds the line.
    #[must_use]
    pub fn llc(limits: Discriminator) -> Self {
        let limit = f64::from(limits.miss_above) + 0.5;
        Self { held: limit, lost: limit, slowest: f64::INFINITY, interrupted_above: limits.interrupted_above }
    }

    /// How lost the line of a sample was, about 0 (held) to about 1 (lost); `None` if the sample is void
    /// because the load was interrupted or the CPU changed.
    #[must_use]
    pub fn score(&self, sample: Sample) -> Option<f64> {
        if sample.migrated || sample.ticks > self.interrupted_above {
            return None;
        }
        let ticks = f64::from(sample.ticks).min(self.slowest);
        let span = self.lost - self.held;
        if span <= 0.0 {
            return Some(f64::from(u8::from(ticks > self.lost)));
        }
        Some(((ticks - self.held) / span).clamp(-OVERSHOOT, 1.0 + OVERSHOOT))
    }

    /// Loads that take longer say nothing, in ticks.
    #[must_use]
    pub fn interrupted_above(&self) -> u32 {
        self.interrupted_above
    }

    /// Typical latencies of a line that is held and of one that is lost, timing overhead included, in ticks;
    /// equal where a single load decides.
    #[must_use]
    pub fn typical_ticks(&self) -> [f64; 2] {
        [self.held, self.lost]
    }
}

/// The answer of an eviction test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The candidates push the target out.
    Evicts,
    /// The target stays.
    Spares,
    /// The trials disagree, or too many were void.
    Unsure,
}

/// When a test is decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Valid trials before which nothing is decided.
    pub least: u32,
    /// Trials, void ones included, after which the answer is [`Outcome::Unsure`].
    pub most: u32,
    /// By how many whole trials one answer must lead the other.
    pub lead: f64,
}

impl Rule {
    /// For a single test on whose answer much depends.
    pub const CAREFUL: Self = Self { least: 3, most: 24, lead: 3.0 };
    /// For one of many tests whose answers are checked later.
    pub const QUICK: Self = Self { least: 2, most: 12, lead: 1.8 };

    /// What the trials so far say; `None` to go on.
    #[must_use]
    pub fn decide(self, tally: Tally) -> Option<Outcome> {
        // Scores are centered on one half, so a unanimous trial leads by one.
        let lead = 2.0 * tally.sum - f64::from(tally.valid);
        if tally.valid >= self.least && lead >= self.lead {
            Some(Outcome::Evicts)
        } else if tally.valid >= self.least && lead <= -self.lead {
            Some(Outcome::Spares)
        } else if tally.valid + tally.void >= self.most {
            Some(Outcome::Unsure)
        } else {
            None
        }
    }
}

/// Trials of one target so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Sum of the scores of valid trials.
    pub sum: f64,
    /// Valid trials.
    pub valid: u32,
    /// Trials that were interrupted or migrated.
    pub void: u32,
}

impl Tally {
    /// Takes in one trial.
    pub fn add(&mut self, score: Option<f64>) {
        match score {
            Some(score) => {
                self.sum += score;
                self.valid += 1;
            }
            None => self.void += 1,
        }
    }

    /// Mean score; `None` without a valid trial.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        (self.valid > 0).then(|| self.sum / f64::from(self.valid))
    }
}

/// How candidates are traversed, and what makes a trial void.
#[derive(Clone, Debug)]
pub struct EvictionTest {
    level: Level,
    passes: u32,
    sequence: Vec<Line>,
    samples: Vec<Sample>,
}

/// After a traversal of more lines than this the memory pipeline needs a moment, or the target's load queues.
const LONG_TRAVERSAL: usize = 100;
/// That moment, in ms.
const DRAIN_MS: f64 = 0.001;
/// A trial whose overlapping loads take this share of the longest valid load each (it is several times the
/// latency of memory) …
const SLOWEST_LOAD: f64 = 0.05;
/// … and so much more altogether, in ms, was interrupted: somebody else used the caches meanwhile.
const PAUSE_MS: f64 = 0.02;

impl EvictionTest {
    /// A test of `level` that traverses its candidates `passes` times. Policies that are not strictly least
    /// recently used need several passes (4 is enough for the L2 of AMD Milan).
    #[must_use]
    pub fn new(level: Level, passes: u32) -> Self {
        Self { level, passes, sequence: Vec::new(), samples: Vec::new() }
    }

    /// The level that is tested.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// Prepares traversals of `candidates`: in the given order, `passes` times, each pass followed by
    /// `pushers`, lines that push the candidates out of the next inner level so that every pass is seen by the
    /// tested one. Long lists push themselves out and need none.
    pub fn aim(&mut self, candidates: &[Line], pushers: &[Line]) {
        self.sequence.clear();
        for _ in 0..self.passes {
            self.sequence.extend_from_slice(candidates);
            self.sequence.extend_from_slice(pushers);
        }
    }

    /// One trial for all `targets` at once: loads them, traverses what [`Self::aim`] prepared, and times them
    /// in reverse order. Adds to `tallies`, one a target. The targets must not evict one another.
    pub fn trial(&mut self, memory: &mut impl Memory, targets: &[Line], tallies: &mut [Tally]) {
        let ticks_per_ms = memory.ticks_per_ms();
        let start = memory.now();
        memory.load(targets);
        memory.load(&self.sequence);
        if self.sequence.len() > LONG_TRAVERSAL {
            let drained = memory.now() + Ticks((DRAIN_MS * ticks_per_ms) as u64);
            memory.spin_until(drained);
        }
        let elapsed = memory.now().since(start).0 as f64;
        let lines = (targets.len() + self.sequence.len()) as f64;
        let slowest = f64::from(self.level.interrupted_above) * SLOWEST_LOAD;
        let stretched = elapsed > lines * slowest + PAUSE_MS * ticks_per_ms;
        self.samples.clear();
        let order: Vec<Line> = targets.iter().rev().copied().collect();
        memory.time(&order, &mut self.samples);
        for (&sample, tally) in self.samples.iter().rev().zip(tallies) {
            tally.add(if stretched { None } else { self.level.score(sample) });
        }
    }

    /// Repeats trials of one target until `rule` decides.
    pub fn ask(&mut self, memory: &mut impl Memory, target: Line, rule: Rule) -> Outcome {
        let mut tally = [Tally::default()];
        loop {
            // From memory, so that no earlier hit protects it.
            memory.flush(&[target]);
            self.trial(memory, &[target], &mut tally);
            if let Some(outcome) = rule.decide(tally[0]) {
                return outcome;
            }
        }
    }

    /// Share of `trials` trials in which what [`Self::aim`] prepared pushed the target out: how strongly it
    /// evicts. `None` if every trial was void.
    pub fn share(&mut self, memory: &mut impl Memory, target: Line, trials: u32) -> Option<f64> {
        let mut tally = [Tally::default()];
        for _ in 0..trials {
            memory.flush(&[target]);
            self.trial(memory, &[target], &mut tally);
        }
        tally[0].share()
    }

    /// [`Self::aim`] and [`Self::ask`] in one.
    pub fn evicts(
        &mut self,
        memory: &mut impl Memory,
        target: Line,
        candidates: &[Line],
        pushers: &[Line],
        rule: Rule,
    ) -> Outcome {
        self.aim(candidates, pushers);
        self.ask(memory, target, rule)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quell_cachesim::{Config, Sim};
    use quell_core::Bytes;

    use super::*;
    use crate::calibrate::calibrate;

    const LEVEL: Level = Level { held: 80.0, lost: 106.0, slowest: 130.0, interrupted_above: 1500 };

    fn sample(ticks: u32) -> Sample {
        Sample { ticks, migrated: false }
    }

    #[test]
    fn scores_run_from_held_to_lost_and_void_samples_have_none() {
        assert_eq!(LEVEL.score(sample(80)), Some(0.0));
        assert_eq!(LEVEL.score(sample(106)), Some(1.0));
        assert_eq!(LEVEL.score(sample(400)), LEVEL.score(sample(130)));
        assert_eq!(LEVEL.score(sample(1501)), None);
        assert_eq!(LEVEL.score(Sample { ticks: 80, migrated: true }), None);
        let llc = Level::llc(Discriminator { miss_above: 200, interrupted_above: 1500 });
        assert_eq!([200, 201].map(|ticks| llc.score(sample(ticks))), [Some(0.0), Some(1.0)]);
    }

    #[test]
    fn a_rule_wants_a_clear_lead_and_gives_up() {
        let tally = |sum, valid, void| Tally { sum, valid, void };
        let rule = Rule { least: 3, most: 8, lead: 3.0 };
        assert_eq!(rule.decide(tally(2.0, 2, 0)), None);
        assert_eq!(rule.decide(tally(3.0, 3, 0)), Some(Outcome::Evicts));
        assert_eq!(rule.decide(tally(0.0, 3, 0)), Some(Outcome::Spares));
        assert_eq!(rule.decide(tally(2.0, 4, 1)), None);
        assert_eq!(rule.decide(tally(2.0, 4, 4)), Some(Outcome::Unsure));
        assert_eq!(rule.decide(tally(0.0, 0, 8)), Some(Outcome::Unsure));
        assert_eq!(tally(0.0, 0, 8).share(), None);
    }

    proptest! {
        /// However trials come out, a decision stands on a strict majority.
        #[test]
        fn a_decision_is_a_strict_majority(scores in prop::collection::vec(-0.5_f64..1.5, 1..40)) {
            let mut tally = Tally::default();
            for score in scores {
                tally.add(Some(score));
                match Rule::CAREFUL.decide(tally) {
                    Some(Outcome::Evicts) => prop_assert!(tally.share().unwrap() > 0.5),
                    Some(Outcome::Spares) => prop_assert!(tally.share().unwrap() < 0.5),
                    _ => {}
                }
            }
        }
    }

    /// At both levels, lines of the target's own set evict it and lines of other sets do not.
    #[test]
    fn lines_of_the_same_set_evict_and_others_do_not() {
        let l2 = Bytes::kib(512);
        let mut sim = Sim::new(Config { placement: None, ..Config::milan() }, 3).unwrap();
        let first = Layout::pages(l2);
        let mut memory = sim.memory(first + 16_000).unwrap();
        let layout = Layout::new(l2, 3);
        let calibration = calibrate(&mut memory, l2, &layout);
        let level = Level::l2(&mut memory, &calibration, &layout).unwrap();
        let target = Line::new(first, 20);
        let lines: Vec<Line> = (first + 1..memory.pages()).map(|page| Line::new(page, 20)).collect();
        let (same_l2, others): (Vec<Line>, Vec<Line>) =
            lines.iter().partition(|&&line| memory.l2_set(line) == memory.l2_set(target));
        let mut test = EvictionTest::new(level, 4);
        let answer = |test: &mut EvictionTest, memory: &mut _, lines: &[Line]| {
            test.evicts(memory, target, lines, &others[2000..2016], Rule::CAREFUL)
        };
        assert_eq!(answer(&mut test, &mut memory, &same_l2[..16]), Outcome::Evicts);
        assert_eq!(answer(&mut test, &mut memory, &same_l2[..5]), Outcome::Spares);
        assert_eq!(answer(&mut test, &mut memory, &others[..300]), Outcome::Spares);
        // Lines of its LLC set push it out of the caches if they share its L2 set too: this LLC takes what
        // leaves the L2.
        let same_llc: Vec<Line> = (0..memory.pages())
            .flat_map(|page| (0..64).map(move |slot| Line::new(page, slot)))
            .filter(|&line| line != target && memory.llc_set(line) == memory.llc_set(target))
            .take(64)
            .collect();
        let mut test = EvictionTest::new(Level::llc(calibration.discriminator.unwrap()), 4);
        assert_eq!(test.evicts(&mut memory, target, &same_llc, &[], Rule::CAREFUL), Outcome::Evicts);
        test.aim(&same_l2[..8], &[]);
        assert_eq!(test.share(&mut memory, target, 5), Some(0.0));
    }
}
