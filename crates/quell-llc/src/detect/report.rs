//! The experiment's outcome in the form that leaves the program: schema `quell.detect/1`, see `docs/json.md`.

use quell_core::{Bytes, CpuId};
use quell_topology::{Placement, Topology};
use serde::Serialize;

use super::{Detection, Round, Score};
use crate::scan::report::Machine;

/// Name and version of the schema.
pub const SCHEMA: &str = "quell.detect/1";

/// The experiment's outcome with all samples.
#[derive(Clone, Debug, Serialize)]
pub struct DetectionReport {
    /// Name and version of the schema.
    pub schema: &'static str,
    /// What it ran on.
    pub machine: Machine,
    /// The measuring and the polluting CPU.
    pub cpus: [CpuId; 2],
    /// What the polluter streamed through.
    pub working_set_bytes: u64,
    /// Half-life that the windows are centered on, in ms.
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
    /// Every round.
    pub samples: Vec<Round>,
}

impl DetectionReport {
    /// Scores a detection.
    #[must_use]
    pub fn new(topology: &Topology, cpus: [CpuId; 2], working_set: Bytes, detection: &Detection) -> Self {
        let rounds = &detection.rounds;
        Self {
            schema: SCHEMA,
            machine: Machine::new(topology),
            cpus,
            working_set_bytes: working_set.0,
            window_ms: detection.window_ms,
            near_max_ns: detection.limit.near_max_ns,
            probe_cpu_ms: detection.probe_cpu_ms,
            all: Score::of(rounds, |_| true),
            near: Score::of(rounds, |round| round.placement == Placement::Near),
            far: Score::of(rounds, |round| round.placement == Placement::Far),
            samples: rounds.clone(),
        }
    }
}
