//! The eviction test of the last-level cache.
//!
//! Target and candidates are loaded by two vCPUs where there are two, because a non-inclusive LLC keeps what two
//! cores hold and gives up what one takes back. The target comes from memory each time, so no earlier hit
//! protects it.

use quell_core::{Line, Memory, Sample, Ticks};

use crate::evset::test::{Level, Outcome, Rule, Tally};

/// Shorter lists are traversed twice: in the first pass they may replace other people's lines instead of the
/// target. A longer list that evicts at all has lines to spare.
const LONG_LIST: usize = 64;
/// Still shorter lists fit the L2, where the LLC does not see that they are used: they are flushed before each
/// trial, so that the target is the oldest line of its set.
const SHORT_LIST: usize = 64;
/// After a traversal of more lines than this the memory pipeline needs a moment, or the target's load queues.
const LONG_TRAVERSAL: usize = 100;
/// That moment, in ms.
const DRAIN_MS: f64 = 0.001;
/// A traversal that takes this share of the longest valid load for each line …
const SLOWEST_LOAD: f64 = 0.06;
/// … and so much more altogether, in ms, was interrupted: somebody else used the cache meanwhile.
const PAUSE_MS: f64 = 0.01;

/// Trials of one step of a search, void ones included.
const MOST_TRIALS: u32 = 8;

/// Tests which lines push which out of the LLC, and counts what it loads.
#[derive(Clone, Debug)]
pub struct LlcTest {
    level: Level,
    slowest_load: f64,
    samples: Vec<Sample>,
    order: Vec<Line>,
    /// Lines loaded and timed so far, each once however many vCPUs loaded it.
    pub accesses: u64,
    /// Trials thrown away so far: interrupted, or the vCPU moved.
    pub void: u64,
}

impl LlcTest {
    /// A test that tells hits from misses by `level`.
    #[must_use]
    pub fn new(level: Level) -> Self {
        let slowest_load = f64::from(level.interrupted_above()) * SLOWEST_LOAD;
        Self { level, slowest_load, samples: Vec::new(), order: Vec::new(), accesses: 0, void: 0 }
    }

    /// The same test with nothing counted yet, for another vCPU.
    #[must_use]
    pub fn fresh(&self) -> Self {
        Self { accesses: 0, void: 0, ..self.clone() }
    }

    /// One trial for all `targets` at once: loads them, traverses `lines`, and times the targets in reverse
    /// order. Adds to `tallies`, one a target. The targets must be so few that they do not evict one another.
    pub fn trial(
        &mut self,
        memory: &mut impl Memory,
        targets: &[Line],
        lines: &[Line],
        tallies: &mut [Tally],
    ) {
        let ticks_per_ms = memory.ticks_per_ms();
        memory.flush(targets);
        if lines.len() < SHORT_LIST {
            memory.flush(lines);
        }
        let start = memory.now();
        memory.load_shared(targets);
        let passes = match lines.len() {
            ..LONG_LIST => 2,
            _ => 1,
        };
        for _ in 0..passes {
            memory.load_shared(lines);
        }
        let elapsed = memory.now().since(start).0 as f64;
        let loaded = targets.len() + lines.len() * passes;
        let stretched = elapsed > loaded as f64 * self.slowest_load + PAUSE_MS * ticks_per_ms;
        if loaded > LONG_TRAVERSAL {
            let drained = memory.now() + Ticks((DRAIN_MS * ticks_per_ms) as u64);
            memory.spin_until(drained);
        }
        self.samples.clear();
        self.order.clear();
        self.order.extend(targets.iter().rev());
        memory.time(&self.order, &mut self.samples);
        self.accesses += (loaded + targets.len()) as u64;
        for (&sample, tally) in self.samples.iter().rev().zip(tallies) {
            let score = if stretched { None } else { self.level.score(sample) };
            self.void += u64::from(score.is_none());
            tally.add(score);
        }
    }

    /// One step of a search: whether `lines` probably evict `target`. A line of the target's own set hardly ever
    /// fails to count, while others may evict the target at any time. So one trial in which the target stays is
    /// enough, and two more trials must push it out than spare it. Wrong answers are found later and repaired.
    pub fn step(&mut self, memory: &mut impl Memory, target: Line, lines: &[Line]) -> Outcome {
        let mut tally = [Tally::default()];
        for _ in 0..MOST_TRIALS {
            self.trial(memory, &[target], lines, &mut tally);
            let [Tally { sum, valid, .. }] = tally;
            match 2.0 * sum - f64::from(valid) {
                lead if lead >= 2.0 => return Outcome::Evicts,
                lead if lead <= -1.0 => return Outcome::Spares,
                _ => {}
            }
        }
        Outcome::Unsure
    }

    /// [`Self::step`] with the first `length` of `lines`. The others are flushed first: what an earlier step has left
    /// of them in the target's set would do the missing lines' work.
    pub fn prefix(
        &mut self,
        memory: &mut impl Memory,
        target: Line,
        lines: &[Line],
        length: usize,
    ) -> Outcome {
        let (prefix, rest) = lines.split_at(length);
        memory.flush(rest);
        self.step(memory, target, prefix)
    }

    /// Whether `lines` evict `target`: trials until `rule` decides.
    pub fn evicts(&mut self, memory: &mut impl Memory, target: Line, lines: &[Line], rule: Rule) -> Outcome {
        let mut tally = [Tally::default()];
        loop {
            self.trial(memory, &[target], lines, &mut tally);
            if let Some(outcome) = rule.decide(tally[0]) {
                return outcome;
            }
        }
    }
}
