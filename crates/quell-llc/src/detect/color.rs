//! The same question by color: a polluter that streams through pages of one color, seen as that color's loss minus
//! the mean loss of the others. What bursts and other tenants do to all colors cancels.

use quell_core::stats::{mean, quantile};
use quell_core::{Bytes, CpuId, Memory};
use quell_topology::{NearFar, Placement, Topology};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use super::polluter::{Polluter, Stream};
use super::score::Score;
use super::{DUTIES, DetectError, SETTLE_MS, pause, ping, placement};
use crate::color::canary::ColorCanary;
use crate::color::classify::Classification;
use crate::scan::report::Machine;
use crate::session::Session;
use quell_core::memory::PAGE_BYTES;

/// Name and version of the schema.
pub const SCHEMA: &str = "quell.detect-color/1";

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct ColorExperiment {
    /// The polluter's CPU; the caller is pinned to another one.
    pub polluter_cpu: CpuId,
    /// Rounds, all duties together.
    pub rounds: usize,
    /// Most that the polluter reads while it streams, in GB/s; by default what replaces its color's share of the LLC
    /// twice in one window. Faster ones evict everything at any duty, which shows that they are seen, not how well.
    pub speed_gb_per_s: Option<f64>,
    /// Draws the order of duties and the times of windows.
    pub seed: u64,
}

/// One round.
#[derive(Clone, Debug, Serialize)]
pub struct ColorSample {
    /// Share of the time that the polluter streamed, in percent.
    pub duty_pct: u32,
    /// Loss of the polluted color minus the mean of the others, in percentage points; `None` if no window was valid.
    pub excess_pct: Option<f64>,
    /// The same of a color that nobody polluted: the control.
    pub control_pct: Option<f64>,
    /// Where the polluter's vCPU was during the whole round.
    pub placement: Placement,
    /// Valid windows.
    pub windows: usize,
    /// Median of the round's ping-pong minima, in ns.
    pub rtt_ns: Option<f64>,
    /// What the polluter read during the round, in GB/s.
    pub polluter_gb_per_s: f64,
    /// CPU time of priming and probing, in ms.
    pub cpu_ms: f64,
    /// When the round began, in ms since the first.
    pub at_ms: f64,
}

/// The experiment's outcome with all samples: schema `quell.detect-color/1`.
#[derive(Clone, Debug, Serialize)]
pub struct ColorDetection {
    /// Name and version of the schema.
    pub schema: &'static str,
    /// What it ran on.
    pub machine: Machine,
    /// The measuring and the polluting CPU.
    pub cpus: [CpuId; 2],
    /// Colors found, and pages that have one, of so many.
    pub colors: usize,
    /// Pages with a color.
    pub labelled_pages: usize,
    /// Pages of the pool.
    pub pool_pages: u32,
    /// The polluted color.
    pub polluted: u32,
    /// What the polluter streamed through.
    pub working_set_bytes: u64,
    /// Most that it read while it streamed, in GB/s.
    pub speed_gb_per_s: f64,
    /// Length of the windows, in ms.
    pub window_ms: f64,
    /// Round trips below this count as near, in ns.
    pub near_max_ns: Option<f64>,
    /// CPU time of the probe per round, in ms.
    pub probe_cpu_ms: f64,
    /// All rounds.
    pub all: Score,
    /// Rounds in which both vCPUs were in one LLC all the time.
    pub near: Score,
    /// Rounds in which they were in different LLCs all the time.
    pub far: Score,
    /// The near rounds by the color that nobody polluted: it must show nothing.
    pub near_control: Score,
    /// Every round.
    pub samples: Vec<ColorSample>,
}

/// Windows of one round.
const WINDOWS: usize = 3;
/// Their length, in ms: the shortest that are allowed, for a color's share of the LLC is small and emptied soon.
const WINDOW_MS: f64 = 0.5;
/// At full duty the polluter reads so many times its color's share of the LLC in one window.
const SHARES_PER_WINDOW: f64 = 2.0;
/// Mean pause between windows, in ms; random, so that windows meet any part of the polluter's cycle.
const PAUSE_MS: f64 = 2.0;
/// A polluter of fewer pages than this share of a color's part of the LLC would hit its own lines.
const LEAST_OF_SHARE: f64 = 1.25;

/// Runs the experiment from the thread of `session`. `progress` is called after each round with the number done, and
/// ends the experiment early by returning false.
///
/// # Errors
/// [`DetectError`].
pub fn detect_color(
    session: &mut Session,
    sorted: &Classification,
    topology: &Topology,
    experiment: ColorExperiment,
    mut progress: impl FnMut(usize) -> bool,
) -> Result<ColorDetection, DetectError> {
    let calibration = session.calibration.clone();
    let probe_cpu = session.target.probe_cpu();
    let advertised = session.target.advertised;
    let (memory, layout) = session.parts();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(experiment.seed);
    let mut canary =
        ColorCanary::new(sorted, layout, &calibration, experiment.seed).map_err(DetectError::NoColors)?;
    let polluted = rng.random_range(0..canary.colors());
    let control = (polluted + rng.random_range(1..canary.colors())) % canary.colors();
    let stream: Vec<u32> = sorted.pages_of(polluted).filter(|&page| !canary.uses(page)).collect();
    enough(stream.len(), sorted.colors(), advertised)?;
    let working_set = stream.len() as u64 * u64::from(PAGE_BYTES);
    let ticks_per_ms = memory.ticks_per_ms();
    let share = advertised.0 as f64 / sorted.colors() as f64;
    let speed_gb_per_s = experiment.speed_gb_per_s.unwrap_or(SHARES_PER_WINDOW * share / WINDOW_MS / 1e6);
    let stream = Stream::Pages { memory: memory.share(), pages: stream, bytes_per_ms: speed_gb_per_s * 1e6 };
    let polluter = Polluter::start(experiment.polluter_cpu, stream, ticks_per_ms)?;

    let mut duties: Vec<u32> = DUTIES.iter().copied().cycle().take(experiment.rounds).collect();
    duties.shuffle(&mut rng);
    let mut samples = Vec::new();
    let mut pings_of_rounds = Vec::new();
    let start = memory.now();
    for (index, duty_pct) in duties.into_iter().enumerate() {
        polluter.set_duty(duty_pct);
        pause(memory, SETTLE_MS);
        let (at, bytes) = (memory.now(), polluter.bytes());
        let mut pings = vec![ping(memory, &polluter)];
        let mut windows = Vec::new();
        let mut cpu_ms = 0.0;
        for _ in 0..WINDOWS {
            pause(memory, PAUSE_MS * (0.5 + rng.random::<f64>()));
            let (window, cost) = canary.window(memory, WINDOW_MS);
            windows.extend(window);
            cpu_ms += cost;
            pings.push(ping(memory, &polluter));
        }
        let wall_ms = memory.now().since(at).0 as f64 / ticks_per_ms;
        let others =
            |color: u32| (0..canary.colors()).filter(move |&other| other != color && other != polluted);
        let excess = |color: u32| canary.excess_pct(&windows, color, &others(color).collect::<Vec<_>>());
        samples.push(ColorSample {
            duty_pct,
            excess_pct: excess(polluted),
            control_pct: excess(control),
            placement: Placement::Unknown,
            windows: windows.len(),
            rtt_ns: quantile(&pings.iter().flatten().copied().collect::<Vec<_>>(), 0.5),
            polluter_gb_per_s: (polluter.bytes() - bytes) as f64 / wall_ms / 1e6,
            cpu_ms,
            at_ms: at.since(start).0 as f64 / ticks_per_ms,
        });
        pings_of_rounds.push(pings);
        if !progress(index + 1) {
            break;
        }
    }
    let all_pings: Vec<f64> = pings_of_rounds.iter().flatten().flatten().copied().collect();
    let limit = NearFar::fit(&all_pings, Some(calibration.memory_ns()));
    for (sample, pings) in samples.iter_mut().zip(&pings_of_rounds) {
        sample.placement = placement(pings, &limit);
    }
    let score = |belongs: &dyn Fn(&ColorSample) -> bool, value: &dyn Fn(&ColorSample) -> Option<f64>| {
        let group = samples.iter().filter(|sample| belongs(sample));
        Score::of_values(&group.filter_map(|s| Some((s.duty_pct, value(s)?))).collect::<Vec<_>>())
    };
    let placed = |wanted: Placement| move |sample: &ColorSample| sample.placement == wanted;
    Ok(ColorDetection {
        schema: SCHEMA,
        machine: Machine::new(topology),
        cpus: [probe_cpu, experiment.polluter_cpu],
        colors: sorted.colors(),
        labelled_pages: sorted.labels.len() - sorted.unknown(),
        pool_pages: sorted.pool.count,
        polluted,
        working_set_bytes: working_set,
        speed_gb_per_s,
        window_ms: WINDOW_MS,
        near_max_ns: limit.near_max_ns,
        probe_cpu_ms: mean(&samples.iter().map(|s| s.cpu_ms).collect::<Vec<_>>()).unwrap_or(0.0),
        all: score(&|_| true, &|s| s.excess_pct),
        near: score(&placed(Placement::Near), &|s| s.excess_pct),
        far: score(&placed(Placement::Far), &|s| s.excess_pct),
        near_control: score(&placed(Placement::Near), &|s| s.control_pct),
        samples,
    })
}

/// Refuses a polluter that would fit into its color's part of the LLC.
fn enough(pages: usize, colors: usize, llc: Bytes) -> Result<(), DetectError> {
    let share = llc.0 as f64 / f64::from(PAGE_BYTES) / colors as f64;
    if (pages as f64) < share * LEAST_OF_SHARE {
        return Err(DetectError::NoColors(format!(
            "a polluter of one color needs {:.0} pages of it to exceed its share of the LLC, and the pool has {pages}; \
             use a larger pool",
            share * LEAST_OF_SHARE
        )));
    }
    Ok(())
}
