//! Calibration as a result of its own: schema `quell.calibrate/1`, see `docs/json.md`.

use quell_core::stats::quantile;
use quell_core::{Estimate, LlcId};
use quell_topology::Topology;
use serde::Serialize;

use super::report::Machine;
use crate::calibrate::Calibration;
use crate::monitor::{Period, Settings};
use crate::planner::WINDOW_MS;
use crate::session::Target;
use crate::summary::Summary;
use crate::tier::Tier;

/// Name and version of the schema.
pub const SCHEMA: &str = "quell.calibrate/1";

/// Which window suits the load that was seen.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// Half-life under that load, in ms.
    pub half_life_ms: Estimate,
    /// The window to start with, in ms; `None` if the load could not be measured.
    pub window_ms: Option<f64>,
    /// The window that was configured, in ms.
    pub configured_ms: f64,
}

impl Advice {
    /// Advice from some periods of monitoring.
    #[must_use]
    pub fn of(periods: &[Period], settings: Settings) -> Self {
        let summary = Summary::of(periods, settings.tiers);
        let window_ms = match (summary.half_life_ms.value(), &summary.tier) {
            (Some(half_life), _) => Some(half_life.clamp(*WINDOW_MS.start(), *WINDOW_MS.end())),
            (None, Ok(Tier::Quiet)) => Some(*WINDOW_MS.end()),
            (None, Ok(Tier::Saturated)) => Some(*WINDOW_MS.start()),
            (None, _) => None,
        };
        Self { half_life_ms: summary.half_life_ms, window_ms, configured_ms: settings.window_ms }
    }

    /// The advice in words.
    #[must_use]
    pub fn sentence(&self) -> String {
        match self.window_ms {
            None => "No window can be recommended, because the load could not be measured.".into(),
            Some(best) => {
                let lost = self.configured_ms / best;
                let verdict = if (0.5..=2.0).contains(&lost) {
                    "the configured one suits"
                } else if lost > 2.0 {
                    "the configured one is too long: it would find nearly everything evicted"
                } else {
                    "the configured one is too short: it would find hardly anything evicted"
                };
                format!(
                    "Recommended window: {best:.1} ms (configured: {:.1} ms; {verdict}). The monitor adapts by itself; \
                     start with `--window {:.0}ms` to spare it that.",
                    self.configured_ms,
                    best.round().max(1.0)
                )
            }
        }
    }
}

/// A calibration with everything it is based on.
#[derive(Clone, Debug, Serialize)]
pub struct CalibrationReport {
    schema: &'static str,
    machine: Machine,
    llc: LlcId,
    ticks_per_ms: f64,
    step_ticks: f64,
    monotonic: bool,
    miss_above_ticks: Option<u32>,
    interrupted_above_ticks: Option<u32>,
    reason: Option<String>,
    single_loads_tell_l2_from_llc: bool,
    spill_lines: u32,
    spilled_share: f64,
    discarded_interrupted: u32,
    discarded_migrated: u32,
    classes: Vec<ClassReport>,
    advice: Advice,
}

#[derive(Clone, Debug, Serialize)]
struct ClassReport {
    name: &'static str,
    n: usize,
    single_ticks_p10: Option<f64>,
    single_ticks_p50: Option<f64>,
    single_ticks_p90: Option<f64>,
    chain_ticks: f64,
    chain_ns: f64,
}

impl CalibrationReport {
    /// Puts a calibration into figures.
    #[must_use]
    pub fn new(topology: &Topology, target: &Target, calibration: &Calibration, advice: Advice) -> Self {
        let limits = calibration.discriminator.as_ref();
        let timer = calibration.timer;
        let class = |class: &crate::calibrate::LatencyClass| ClassReport {
            name: class.name,
            n: class.single_ticks.len(),
            single_ticks_p10: quantile(&class.single_ticks, 0.1),
            single_ticks_p50: quantile(&class.single_ticks, 0.5),
            single_ticks_p90: quantile(&class.single_ticks, 0.9),
            chain_ticks: class.chain_ticks,
            chain_ns: class.chain_ticks / timer.ticks_per_ms * 1e6,
        };
        Self {
            schema: SCHEMA,
            machine: Machine::new(topology),
            llc: target.llc,
            ticks_per_ms: timer.ticks_per_ms,
            step_ticks: timer.step_ticks,
            monotonic: timer.monotonic,
            miss_above_ticks: limits.ok().map(|limits| limits.miss_above),
            interrupted_above_ticks: limits.ok().map(|limits| limits.interrupted_above),
            reason: limits.err().cloned(),
            single_loads_tell_l2_from_llc: calibration.single_loads_tell_l2_from_llc,
            spill_lines: calibration.spill.lines(),
            spilled_share: calibration.spilled_share,
            discarded_interrupted: calibration.discarded[0],
            discarded_migrated: calibration.discarded[1],
            classes: calibration.classes.iter().map(class).collect(),
            advice,
        }
    }
}
