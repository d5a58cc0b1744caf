//! Does the monitor see a polluter? A thread on another vCPU streams through memory at different duties, in
//! random order, and each round's hazard is compared with the duty.
//!
//! Hosts move vCPUs between LLCs, and a polluter in another LLC cannot evict anything of ours. So the two
//! vCPUs play ping-pong around every window, and near and far rounds are scored apart.

mod color;
mod polluter;
mod report;
mod score;

use std::f64::consts::LN_2;
use std::io;

use quell_core::stats::survival::DEFAULT_SHAPE;
use quell_core::stats::{mean, quantile};
use quell_core::{Bytes, CpuId, Memory, Ticks};
use quell_topology::{NearFar, Placement};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

pub use self::color::{ColorDetection, ColorExperiment, ColorSample, detect_color};
pub use self::report::DetectionReport;
pub use self::score::{Round, Score};
use crate::attribution::pressure;
use crate::calibrate::Calibration;
use crate::canary::Wait;
use crate::hw::{HwError, HwMemory};
use crate::layout::Layout;
use crate::monitor::{Monitor, Plan, Settings};
use polluter::{Polluter, Stream};

/// Why the experiment could not run.
#[derive(Debug, thiserror::Error)]
pub enum DetectError {
    /// Pinning, timing or ping-pong failed.
    #[error("cannot place the experiment's threads")]
    Topology(#[from] quell_topology::Error),
    /// No memory.
    #[error("cannot prepare the experiment's memory")]
    Memory(#[from] HwError),
    /// No thread.
    #[error("cannot start the polluter's thread")]
    Thread(#[source] io::Error),
    /// The polluter did not come up.
    #[error("the polluter on CPU {0} did not start within 10 s; is that CPU overloaded?")]
    PolluterSilent(CpuId),
    /// The calibration found no usable hit/miss limit.
    #[error("cannot tell hits from misses on this machine: {0}")]
    NotCalibrated(String),
    /// No colors to compare.
    #[error("cannot measure by page color here: {0}")]
    NoColors(String),
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// The polluter's CPU; the caller is pinned to another one.
    pub polluter_cpu: CpuId,
    /// What the polluter streams through.
    pub working_set: Bytes,
    /// Rounds, all duties together.
    pub rounds: usize,
    /// Draws the order of duties and the times of windows.
    pub seed: u64,
}

/// The experiment's outcome.
#[derive(Clone, Debug)]
pub struct Detection {
    /// All samples.
    pub rounds: Vec<Round>,
    /// The fitted limit between near and far.
    pub limit: NearFar,
    /// Half-life that the windows are centered on, in ms.
    pub window_ms: f64,
    /// Weibull shape used for the hazard.
    pub shape: f64,
    /// CPU time of the probe itself per round, in ms (priming and probing).
    pub probe_cpu_ms: f64,
}

/// The polluter's duties in percent.
pub const DUTIES: [u32; 5] = [0, 25, 50, 75, 100];
/// Windows per round. Neighbors' noise has an autocorrelation of about 0.5 at 10 ms, so more windows close
/// together add little.
const WINDOWS: usize = 8;
/// Mean pause between windows, in ms.
const PAUSE_MS: f64 = 8.0;
/// A new duty works this long before the first window, in ms: several times the half-life.
const SETTLE_MS: f64 = 15.0;
/// Exchanges of one ping-pong.
const EXCHANGES: u32 = 100;
/// How long a ping-pong may take, in ms.
const PING_DEADLINE_MS: f64 = 3.0;

/// Runs the experiment from the calling thread, which must be pinned. `progress` is called after each round
/// with the number done, and ends the experiment early by returning false.
///
/// # Errors
/// [`DetectError`].
pub fn detect(
    memory: &mut HwMemory,
    calibration: &Calibration,
    layout: &Layout,
    experiment: Experiment,
    mut progress: impl FnMut(usize) -> bool,
) -> Result<Detection, DetectError> {
    let limits = calibration.discriminator.clone().map_err(DetectError::NotCalibrated)?;
    let ticks_per_ms = memory.ticks_per_ms();
    let polluter =
        Polluter::start(experiment.polluter_cpu, Stream::Sequential(experiment.working_set), ticks_per_ms)?;
    let (window_ms, shape) = warm_up(memory, calibration, layout, &polluter, experiment.seed);
    let mut canary = calibration.canary(layout.clone());
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(experiment.seed);
    let mut duties: Vec<u32> = DUTIES.iter().copied().cycle().take(experiment.rounds).collect();
    duties.shuffle(&mut rng);

    let mut rounds = Vec::new();
    let mut pings_of_rounds = Vec::new();
    let mut cpu_ms = 0.0;
    let start = memory.now();
    for (index, duty_pct) in duties.into_iter().enumerate() {
        polluter.set_duty(duty_pct);
        pause(memory, SETTLE_MS);
        let (at, bytes) = (memory.now(), polluter.bytes());
        let mut logs = Vec::new();
        let mut pings = vec![ping(memory, &polluter)];
        for _ in 0..WINDOWS {
            pause(memory, PAUSE_MS * (0.5 + rng.random::<f64>()));
            let length = window_ms * rng.random_range(0.6..1.5);
            let result = canary.window(memory, Wait::Sleep(length), limits);
            cpu_ms += result.cpu_ms;
            if let (Some(share), false) = (result.share, result.gap || result.preempted) {
                logs.push(pressure(share, result.exposure_ms, shape).ln());
            }
            pings.push(ping(memory, &polluter));
        }
        let wall_ms = memory.now().since(at).0 as f64 / ticks_per_ms;
        rounds.push(Round {
            duty_pct,
            hazard_per_ms: mean(&logs).map(|log| hazard_of_rate(log.exp(), shape)),
            placement: Placement::Unknown,
            windows: logs.len(),
            rtt_ns: quantile(&pings.iter().flatten().copied().collect::<Vec<_>>(), 0.5),
            polluter_gb_per_s: (polluter.bytes() - bytes) as f64 / wall_ms / 1e6,
            at_ms: at.since(start).0 as f64 / ticks_per_ms,
        });
        pings_of_rounds.push(pings);
        if !progress(index + 1) {
            break;
        }
    }
    let all_pings: Vec<f64> = pings_of_rounds.iter().flatten().flatten().copied().collect();
    let limit = NearFar::fit(&all_pings, Some(calibration.memory_ns()));
    for (round, pings) in rounds.iter_mut().zip(&pings_of_rounds) {
        round.placement = placement(pings, &limit);
    }
    let probe_cpu_ms = cpu_ms / rounds.len().max(1) as f64;
    Ok(Detection { rounds, limit, window_ms, shape, probe_cpu_ms })
}

/// Finds windows that suit both an idle and a full polluter, and the host's shape.
fn warm_up(
    memory: &mut HwMemory,
    calibration: &Calibration,
    layout: &Layout,
    polluter: &Polluter,
    seed: u64,
) -> (f64, f64) {
    let Ok(limits) = calibration.discriminator.clone() else {
        return (Settings::default().window_ms, DEFAULT_SHAPE);
    };
    let mut monitor = Monitor::new(Settings::default(), calibration.canary(layout.clone()), limits, seed);
    let mut centers = Vec::new();
    for duty in [0, 100] {
        polluter.set_duty(duty);
        for _ in 0..2 {
            let period = monitor.period(memory, Plan::Adaptive, |_| true);
            centers.push(period.curve.fit.map_or(period.window_ms, |law| law.half_life_ms()).ln());
        }
    }
    (mean(&centers).map_or(Settings::default().window_ms, f64::exp), monitor.expected_shape())
}

fn pause(memory: &mut HwMemory, ms: f64) {
    let until = memory.now() + Ticks((ms * memory.ticks_per_ms()) as u64);
    memory.sleep_until(until);
}

/// One short ping-pong with the polluter; `None` if it did not answer in time.
fn ping(memory: &mut HwMemory, polluter: &Polluter) -> Option<f64> {
    let deadline = memory.now() + Ticks((PING_DEADLINE_MS * memory.ticks_per_ms()) as u64);
    polluter.table().ping(EXCHANGES, deadline).map(|trip| trip.min_ns)
}

/// Where a round took place: near or far only if every ping of it says so.
fn placement(pings: &[Option<f64>], limit: &NearFar) -> Placement {
    let mut classes = pings.iter().map(|ping| ping.map_or(Placement::Unknown, |rtt| limit.classify(rtt)));
    let first = classes.next().unwrap_or(Placement::Unknown);
    if classes.all(|class| class == first) { first } else { Placement::Unknown }
}

/// Hazard at the half-life for a Weibull rate λ: k · ln 2 / t½, with t½ = (ln 2)^(1/k) / λ.
fn hazard_of_rate(rate_per_ms: f64, shape: f64) -> f64 {
    shape * LN_2 * rate_per_ms / LN_2.powf(1.0 / shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_near_only_if_every_ping_was() {
        let trips: Vec<f64> =
            (0..40).map(|i| if i % 2 == 0 { 90.0 } else { 230.0 } + f64::from(i % 5)).collect();
        let limit = NearFar::fit(&trips, Some(120.0));
        assert_eq!(placement(&[Some(91.0), Some(93.0)], &limit), Placement::Near);
        assert_eq!(placement(&[Some(231.0), Some(233.0)], &limit), Placement::Far);
        assert_eq!(placement(&[Some(91.0), Some(233.0)], &limit), Placement::Unknown);
        assert_eq!(placement(&[Some(91.0), None], &limit), Placement::Unknown);
        assert_eq!(placement(&[], &limit), Placement::Unknown);
    }
}
