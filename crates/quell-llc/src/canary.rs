//! The canary: a few hundred lines that are put into the LLC, left alone for a window and looked for again.

use quell_core::{Line, Memory, Sample, Ticks};

use crate::calibrate::{Counts, Discriminator};
use crate::layout::{Layout, Spill};

/// Touch-and-spill rounds of one priming. A *hit* in the LLC protects a line there: on AMD Milan one round
/// loses 17 % of the lines at once, four rounds lose 1-2 %.
pub const PRIME_ROUNDS: u32 = 4;

/// A timed part of a window that takes this much longer than it should has been interrupted, in ms.
const GAP_MS: f64 = 0.5;

/// How a window is waited out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wait {
    /// Not at all: the control that shows what priming and probing lose by themselves.
    None,
    /// Asleep for this many milliseconds.
    Sleep(f64),
}

/// What one window saw.
#[derive(Clone, Debug)]
pub struct WindowResult {
    /// Time from the last touch of the canary to the middle of the probe, in ms.
    pub exposure_ms: f64,
    /// Share of the canary that was evicted, 0 to 1; `None` if no sample was valid.
    pub share: Option<f64>,
    /// Share of the sentinels that were gone as well.
    pub sentinels_lost: f64,
    /// Outcomes by stratum; empty for a canary without strata.
    pub strata: Vec<Counts>,
    /// Samples thrown away because the load was interrupted or the CPU changed.
    pub invalid_samples: u32,
    /// Time was taken from the vCPU while it primed or probed.
    pub gap: bool,
    /// The kernel took the CPU away while it primed or probed.
    pub preempted: bool,
    /// CPU time of priming and probing, in ms.
    pub cpu_ms: f64,
    /// Wall-clock time of the probe, in ms.
    pub probe_ms: f64,
}

/// Canary lines with everything needed to prime and probe them.
#[derive(Debug)]
pub struct Canary {
    layout: Layout,
    spill: Vec<Line>,
    samples: Vec<Sample>,
    /// The stratum of each line, in probing order; empty without strata.
    strata: Vec<usize>,
    typical_prime_ms: f64,
    typical_probe_ms: f64,
}

impl Canary {
    /// A canary on `layout`, pushed out of the L2 by `spill`.
    #[must_use]
    pub fn new(layout: Layout, spill: Spill) -> Self {
        let spill = layout.spill(spill);
        Self {
            layout,
            spill,
            samples: Vec::with_capacity(1024),
            strata: Vec::new(),
            typical_prime_ms: f64::INFINITY,
            typical_probe_ms: f64::INFINITY,
        }
    }

    /// The same canary with its lines divided into strata that are counted apart: one number a line, in priming
    /// order.
    ///
    /// # Panics
    /// If there are not as many numbers as lines.
    #[must_use]
    pub fn stratified(self, strata: &[usize]) -> Self {
        assert_eq!(strata.len(), self.layout.canary.len(), "one stratum a line");
        Self { strata: strata.iter().rev().copied().collect(), ..self }
    }

    /// The lines by role.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Brings the canary into the LLC, protected there and out of the private caches. Returns when, on
    /// average, its lines were last touched or written back there: halfway through the last spill.
    pub fn prime(&self, memory: &mut impl Memory) -> Ticks {
        for _ in 1..PRIME_ROUNDS {
            memory.load(&self.layout.canary);
            memory.load(&self.spill);
        }
        memory.load(&self.layout.canary);
        let touched = memory.now();
        memory.load(&self.spill);
        let spilled = memory.now();
        memory.load(&self.layout.sentinels);
        touched + Ticks(spilled.since(touched).0 / 2)
    }

    /// Primes, waits and probes.
    pub fn window(&mut self, memory: &mut impl Memory, wait: Wait, limits: Discriminator) -> WindowResult {
        let ticks_per_ms = memory.ticks_per_ms();
        let ms = |ticks: Ticks| ticks.0 as f64 / ticks_per_ms;
        let switches = memory.involuntary_switches();
        let cpu = memory.cpu_ms();

        let before = memory.now();
        let start = self.prime(memory);
        let primed = memory.now();
        if let Wait::Sleep(length) = wait {
            memory.sleep_until(primed + Ticks((length * ticks_per_ms) as u64));
        }
        let probe_start = memory.now();
        self.samples.clear();
        memory.time(&self.layout.sentinels, &mut self.samples);
        memory.time(&self.layout.probe_order, &mut self.samples);
        let end = memory.now();

        let (sentinels, canary) = self.samples.split_at(self.layout.sentinels.len());
        let strata = self.by_stratum(canary, limits);
        let (sentinels, canary) = (limits.count(sentinels), limits.count(canary));
        let prime_ms = ms(primed - before);
        let probe_ms = ms(end - probe_start);
        // A probe that finds everything evicted takes several times as long as one that finds it cached.
        let stretched = prime_ms > self.typical_prime_ms * 4.0 + GAP_MS
            || probe_ms > self.typical_probe_ms * 8.0 + GAP_MS;
        self.typical_probe_ms = self.typical_probe_ms.min(probe_ms);
        self.typical_prime_ms = self.typical_prime_ms.min(prime_ms);
        let longest = self.samples.iter().map(|sample| sample.ticks).max().unwrap_or(0);
        WindowResult {
            exposure_ms: ms(probe_start - start) + ms(end - probe_start) / 2.0,
            share: canary.miss_share(),
            sentinels_lost: sentinels.miss_share().unwrap_or(0.0),
            strata,
            invalid_samples: canary.invalid,
            gap: stretched || f64::from(longest) > GAP_MS * ticks_per_ms,
            preempted: memory.involuntary_switches() > switches,
            cpu_ms: memory.cpu_ms() - cpu,
            probe_ms,
        }
    }

    fn by_stratum(&self, samples: &[Sample], limits: Discriminator) -> Vec<Counts> {
        let mut counts = vec![Counts::default(); self.strata.iter().max().map_or(0, |most| most + 1)];
        for (&stratum, &sample) in self.strata.iter().zip(samples) {
            counts[stratum].add(limits.count(&[sample]));
        }
        counts
    }

    /// The control that flushed lines read as misses: the share that falsely reads as hits, 0 to 1.
    ///
    /// Prefetchers can fetch a line just before it is timed; a canary that hides misses must be refused.
    pub fn false_hits(&mut self, memory: &mut impl Memory, limits: Discriminator) -> Option<f64> {
        memory.flush(&self.layout.canary);
        self.samples.clear();
        memory.time(&self.layout.probe_order, &mut self.samples);
        limits.count(&self.samples).miss_share().map(|missed| 1.0 - missed)
    }
}
