//! One LLC of the real machine, watched from one vCPU: memory, calibration and the neighbors to ping.

use std::time::{Duration, Instant};

use quell_core::{Bytes, CpuId, LlcId, Memory, Ticks, tsc};
use quell_topology::{NearFar, Pair, Pinned, PlacementSeries, PlacementSummary, tsc_ticks_per_ms};

use crate::calibrate::{Calibration, calibrate};
use crate::color::{Classification, ClassifyError, L2, Pool, classify};
use crate::hw::{HwError, HwMemory};
use crate::layout::Layout;
use crate::monitor::{Monitor, Period, Plan, Settings};

/// What to watch, and from where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The LLC domain as the guest kernel sees it.
    pub llc: LlcId,
    /// The CPUs that share it according to the kernel, and that this process may use.
    pub cpus: Vec<CpuId>,
    /// Size that CPUID or sysfs advertises.
    pub advertised: Bytes,
    /// Size of the private L2.
    pub l2: Bytes,
    /// Its ways, where they are known.
    pub l2_ways: Option<u32>,
}

impl Target {
    /// The L2 as page colors need to know it.
    ///
    /// # Errors
    /// What is not known.
    pub fn l2_shape(&self) -> Result<L2, String> {
        match self.l2_ways {
            Some(ways) if ways > 0 => Ok(L2 { size: self.l2, ways }),
            _ => Err("neither sysfs nor CPUID tells how many ways the L2 has".into()),
        }
    }

    /// The CPU that measures: the first.
    #[must_use]
    pub fn probe_cpu(&self) -> CpuId {
        self.cpus[0]
    }
}

/// Why an LLC cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Pinning, timing or ping-pong failed.
    #[error("cannot place the probe on CPU {cpu}")]
    Topology {
        /// Where.
        cpu: CpuId,
        /// Why.
        #[source]
        source: quell_topology::Error,
    },
    /// No memory.
    #[error("cannot prepare the probe's memory")]
    Memory(#[from] HwError),
}

/// Partners that take turns: more would make every pair's series too thin.
const MAX_PARTNERS: usize = 4;
/// Least time between two ping-pongs while windows are measured: each takes some 0.2 ms of two CPUs …
const PING_EVERY: Duration = Duration::from_millis(200);
/// … or up to 20 ms if the partner's CPU is taken; then it is left alone for so many times as long.
const PING_REST: u32 = 500;
/// Calibration is tried this often: a burst of neighbors or interrupts passes.
const CALIBRATIONS: u32 = 3;
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// A series is cut to this length, so that a monitor that runs for months stays small.
const MEMORY: Duration = Duration::from_secs(60);
/// Pauses may last seconds, and Ctrl-C must not take that long.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time between two ping-pongs of a dense series: hosts were seen to move vCPUs every 46 ms.
const DENSE_EVERY: Duration = Duration::from_millis(10);

/// Everything needed to watch one LLC. Lives on the thread that made it, which stays pinned.
#[derive(Debug)]
pub struct Session {
    /// What is watched.
    pub target: Target,
    /// What was learnt of hits and misses.
    pub calibration: Calibration,
    /// Who shares the cache, over time.
    pub companions: Companions,
    memory: HwMemory,
    layout: Layout,
    seed: u64,
    _pin: Pinned,
}

impl Session {
    /// Pins the calling thread to the target's first CPU, prepares memory and calibrates (some 50 ms).
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn open(target: Target, seed: u64) -> Result<Self, SessionError> {
        Self::with_pool(target, 0, seed)
    }

    /// The same with `pool` more pages, for colors.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn with_pool(target: Target, pool: u32, seed: u64) -> Result<Self, SessionError> {
        let cpu = target.probe_cpu();
        let placed = |source| SessionError::Topology { cpu, source };
        let pin = Pinned::to(cpu).map_err(placed)?;
        let ticks_per_ms = tsc_ticks_per_ms().map_err(placed)?;
        let layout = Layout::new(target.l2, seed);
        let mut memory = HwMemory::new(Layout::pages(target.l2) + pool, ticks_per_ms)?;
        let mut calibration = calibrate(&mut memory, target.l2, &layout);
        for _ in 1..CALIBRATIONS {
            if calibration.discriminator.is_ok() {
                break;
            }
            std::thread::sleep(RETRY_AFTER);
            calibration = calibrate(&mut memory, target.l2, &layout);
        }
        let companions = Companions::new(&target.cpus).map_err(placed)?;
        Ok(Self { target, calibration, companions, memory, layout, seed, _pin: pin })
    }

    /// The memory and the layout of lines in it.
    pub fn parts(&mut self) -> (&mut HwMemory, &Layout) {
        (&mut self.memory, &self.layout)
    }

    /// The pages beyond those of the layout.
    #[must_use]
    pub fn pool(&self) -> Pool {
        let first = Layout::pages(self.target.l2);
        Pool { first, count: self.memory.pages() - first }
    }

    /// Sorts the pool by color, again after a pause if a burst of somebody else prevented it.
    ///
    /// # Errors
    /// Why there are no usable colors here.
    pub fn classify(&mut self, seed: u64) -> Result<Classification, String> {
        let l2 = self.target.l2_shape()?;
        let pool = self.pool();
        let mut outcome = classify(&mut self.memory, l2, pool, seed);
        for again in 1..CALIBRATIONS {
            if !matches!(outcome, Err(ClassifyError::NoGroup { .. } | ClassifyError::NoClasses { .. })) {
                break;
            }
            std::thread::sleep(RETRY_AFTER);
            outcome = classify(&mut self.memory, l2, pool, seed.wrapping_add(u64::from(again)));
        }
        outcome.map_err(|error| error.to_string())
    }

    /// A monitor for this LLC.
    ///
    /// # Errors
    /// Why hits and misses cannot be told apart here.
    pub fn monitor(&self, settings: Settings) -> Result<Monitor, String> {
        let limits = self.calibration.discriminator.clone()?;
        Ok(Monitor::new(settings, self.calibration.canary(self.layout.clone()), limits, self.seed))
    }

    /// Runs one period and pings the companions in its pauses. `keep_on` is asked several times a second.
    pub fn period(&mut self, monitor: &mut Monitor, plan: Plan, keep_on: impl Fn() -> bool) -> Period {
        let companions = &mut self.companions;
        let look_every = Ticks((LOOK_EVERY.as_secs_f64() * 1e3 * self.memory.ticks_per_ms()) as u64);
        monitor.period(&mut self.memory, plan, |until| {
            companions.ping_if_due(until);
            while keep_on() && tsc::now() + look_every < until {
                std::thread::sleep(LOOK_EVERY);
            }
            keep_on()
        })
    }
}

/// The other CPUs of the same LLC, one series of ping-pongs each.
#[derive(Debug)]
pub struct Companions {
    pairs: Vec<(Pair, PlacementSeries)>,
    next: usize,
    start: Instant,
    next_due: Instant,
}

/// How one companion's CPU moved relative to the probe's.
#[derive(Clone, Debug)]
pub struct Companion {
    /// The probe's CPU and the companion's.
    pub cpus: (CpuId, CpuId),
    /// Near share, switches and dwell times over the whole time.
    pub summary: PlacementSummary,
}

impl Companions {
    /// Helpers on up to four other CPUs of `cpus`, the first of which is the probe's.
    fn new(cpus: &[CpuId]) -> Result<Self, quell_topology::Error> {
        let pairs = cpus[1..]
            .iter()
            .take(MAX_PARTNERS)
            .map(|&partner| Ok((Pair::new(cpus[0], partner)?, PlacementSeries::new())))
            .collect::<Result<_, quell_topology::Error>>()?;
        Ok(Self { pairs, next: 0, start: Instant::now(), next_due: Instant::now() })
    }

    /// Whether there is nobody to ping.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Pings the next companion, unless the last ping was a moment ago or `until` is too close.
    fn ping_if_due(&mut self, until: Ticks) {
        if until > tsc::now() && Instant::now() >= self.next_due {
            let before = Instant::now();
            self.ping();
            self.next_due = before + (before.elapsed() * PING_REST).max(PING_EVERY);
        }
    }

    /// Pings all companions in turn, as often as is sensible, until `span` has passed or `keep_on` says no.
    pub fn dense(&mut self, span: Duration, keep_on: impl Fn() -> bool) {
        let start = Instant::now();
        while !self.is_empty() && start.elapsed() < span && keep_on() {
            self.ping();
            std::thread::sleep(DENSE_EVERY);
        }
    }

    fn ping(&mut self) {
        let count = self.pairs.len();
        let Some((pair, series)) = self.pairs.get_mut(self.next) else { return };
        match pair.measure() {
            Ok(Some(trip)) => series.push(self.start.elapsed(), trip.min_ns),
            Ok(None) | Err(_) => series.push_unanswered(self.start.elapsed()),
        }
        let age = self.start.elapsed();
        if series.rounds().first().is_some_and(|(first, _)| *first + 2 * MEMORY < age) {
            *series = series.since(age - MEMORY);
        }
        self.next = (self.next + 1) % count;
    }

    /// What the series say, each judged by the limit fitted to all of them. `memory_ns` is the latency of
    /// memory, the yardstick where only one kind of round trip was seen.
    #[must_use]
    pub fn summaries(&self, memory_ns: f64) -> Vec<Companion> {
        let all: Vec<f64> = self.pairs.iter().flat_map(|(_, series)| series.round_trips_ns()).collect();
        let limit = NearFar::fit(&all, Some(memory_ns));
        self.pairs
            .iter()
            .map(|(pair, series)| Companion { cpus: pair.cpus(), summary: series.summary(&limit) })
            .collect()
    }
}
