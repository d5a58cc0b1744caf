//! Is the monitor right? Scans simulated machines whose truth is known, over a grid of neighbors.
//!
//! A *round* is one whole scan: calibration, then ten periods of a second. Its half-life counts as covered
//! when the 95 % interval holds the median survival of randomly started lines in the same run without the
//! probe. Everything here is simulated and says nothing of the machine it runs on.

mod grid;
mod report;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use quell_cachesim::truth::{Question, survival};
use quell_cachesim::{Config, ConfigError, Evictions, Sim, SimMemory};
use quell_core::{Bytes, Memory, Ticks};
use serde::Serialize;

pub use self::grid::{Cell, Disturbance, Preset, grid};
pub use self::report::TruthReport;
use crate::attribution::Source;
use crate::calibrate::calibrate;
use crate::layout::Layout;
use crate::monitor::{Monitor, Period, Plan, Settings};
use crate::summary::Summary;

/// Periods of one round.
pub const PERIODS: u32 = 10;
/// Lines that the truth is asked of: about 1.5 % precision.
const TRUTH_LINES: usize = 8_000;

/// What one round gave.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// Seed of the simulation and of the monitor.
    pub seed: u64,
    /// True half-life in ms; `None` if most lines were never evicted.
    pub true_half_life_ms: Option<f64>,
    /// The interval's lower end, the estimate and the upper end in ms; `None` if unknown.
    pub estimate_ms: Option<[f64; 3]>,
    /// Why it is unknown.
    pub reason: Option<String>,
    /// The interval holds the truth.
    pub covered: Option<bool>,
    /// Periods labeled as the true source says, and periods labeled with another source than `unknown`.
    pub sources: [u32; 2],
    /// Windows discarded for placement jumps, and true moves of the vCPU.
    pub jumps: [usize; 2],
    /// CPU time of the probe, in ms per second.
    pub cpu_ms_per_s: f64,
}

/// All rounds of one cell of the grid.
#[derive(Clone, Debug, Serialize)]
pub struct CellResult {
    /// The cell.
    #[serde(flatten)]
    pub cell: Cell,
    /// Its rounds.
    pub rounds: Vec<Round>,
}

/// Runs `rounds_per_cell` seeded rounds of each cell on all CPUs. `progress` gets the number of rounds done;
/// `stop` ends early with the rounds so far.
///
/// # Errors
/// If a cell describes no possible machine.
pub fn run(
    cells: &[Cell],
    rounds_per_cell: usize,
    stop: &AtomicBool,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Vec<CellResult>, ConfigError> {
    let jobs = cells.len() * rounds_per_cell;
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, Result<Round, ConfigError>)>> = Mutex::new(Vec::with_capacity(jobs));
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    if job >= jobs {
                        break;
                    }
                    // Jobs go round the cells, so that an early end leaves every cell with some rounds.
                    let (cell, seed) = (job % cells.len(), (job / cells.len()) as u64);
                    let result = round(&cells[cell], seed);
                    if let Ok(mut results) = results.lock() {
                        results.push((cell, result));
                    }
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1);
                }
            });
        }
    });
    let mut by_cell: Vec<CellResult> =
        cells.iter().map(|cell| CellResult { cell: cell.clone(), rounds: Vec::new() }).collect();
    for (cell, result) in results.into_inner().unwrap_or_default() {
        by_cell[cell].rounds.push(result?);
    }
    for cell in &mut by_cell {
        cell.rounds.sort_by_key(|round| round.seed);
    }
    Ok(by_cell)
}

/// One scan of one simulated machine, compared with its truth.
///
/// # Errors
/// If the cell describes no possible machine.
pub fn round(cell: &Cell, seed: u64) -> Result<Round, ConfigError> {
    let config = cell.config();
    let l2 = l2_bytes(&config);
    let mut sim = Sim::new(config.clone(), seed)?;
    let mut memory = sim.memory(Layout::pages(l2))?;
    let layout = Layout::new(l2, seed);
    let calibration = calibrate(&mut memory, l2, &layout);
    let limits = match &calibration.discriminator {
        Ok(limits) => *limits,
        Err(reason) => return Ok(Round::unknown(seed, reason.clone())),
    };
    let settings = Settings::default();
    let mut monitor = Monitor::new(settings, calibration.canary(layout), limits, seed);
    memory.sleep_until(Ticks((grid::START_MS * memory.ticks_per_ms()) as u64));
    let start_ms = memory.now_ms();
    let mut evicted = Vec::new();
    let periods: Vec<Period> = (0..PERIODS)
        .map(|_| {
            let before = memory.evictions();
            let period = monitor.period(&mut memory, Plan::Adaptive, |_| true);
            let after = memory.evictions();
            evicted.push(Evictions { outside: after.outside - before.outside, own: after.own - before.own });
            period
        })
        .collect();
    let summary = Summary::of(&periods, settings.tiers);
    let span = start_ms..memory.now_ms();
    let truth = truth(&config, seed, &memory, span.clone())?;
    let estimate = summary.half_life_ms;
    let known = estimate.value().zip(estimate.ci95());
    Ok(Round {
        seed,
        true_half_life_ms: truth.is_finite().then_some(truth),
        estimate_ms: known.map(|(value, [lo, hi])| [lo, value, hi]),
        reason: estimate.reason().map(str::to_owned),
        covered: known.map(|(_, [lo, hi])| (lo..=hi).contains(&truth)),
        sources: sources(&periods, &evicted),
        jumps: [summary.discarded.placement, memory.history().moves_in(span)],
        cpu_ms_per_s: summary.cpu_ms_per_s,
    })
}

impl Round {
    fn unknown(seed: u64, reason: String) -> Self {
        Self {
            seed,
            true_half_life_ms: None,
            estimate_ms: None,
            reason: Some(reason),
            covered: None,
            sources: [0, 0],
            jumps: [0, 0],
            cpu_ms_per_s: 0.0,
        }
    }
}

/// Size of the simulated L2.
#[must_use]
pub fn l2_bytes(config: &Config) -> Bytes {
    Bytes(u64::from(config.l2.sets) * u64::from(config.l2.ways) * 64)
}

/// Median survival over the LLCs that the vCPU was in, each weighted by the time spent there.
fn truth(
    config: &Config,
    seed: u64,
    memory: &SimMemory<'_>,
    span: std::ops::Range<f64>,
) -> Result<f64, ConfigError> {
    const LOOKS: usize = 1000;
    let mut looks = vec![0_usize; config.neighbors.len()];
    for i in 0..LOOKS {
        let at = span.start + (span.end - span.start) * (i as f64 + 0.5) / LOOKS as f64;
        looks[memory.history().llc_at(at)] += 1;
    }
    let mut all = Vec::new();
    for (llc, looks) in looks.into_iter().enumerate() {
        let lines = TRUTH_LINES * looks / LOOKS;
        if lines > 0 {
            let question = Question { llc, start_ms: span.clone(), color: None, lines };
            all.extend(survival(config, seed, &question)?.survival_ms);
        }
    }
    all.sort_by(f64::total_cmp);
    Ok(all[all.len() / 2])
}

/// Periods whose label matches the truth, and periods with a label at all. `evicted` holds, for each period,
/// what others and our own VM evicted of our lines in it.
fn sources(periods: &[Period], evicted: &[Evictions]) -> [u32; 2] {
    let mut counts = [0, 0];
    for (period, evicted) in periods.iter().zip(evicted) {
        let own = evicted.own as f64 / (evicted.own + evicted.outside).max(1) as f64;
        let right = match period.source.source {
            Source::Unknown => continue,
            Source::Outside => own < 0.25,
            Source::Own => own > 0.75,
            Source::Mixed => (0.25..=0.75).contains(&own),
        };
        counts[1] += 1;
        counts[0] += u32::from(right);
    }
    counts
}
