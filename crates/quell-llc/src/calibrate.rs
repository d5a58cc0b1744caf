//! Finds, from data, what a cache hit and a miss look like on this vCPU, and how much spill empties the L2.

use quell_core::stats::quantile;
use quell_core::{Bytes, Line, Memory, Sample};

use crate::canary::Canary;
use crate::layout::{Layout, Spill, congruent_spill, full_spill};
use crate::timer::{self, Timer};

/// Rounds of sampling per latency class.
const ROUNDS: u32 = 12;
/// Share of flushed lines that may read as hits before the measurement refuses to speak.
pub const MAX_FALSE_HITS: f64 = 0.01;
/// Share of freshly touched lines (L1 or L2 for certain) that may read as misses.
const MAX_FALSE_MISSES: f64 = 0.02;
/// A load that takes this many times the typical miss was interrupted.
const INTERRUPTED_MISSES: f64 = 5.0;
/// A spill is good once the canary's chained latency has come this far from L2 to the full spill's latency.
const SPILLED: f64 = 0.95;
/// Short of that, the largest congruent spill will do from here on: the full spill touches eight times as much.
/// If congruent lines did not share L2 sets, a congruent spill would reach an eighth.
const CONGRUENT: f64 = 0.6;

/// What separates a hit from a miss, in ticks of a single timed load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discriminator {
    /// A load that takes longer came from memory.
    pub miss_above: u32,
    /// A load that takes longer says nothing: it was interrupted.
    pub interrupted_above: u32,
}

/// Samples by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Loads served by a cache.
    pub hits: u32,
    /// Loads served by memory.
    pub misses: u32,
    /// Loads that were interrupted, or during which the CPU changed.
    pub invalid: u32,
}

impl Discriminator {
    /// Sorts samples by outcome.
    #[must_use]
    pub fn count(self, samples: &[Sample]) -> Counts {
        let mut counts = Counts::default();
        for sample in samples {
            if sample.migrated || sample.ticks > self.interrupted_above {
                counts.invalid += 1;
            } else if sample.ticks > self.miss_above {
                counts.misses += 1;
            } else {
                counts.hits += 1;
            }
        }
        counts
    }
}

impl Counts {
    /// Adds other samples' outcomes.
    pub fn add(&mut self, other: Self) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.invalid += other.invalid;
    }

    /// Misses over all valid samples; `None` without any.
    #[must_use]
    pub fn miss_share(self) -> Option<f64> {
        let valid = self.hits + self.misses;
        (valid > 0).then(|| f64::from(self.misses) / f64::from(valid))
    }
}

/// Latencies of one place that a line can be in.
#[derive(Clone, Debug)]
pub struct LatencyClass {
    /// `L1/L2`, `LLC` or `memory`.
    pub name: &'static str,
    /// Single timed loads, timing overhead included, in ticks; interrupted and migrated ones left out.
    pub single_ticks: Vec<f64>,
    /// Dependent loads: lower quartile of the ticks per load, no timing overhead.
    pub chain_ticks: f64,
}

/// Everything the other measurements need to know about this vCPU.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The time-stamp counter's step and rate.
    pub timer: Timer,
    /// Latency classes, nearest first: `L1/L2`, `LLC`, `memory`.
    pub classes: [LatencyClass; 3],
    /// The hit/miss limit, or why the classes do not separate.
    pub discriminator: Result<Discriminator, String>,
    /// Whether single loads tell the L2 from the LLC; where not, only chains do.
    pub single_loads_tell_l2_from_llc: bool,
    /// The smallest spill that empties the canary out of the L2.
    pub spill: Spill,
    /// Share of the way from L2 to LLC latency that the canary takes with that spill (1 = all of it left L2).
    pub spilled_share: f64,
    /// Samples thrown away: interrupted, and migrated to another CPU.
    pub discarded: [u32; 2],
}

impl Calibration {
    /// Time of one load from memory in nanoseconds, timing overhead excluded.
    #[must_use]
    pub fn memory_ns(&self) -> f64 {
        self.classes[2].chain_ticks / self.timer.ticks_per_ms * 1e6
    }

    /// A canary that fits this calibration.
    #[must_use]
    pub fn canary(&self, layout: Layout) -> Canary {
        Canary::new(layout, self.spill)
    }
}

/// Calibrates on `memory`, whose arena must have at least [`Layout::pages`]`(l2)` pages. Takes some 50 ms.
pub fn calibrate(memory: &mut impl Memory, l2: Bytes, layout: &Layout) -> Calibration {
    let timer = timer::measure(memory, &layout.canary[..32]);
    let near_chain = chain(memory, |_| {}, &layout.canary);
    let (spill, spilled_share) = find_spill(memory, l2, layout, near_chain);
    let canary = Canary::new(layout.clone(), spill);

    // Few enough lines to stay in L1 and L2 whatever their sets: touched twice, then timed.
    let hot = &layout.canary[..32];
    let near = collect(memory, |memory| memory.load(&[hot, hot].concat()), hot);
    let cached = collect(memory, |memory| _ = canary.prime(memory), &layout.probe_order);
    let flushed = collect(memory, |memory| memory.flush(&layout.canary), &layout.probe_order);
    let chain_ticks = [
        near_chain,
        chain(memory, |memory| _ = canary.prime(memory), &layout.canary),
        chain(memory, |memory| memory.flush(&layout.canary), &layout.canary),
    ];

    let sets = [near, cached, flushed];
    let discriminator = separate(&sets);
    let interrupted_above = discriminator.as_ref().map_or(u32::MAX, |d| d.interrupted_above);
    let mut discarded = [0, 0];
    let names = ["L1/L2", "LLC", "memory"];
    let classes = std::array::from_fn(|i| {
        let (valid, [interrupted, migrated]) = valid_ticks(&sets[i], interrupted_above);
        discarded[0] += interrupted;
        discarded[1] += migrated;
        LatencyClass { name: names[i], single_ticks: valid, chain_ticks: chain_ticks[i] }
    });
    let single_loads_tell_l2_from_llc = tells_apart(&classes[0].single_ticks, &classes[1].single_ticks);
    Calibration {
        timer,
        classes,
        discriminator,
        single_loads_tell_l2_from_llc,
        spill,
        spilled_share,
        discarded,
    }
}

/// Times `lines` in [`ROUNDS`] rounds, each prepared anew.
fn collect<M: Memory>(memory: &mut M, prepare: impl Fn(&mut M), lines: &[Line]) -> Vec<Sample> {
    let mut samples = Vec::new();
    for round in 0..=ROUNDS {
        prepare(memory);
        memory.time(lines, &mut samples);
        if round == 0 {
            samples.clear(); // the first round warms caches, translations and branch predictors
        }
    }
    samples
}

/// Ticks per dependent load over `lines`, each round prepared anew: the lower quartile of the rounds, since
/// interruptions and evictions only ever add.
fn chain<M: Memory>(memory: &mut M, prepare: impl Fn(&mut M), lines: &[Line]) -> f64 {
    memory.load(lines);
    let rounds: Vec<f64> = (0..12)
        .map(|_| {
            prepare(memory);
            memory.chase(lines).0 as f64 / lines.len() as f64
        })
        .collect();
    quantile(&rounds, 0.25).unwrap_or(f64::NAN)
}

/// The smallest spill after which a chain over the canary runs at the latency that a spill of the whole L2
/// brings, and how far it gets. `near` is the chain's latency without any spill.
fn find_spill(memory: &mut impl Memory, l2: Bytes, layout: &Layout, near: f64) -> (Spill, f64) {
    let mut after = |spill: Spill| {
        let canary = Canary::new(layout.clone(), spill);
        chain(memory, |memory| _ = canary.prime(memory), &layout.canary)
    };
    let reference = full_spill(l2, 2.0);
    let far = after(reference);
    let shares = [1.5, 2.0, 3.0].map(|multiple| {
        let spill = congruent_spill(l2, multiple);
        (spill, ((after(spill) - near) / (far - near)).min(1.0))
    });
    let enough = |least: f64| move |(_, share): &&(Spill, f64)| *share >= least;
    shares
        .iter()
        .find(enough(SPILLED))
        .or_else(|| shares.iter().rev().find(enough(CONGRUENT)))
        .copied()
        .unwrap_or((reference, 1.0))
}

/// The limit between the cached classes and the flushed one: where the fewest samples lie on the wrong side,
/// in the middle of the widest such gap. Checked on the half of the samples that did not take part.
fn separate(sets: &[Vec<Sample>; 3]) -> Result<Discriminator, String> {
    let half = |samples: &[Sample], odd: usize| -> Vec<u32> {
        samples.iter().skip(odd).step_by(2).filter(|s| !s.migrated).map(|s| s.ticks).collect()
    };
    let typical_miss =
        quantile(&half(&sets[2], 0).into_iter().map(f64::from).collect::<Vec<_>>(), 0.5).unwrap_or(0.0);
    let interrupted_above = (typical_miss * INTERRUPTED_MISSES) as u32;
    let part = |set: usize, odd: usize| -> Vec<u32> {
        half(&sets[set], odd).into_iter().filter(|&ticks| ticks <= interrupted_above).collect()
    };
    let (near, cached, flushed) = (part(0, 0), part(1, 0), part(2, 0));
    if near.is_empty() || cached.is_empty() || flushed.is_empty() {
        return Err("every timed load was interrupted or migrated; the CPU is too busy".into());
    }
    // Lines in the LLC make the limit sharper, unless most of them have been evicted meanwhile.
    // A limit between L2 and memory alone may lie below the LLC, so it cannot tell that.
    let fast_miss =
        quantile(&flushed.iter().copied().map(f64::from).collect::<Vec<_>>(), 0.05).unwrap_or(0.0);
    let held = cached.iter().filter(|&&ticks| f64::from(ticks) < fast_miss).count() * 2 > cached.len();
    let miss_above =
        if held { best_limit(&[near, cached].concat(), &flushed) } else { best_limit(&near, &flushed) };

    let above =
        |ticks: &[u32]| ticks.iter().filter(|&&t| t > miss_above).count() as f64 / ticks.len().max(1) as f64;
    let false_hits = 1.0 - above(&part(2, 1));
    let false_misses = above(&part(0, 1));
    if false_hits > MAX_FALSE_HITS {
        return Err(format!("{:.1} % of flushed lines read as hits", false_hits * 100.0));
    }
    if false_misses > MAX_FALSE_MISSES {
        return Err(format!("{:.1} % of lines just touched read as misses", false_misses * 100.0));
    }
    Ok(Discriminator { miss_above, interrupted_above })
}

/// The limit with the smallest sum of error rates; of equally good ones the middle of the longest run in
/// logarithmic length.
fn best_limit(below: &[u32], above: &[u32]) -> u32 {
    let mut candidates: Vec<u32> = below.iter().chain(above).copied().collect();
    candidates.sort_unstable();
    candidates.dedup();
    let errors = |limit: u32| {
        below.iter().filter(|&&t| t > limit).count() as f64 / below.len() as f64
            + above.iter().filter(|&&t| t <= limit).count() as f64 / above.len() as f64
    };
    let rates: Vec<f64> = candidates.iter().map(|&limit| errors(limit)).collect();
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let tolerance = least + 0.002;
    let good = rates.iter().enumerate().filter(|(_, rate)| **rate <= tolerance).map(|(i, _)| i);
    let gap =
        |i: usize| f64::from(candidates[(i + 1).min(candidates.len() - 1)]) / f64::from(candidates[i].max(1));
    let widest = good.max_by(|&a, &b| gap(a).total_cmp(&gap(b))).unwrap_or(0);
    let next = candidates[(widest + 1).min(candidates.len() - 1)];
    (f64::from(candidates[widest]) * f64::from(next)).sqrt() as u32
}

/// Durations of the valid samples, and how many were interrupted and migrated.
fn valid_ticks(samples: &[Sample], interrupted_above: u32) -> (Vec<f64>, [u32; 2]) {
    let migrated = samples.iter().filter(|s| s.migrated).count();
    let valid: Vec<f64> = samples
        .iter()
        .filter(|s| !s.migrated && s.ticks <= interrupted_above)
        .map(|s| f64::from(s.ticks))
        .collect();
    let interrupted = samples.len() - migrated - valid.len();
    (valid, [interrupted as u32, migrated as u32])
}

/// Whether a single load of one class rarely looks like one of the other: the middle 80 % do not overlap.
fn tells_apart(near: &[f64], far: &[f64]) -> bool {
    matches!((quantile(near, 0.9), quantile(far, 0.1)), (Some(near), Some(far)) if near < far)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn separate_groups_get_a_limit_between_them(low in prop::collection::vec(20_u32..120, 1..200),
                                                    high in prop::collection::vec(200_u32..900, 1..200)) {
            let limit = best_limit(&low, &high);
            prop_assert!(low.iter().all(|&t| t <= limit) && high.iter().all(|&t| t > limit), "{limit}");
        }

        #[test]
        fn any_groups_get_a_limit(low in prop::collection::vec(0_u32..500, 1..50),
                                  high in prop::collection::vec(0_u32..500, 1..50)) {
            prop_assert!(best_limit(&low, &high) <= 500);
        }
    }

    #[test]
    fn samples_are_counted_by_outcome() {
        let limits = Discriminator { miss_above: 200, interrupted_above: 2000 };
        let sample = |ticks, migrated| Sample { ticks, migrated };
        let samples = [
            sample(70, false),
            sample(200, false),
            sample(201, false),
            sample(9000, false),
            sample(70, true),
        ];
        let counts = limits.count(&samples);
        assert_eq!(counts, Counts { hits: 2, misses: 1, invalid: 2 });
        assert_eq!(counts.miss_share(), Some(1.0 / 3.0));
        assert_eq!(Counts::default().miss_share(), None);
    }
}
