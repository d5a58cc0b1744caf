//! What is simulated, as plain data.

use crate::sets::{MAX_ORDERED_WAYS, MAX_WAYS};

/// How a level chooses the line that makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// The least recently used line.
    Lru,
    /// A binary tree of "evict from this half" bits (any number of ways).
    TreePlru,
    /// The least recently used line, but a line that has not been used again yet is inserted at a random place
    /// among the last `depth` in order of use (after Qureshi et al., "Adaptive insertion policies for high
    /// performance caching", ISCA 2007).
    LruInsertion {
        /// Number of places, at least 1; more than there are ways counts as all.
        depth: u8,
    },
    /// Static re-reference interval prediction with two bits (Jaleel et al., "High performance cache
    /// replacement using re-reference interval prediction (RRIP)", ISCA 2010): a new line has value 2, a line
    /// that was used again 0, the first line of value 3 is evicted, and when there is none all values grow.
    Srrip,
    /// Any line.
    Random,
}

/// What the last-level cache holds in relation to L2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inclusion {
    /// A fill goes into both; an eviction from the LLC removes the line from L1 and L2.
    Inclusive,
    /// A fill goes into L2 only; a line evicted from L2 enters the LLC; a hit leaves the LLC's copy there.
    NonInclusive,
    /// A fill goes into L2 only; a line evicted from L2 enters the LLC; a hit moves the line out of the LLC.
    Exclusive,
}

/// How a line's place in L2 and within a slice follows from its host-physical address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// Address bits from 6 upwards.
    Direct,
    /// The page-frame number, hashed (a linear XOR-fold), gives the bits above the page offset and a
    /// permutation (an XOR) of address bits 9 to 11.
    Hashed,
}

/// Size of the unit in which the host backs guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Every 4 KiB page lies somewhere else.
    Small,
    /// Aligned runs of 512 pages are contiguous, and one TLB entry covers a run.
    Huge,
}

/// The L1 data cache. It is replaced least recently used first: what it holds is in L2 as well, so its policy
/// only decides which accesses L2 does not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L1 {
    /// Number of sets, a power of two up to 64: the page offset selects one.
    pub sets: u32,
    /// Ways of a set, 1 to 16.
    pub ways: u32,
}

/// Sets, ways and policy of L2 or of a slice of the LLC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Number of sets (of one slice), a power of two.
    pub sets: u32,
    /// Ways of a set, 1 to 32; up to 16 with the policies that keep the order of use.
    pub ways: u32,
    /// Replacement policy.
    pub replacement: Replacement,
}

/// The last-level cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Llc {
    /// One slice.
    pub slice: Level,
    /// Number of slices; a line's slice is a hash of its address.
    pub slices: u32,
    /// Relation to L2.
    pub inclusion: Inclusion,
    /// Directory of privately held lines. With it, a non-inclusive LLC keeps a copy of what two of our vCPUs hold
    /// and gives up its copy of what one of them takes back.
    pub snoop_filter: Option<SnoopFilter>,
    /// Standard deviation of the log of the sets' pressure: other people's hot lines hold more ways of one set
    /// than of another, so foreign insertions reach our lines faster there. The mean over the sets is 1.
    pub set_log_sd: f64,
    /// Ways that our fills may use (cache allocation technology); bit i is way i.
    pub our_ways: u32,
    /// Ways that everybody else's fills may use.
    pub their_ways: u32,
}

/// The directory of lines that are in private caches and not in a non-inclusive LLC (Yan et al., "Attack
/// directories, not caches: side channel attacks in a non-inclusive world", S&P 2019). It has the LLC's sets and
/// slices. A line whose entry is evicted leaves the private caches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SnoopFilter {
    /// Ways of a set.
    pub ways: u32,
    /// Replacement policy.
    pub replacement: Replacement,
    /// Foreign entries that evict another, in relation to foreign insertions into the LLC: entries are also freed
    /// when a line leaves its private cache, so most find a free way.
    pub pressure: f64,
}

/// A next-line, buddy-line and stride prefetcher into L2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefetch {
    /// On an L2 miss fetch the other line of the 128-byte pair as well.
    pub buddy: bool,
    /// On an L2 miss fetch this many following lines of the page as well.
    pub next: u32,
    /// After two equal steps within a page fetch one step ahead as well.
    pub stride: bool,
}

/// Durations, in ticks of the time-stamp counter unless marked otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Ticks per millisecond.
    pub ticks_per_ms: f64,
    /// Step in which the counter advances.
    pub step: f64,
    /// Latency of a dependent load that hits L1, L2, the LLC, and memory.
    pub latency: [f64; 4],
    /// Time that one of many overlapping loads adds, by the same levels.
    pub overlapped: [f64; 4],
    /// What timing adds to a latency.
    pub overhead: f64,
    /// Time between two timed loads that no sample contains (fences, storing the sample).
    pub between: f64,
    /// Cost of a translation that the second-level TLB does not hold: dependent, and when loads overlap.
    pub tlb_miss: [f64; 2],
    /// Pages (or huge pages) that the second-level TLB covers, a power of two; 8 ways.
    pub tlb_entries: u32,
    /// Flushing one line.
    pub flush: f64,
    /// Handing a batch of loads to a helper vCPU and hearing that it is done.
    pub handover: f64,
    /// Standard deviation of the log of a latency in the LLC and in memory.
    pub noise: [f64; 2],
    /// Probability that a load from the LLC or from memory queues behind others …
    pub queue_probability: f64,
    /// … and then how much longer it takes on average (exponential).
    pub queue_ticks: f64,
}

/// How an insertion rate varies over time. The mean stays the configured rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Burst {
    /// It does not.
    Constant,
    /// Two-state: active and silent periods with exponentially distributed lengths.
    OnOff {
        /// Mean length of an active period, in milliseconds.
        on_ms: f64,
        /// Mean length of a silent period, in milliseconds.
        off_ms: f64,
    },
    /// The logarithm is the sum of two stationary Ornstein-Uhlenbeck processes.
    LogNormal {
        /// Standard deviation of the logarithm.
        log_sd: f64,
        /// Share of the slow process in the variance, 0 to 1.
        slow_share: f64,
        /// Correlation time of the fast process, in milliseconds.
        fast_ms: f64,
        /// Correlation time of the slow process, in milliseconds.
        slow_ms: f64,
    },
}

/// Insertions into a cache by somebody else.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// Mean number of lines inserted into the whole cache, per millisecond.
    pub per_ms: f64,
    /// Variation over time.
    pub burst: Burst,
    /// Share of the inserted lines that the policy predicts to be used again.
    pub reuse: f64,
    /// Relative intensity on each page color (any scale), or the same on all if empty.
    pub by_color: Vec<f64>,
}

/// Our own VM's load on another vCPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Polluter {
    /// Insertions into its LLC while it runs, per millisecond.
    pub per_ms: f64,
    /// Length of one on-off cycle, in milliseconds.
    pub period_ms: f64,
    /// Share of a cycle in which it runs; the cycle starts with this part.
    pub duty: f64,
    /// When its first cycle starts, in milliseconds.
    pub start_ms: f64,
    /// The LLC of its vCPU.
    pub llc: usize,
    /// The only page color that it touches, or all.
    pub color: Option<u32>,
    /// Share of its lines that the policy predicts to be used again.
    pub reuse: f64,
}

/// How the host moves our vCPU between LLCs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placement {
    /// Mean stay in one LLC while the vCPU is asleep, in milliseconds (exponential).
    pub dwell_ms: f64,
    /// How many times rarer a move is while the vCPU runs.
    pub calmer_running: f64,
}

/// One kind of interruption of the running vCPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pause {
    /// Mean number per millisecond of running.
    pub per_ms: f64,
    /// Median length, in milliseconds.
    pub median_ms: f64,
    /// Standard deviation of the log of the length.
    pub log_sd: f64,
    /// Probability that the guest kernel counts an involuntary switch for it.
    pub involuntary: f64,
}

/// A whole simulated machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// L1 data cache of a core.
    pub l1: L1,
    /// L2 of a core, inclusive of L1.
    pub l2: Level,
    /// The last-level caches, all alike.
    pub llc: Llc,
    /// Address bits that select a set.
    pub indexing: Indexing,
    /// Granularity of the guest-to-host mapping.
    pub backing: Backing,
    /// Prefetchers.
    pub prefetch: Prefetch,
    /// Durations.
    pub timing: Timing,
    /// Foreign traffic into each LLC: one entry per LLC, the one where our vCPU starts first.
    pub neighbors: Vec<Traffic>,
    /// Traffic of the other hyper-thread into our L2.
    pub sibling: Option<Traffic>,
    /// Our own VM's load.
    pub polluter: Option<Polluter>,
    /// Moves between LLCs.
    pub placement: Option<Placement>,
    /// Interruptions.
    pub pauses: Vec<Pause>,
    /// How late a sleeper wakes: median in milliseconds and standard deviation of the log.
    pub oversleep_ms: [f64; 2],
    /// Step of the busy time that the VM's own accounting shows, in milliseconds.
    pub load_step_ms: f64,
}

/// Why a simulation cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("cannot simulate this machine: {what} must be {rule}, not {value}")]
pub struct ConfigError {
    what: &'static str,
    rule: &'static str,
    value: f64,
}

impl ConfigError {
    pub(crate) fn new(what: &'static str, rule: &'static str, value: f64) -> Self {
        Self { what, rule, value }
    }
}

fn ensure(ok: bool, what: &'static str, rule: &'static str, value: f64) -> Result<(), ConfigError> {
    if ok { Ok(()) } else { Err(ConfigError::new(what, rule, value)) }
}

fn positive(what: &'static str, value: f64) -> Result<(), ConfigError> {
    ensure(value.is_finite() && value > 0.0, what, "positive and finite", value)
}

fn not_negative(what: &'static str, value: f64) -> Result<(), ConfigError> {
    ensure(value.is_finite() && value >= 0.0, what, "at least 0 and finite", value)
}

fn share(what: &'static str, value: f64) -> Result<(), ConfigError> {
    ensure((0.0..=1.0).contains(&value), what, "between 0 and 1", value)
}

impl Level {
    fn check(&self) -> Result<(), ConfigError> {
        ensure(
            self.sets.is_power_of_two() && self.sets <= 1 << 20,
            "the number of sets",
            "a power of two up to 2^20",
            f64::from(self.sets),
        )?;
        ensure(
            (1..=MAX_WAYS).contains(&self.ways),
            "the number of ways",
            "between 1 and 32",
            f64::from(self.ways),
        )?;
        if matches!(self.replacement, Replacement::Lru | Replacement::LruInsertion { .. }) {
            let few = self.ways <= MAX_ORDERED_WAYS;
            ensure(few, "the number of ways in order of use", "at most 16", f64::from(self.ways))?;
        }
        if let Replacement::LruInsertion { depth } = self.replacement {
            ensure(depth > 0, "the insertion depth", "positive", f64::from(depth))?;
        }
        Ok(())
    }
}

impl Traffic {
    fn check(&self, colors: u32) -> Result<(), ConfigError> {
        not_negative("the insertion rate", self.per_ms)?;
        share("the reuse share", self.reuse)?;
        match self.burst {
            Burst::Constant => {}
            Burst::OnOff { on_ms, off_ms } => {
                positive("the mean active period", on_ms)?;
                not_negative("the mean silent period", off_ms)?;
            }
            Burst::LogNormal { log_sd, slow_share, fast_ms, slow_ms } => {
                ensure((0.0..=3.0).contains(&log_sd), "the sd of log intensity", "between 0 and 3", log_sd)?;
                share("the slow share", slow_share)?;
                positive("the fast correlation time", fast_ms)?;
                positive("the slow correlation time", slow_ms)?;
            }
        }
        if !self.by_color.is_empty() {
            let n = self.by_color.len();
            ensure(
                n == colors as usize,
                "the number of color weights",
                "the number of page colors",
                n as f64,
            )?;
            for &weight in &self.by_color {
                not_negative("a color weight", weight)?;
            }
            positive("the sum of the color weights", self.by_color.iter().sum())?;
        }
        Ok(())
    }
}

impl Config {
    /// Number of page colors: classes of pages that share no set of L2 and none of the LLC.
    #[must_use]
    pub fn colors(&self) -> u32 {
        (self.l2.sets.min(self.llc.slice.sets) / 64).max(1)
    }

    /// Sets of one whole LLC.
    #[must_use]
    pub fn llc_sets(&self) -> u32 {
        self.llc.slice.sets * self.llc.slices
    }

    /// Bytes of one LLC that our lines can occupy.
    #[must_use]
    pub fn usable_llc_bytes(&self) -> u64 {
        let ways = self.llc.our_ways & (((1u64 << self.llc.slice.ways) - 1) as u32);
        u64::from(self.llc_sets()) * u64::from(ways.count_ones()) * 64
    }

    /// The same machine with every neighbor's mean insertion rate multiplied by `factor`.
    #[must_use]
    pub fn scale_neighbors(mut self, factor: f64) -> Self {
        for neighbor in &mut self.neighbors {
            neighbor.per_ms *= factor;
        }
        self
    }

    /// Checks every value.
    ///
    /// # Errors
    /// The first value that makes no sense.
    pub fn check(&self) -> Result<(), ConfigError> {
        let L1 { sets, ways } = self.l1;
        let one_page = sets.is_power_of_two() && sets <= 64;
        ensure(one_page, "the number of L1 sets", "a power of two up to 64", f64::from(sets))?;
        ensure(
            (1..=MAX_ORDERED_WAYS).contains(&ways),
            "the number of L1 ways",
            "between 1 and 16",
            f64::from(ways),
        )?;
        self.l2.check()?;
        self.llc.slice.check()?;
        let spread = self.llc.set_log_sd;
        ensure((0.0..=2.0).contains(&spread), "the log sd of the sets' pressure", "between 0 and 2", spread)?;
        let slices = self.llc.slices;
        ensure((1..=128).contains(&slices), "the number of slices", "between 1 and 128", f64::from(slices))?;
        for (what, ways) in
            [("our LLC way mask", self.llc.our_ways), ("their LLC way mask", self.llc.their_ways)]
        {
            let inside = ways != 0 && u64::from(ways) < 1 << self.llc.slice.ways;
            ensure(inside, what, "a non-empty set of existing ways", f64::from(ways))?;
        }
        if let Some(filter) = self.llc.snoop_filter {
            Level { ways: filter.ways, replacement: filter.replacement, ..self.llc.slice }.check()?;
            not_negative("the pressure on the snoop filter", filter.pressure)?;
            let fits = self.llc.inclusion == Inclusion::NonInclusive;
            ensure(
                fits,
                "the snoop filter's ways",
                "absent unless the LLC is non-inclusive",
                f64::from(filter.ways),
            )?;
        }
        ensure(self.prefetch.next < 64, "the prefetch distance", "below 64", f64::from(self.prefetch.next))?;
        self.check_timing()?;
        let llcs = self.neighbors.len();
        ensure((1..=64).contains(&llcs), "the number of neighbors", "one per LLC, 1 to 64", llcs as f64)?;
        for traffic in self.neighbors.iter().chain(&self.sibling) {
            traffic.check(self.colors())?;
        }
        if let Some(polluter) = &self.polluter {
            polluter.check(llcs, self.colors())?;
        }
        if let Some(placement) = &self.placement {
            positive("the mean dwell time", placement.dwell_ms)?;
            positive("the calming factor", placement.calmer_running)?;
        }
        for pause in &self.pauses {
            not_negative("the rate of pauses", pause.per_ms)?;
            positive("the median pause", pause.median_ms)?;
            not_negative("the log sd of pauses", pause.log_sd)?;
            share("the involuntary share", pause.involuntary)?;
        }
        not_negative("the median oversleep", self.oversleep_ms[0])?;
        not_negative("the log sd of the oversleep", self.oversleep_ms[1])?;
        positive("the step of the load accounting", self.load_step_ms)
    }

    fn check_timing(&self) -> Result<(), ConfigError> {
        let t = &self.timing;
        positive("the tick rate", t.ticks_per_ms)?;
        positive("the timer step", t.step)?;
        for value in t.latency.into_iter().chain(t.overlapped) {
            positive("a latency", value)?;
        }
        for value in [t.overhead, t.between, t.flush, t.handover, t.queue_ticks]
            .into_iter()
            .chain(t.tlb_miss)
            .chain(t.noise)
        {
            not_negative("a duration or its noise", value)?;
        }
        share("the queueing probability", t.queue_probability)?;
        let entries = t.tlb_entries;
        let reach = entries.is_power_of_two() && (8..=1 << 20).contains(&entries);
        ensure(reach, "the number of TLB entries", "a power of two from 8 to 2^20", f64::from(entries))
    }
}

impl Polluter {
    fn check(&self, llcs: usize, colors: u32) -> Result<(), ConfigError> {
        not_negative("the polluter's rate", self.per_ms)?;
        positive("the polluter's period", self.period_ms)?;
        share("the polluter's duty", self.duty)?;
        not_negative("the polluter's start", self.start_ms)?;
        share("the polluter's reuse share", self.reuse)?;
        ensure(self.llc < llcs, "the polluter's LLC", "an existing LLC", self.llc as f64)?;
        let color = self.color.unwrap_or(0);
        ensure(color < colors, "the polluter's color", "an existing page color", f64::from(color))
    }

    /// Milliseconds of running from the start until `ms`.
    pub(crate) fn busy_until(&self, ms: f64) -> f64 {
        let since = (ms - self.start_ms).max(0.0);
        let cycles = (since / self.period_ms).floor();
        let on = self.duty * self.period_ms;
        cycles * on + (since - cycles * self.period_ms).min(on)
    }
}
