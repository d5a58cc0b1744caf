//! Windows over eviction sets, and the test of the sets after them.

use quell_core::stats::survival::Window;
use quell_core::{Crew, Line, Memory, Sample, Ticks};

use super::build::EvictionSet;
use super::test::LlcTest;
use crate::calibrate::{Counts, Discriminator};
use crate::curve::Observation;
use crate::evset::test::{Outcome, Rule, Tally};
use crate::monitor::Discarded;

/// A share beyond which everything was lost: perhaps the vCPU moved to another cache.
const ALL_LOST: f64 = 0.97;
/// A load that takes this long, in ms, was interrupted, and so was its window.
const GAP_MS: f64 = 0.5;
/// Lines of the flush control.
const CONTROL_LINES: usize = 128;
/// Trials that do not count before a set is tested again.
const WARM_UP: usize = 3;

/// What one member saw in one window.
#[derive(Debug)]
pub(super) struct Shot {
    /// Of each of its sets.
    pub(super) counts: Vec<Counts>,
    pub(super) exposure_ms: f64,
    pub(super) probe_ms: f64,
    pub(super) cpu_ms: f64,
    pub(super) gap: bool,
    pub(super) preempted: bool,
}

/// One window of all members at once: each primes its share of the sets, waits, and probes in reverse order.
pub(super) fn shots(
    crew: &mut impl Crew,
    shares: &[&[EvictionSet]],
    at: Ticks,
    length_ms: Option<f64>,
    limits: Discriminator,
) -> Vec<Shot> {
    crew.run(shares.to_vec(), &|memory, share| {
        memory.sleep_until(at);
        shot(memory, share, length_ms, limits)
    })
}

fn shot(
    memory: &mut impl Memory,
    share: &[EvictionSet],
    length_ms: Option<f64>,
    limits: Discriminator,
) -> Shot {
    let ticks_per_ms = memory.ticks_per_ms();
    let ms = |ticks: Ticks| ticks.0 as f64 / ticks_per_ms;
    let lines: Vec<Line> = share.iter().flat_map(|set| set.lines.iter().copied()).collect();
    let backwards: Vec<Line> = lines.iter().rev().copied().collect();
    let mut samples: Vec<Sample> = Vec::with_capacity(lines.len());
    let (switches, cpu) = (memory.involuntary_switches(), memory.cpu_ms());
    // Twice: what the first pass has pushed out comes back.
    memory.load_shared(&lines);
    let begun = memory.now();
    memory.load_shared(&lines);
    let primed = memory.now();
    if let Some(length_ms) = length_ms {
        memory.sleep_until(primed + Ticks((length_ms * ticks_per_ms) as u64));
    }
    let probing = memory.now();
    memory.time(&backwards, &mut samples);
    let end = memory.now();
    let longest = samples.iter().map(|sample| sample.ticks).max().unwrap_or(0);
    samples.reverse();
    let mut rest = &samples[..];
    let counts = share.iter().map(|set| {
        let (own, others) = rest.split_at(set.lines.len());
        rest = others;
        limits.count(own)
    });
    let counts = counts.collect();
    Shot {
        counts,
        exposure_ms: ms(probing - primed) + (ms(primed - begun) + ms(end - probing)) / 2.0,
        probe_ms: ms(end - probing),
        cpu_ms: memory.cpu_ms() - cpu,
        gap: f64::from(longest) > GAP_MS * ticks_per_ms,
        preempted: memory.involuntary_switches() > switches,
    }
}

/// Mean share lost of the sets that `wanted` selects by their place in the order of shares: each set's own size is
/// the denominator.
pub(super) fn share_of(shots: &[Shot], wanted: impl Fn(usize) -> bool) -> Option<f64> {
    let counts = shots.iter().flat_map(|shot| &shot.counts).enumerate();
    let shares: Vec<f64> =
        counts.filter(|(place, _)| wanted(*place)).filter_map(|(_, counts)| counts.miss_share()).collect();
    (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
}

/// Whether each set still evicts its target, in the order of shares; and the CPU time spent.
pub(super) fn retest(crew: &mut impl Crew, shares: &[&[EvictionSet]], test: &LlcTest) -> (Vec<bool>, f64) {
    let results = crew.run(shares.to_vec(), &|memory, share| {
        let cpu = memory.cpu_ms();
        let mut test = test.fresh();
        let valid: Vec<bool> = share
            .iter()
            .map(|set| {
                // Others' lines have come into the set meanwhile, and could do a missing line's work.
                let mut tally = [Tally::default()];
                for _ in 0..WARM_UP {
                    test.trial(memory, &[set.target], &set.lines, &mut tally);
                }
                // A single trial may go wrong, and a good set is not thrown away for it.
                test.step(memory, set.target, &set.lines) == Outcome::Evicts
                    || test.evicts(memory, set.target, &set.lines, Rule::CAREFUL) == Outcome::Evicts
            })
            .collect();
        (valid, memory.cpu_ms() - cpu)
    });
    let cpu_ms = results.iter().map(|(_, cpu)| cpu).sum();
    (results.into_iter().flat_map(|(valid, _)| valid).collect(), cpu_ms)
}

/// The control that flushed lines read as misses; `None` without sets.
pub(super) fn false_hits(
    memory: &mut impl Memory,
    sets: &[EvictionSet],
    limits: Discriminator,
) -> Option<f64> {
    let lines: Vec<Line> =
        sets.iter().flat_map(|set| set.lines.iter().copied()).take(CONTROL_LINES).collect();
    memory.flush(&lines);
    let mut samples = Vec::new();
    memory.time(&lines, &mut samples);
    limits.count(&samples).miss_share().map(|missed| 1.0 - missed)
}

/// The windows of one period, sorted out.
#[derive(Debug, Default)]
pub(super) struct Harvest {
    pub(super) index: u32,
    pub(super) windows: usize,
    pub(super) discarded: Discarded,
    pub(super) all: Vec<Observation>,
    pub(super) colors: Vec<Vec<Observation>>,
    pub(super) probe_ms: Vec<f64>,
    pub(super) cpu_ms: f64,
}

impl Harvest {
    pub(super) fn new(index: u32) -> Self {
        Self { index, ..Self::default() }
    }

    /// Takes in windows over the sets `half`, of which `valid` count.
    pub(super) fn collect(
        &mut self,
        windows: &[Vec<Shot>],
        half: &[EvictionSet],
        valid: &[bool],
        colors: usize,
    ) {
        self.colors = vec![Vec::new(); colors];
        for (number, shots) in windows.iter().enumerate() {
            self.windows += 1;
            self.probe_ms.extend(shots.iter().map(|shot| shot.probe_ms));
            if shots.iter().any(|shot| shot.preempted) {
                self.discarded.preempted += 1;
                continue;
            }
            if shots.iter().any(|shot| shot.gap) {
                self.discarded.tsc_gap += 1;
                continue;
            }
            let exposure_ms = shots.iter().map(|shot| shot.exposure_ms).sum::<f64>() / shots.len() as f64;
            let block = self.index * 64 + number as u32;
            let observation = |share: f64| Observation {
                window: Window::new(exposure_ms, share, block),
                sentinels_lost: if share > ALL_LOST { share } else { 0.0 },
            };
            let Some(share) = share_of(shots, |place| valid[place]) else { continue };
            self.all.push(observation(share));
            for (color, observations) in self.colors.iter_mut().enumerate() {
                let of_color = |place: usize| valid[place] && half[place].color as usize == color;
                if let Some(share) = share_of(shots, of_color) {
                    observations.push(observation(share));
                }
            }
        }
    }
}
