//! Eviction sets of the real machine: who builds them, and what came of it. Schema `quell.evsets/1`, see
//! `docs/json.md`.

use quell_core::{Bytes, CpuId, LlcId};
use quell_topology::{Topology, tsc_ticks_per_ms};
use serde::Serialize;

use super::build::Failures;
use super::construct::{ConstructError, Construction, Shape};
use crate::color::L2;
use crate::hw::{CrewError, HwCrew, Station};
use crate::scan::report::Machine;
use crate::session::Target;

/// Name and version of the schema.
pub const SCHEMA: &str = "quell.evsets/1";

/// Why an LLC cannot be tried at all.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Sizes are not known.
    #[error("nothing tells {0}, and without it no eviction set can be checked")]
    Unknown(String),
    /// The clock.
    #[error("cannot find out how fast the time-stamp counter runs")]
    Clock(#[from] quell_topology::Error),
    /// CPUs or memory.
    #[error("cannot set up the measuring CPUs")]
    Crew(#[from] CrewError),
}

/// The caches of `target` as the machine describes them.
///
/// # Errors
/// [`SetupError::Unknown`].
pub fn shape_of(topology: &Topology, target: &Target) -> Result<Shape, SetupError> {
    let l2: L2 = target.l2_shape().map_err(|_| SetupError::Unknown("how many ways the L2 has".into()))?;
    let ways = topology.llcs.iter().find(|llc| llc.id == target.llc).and_then(|llc| llc.ways);
    let llc_ways = ways
        .filter(|&ways| ways > 0)
        .ok_or_else(|| SetupError::Unknown("how many ways the LLC has".into()))?;
    if target.advertised == Bytes(0) {
        return Err(SetupError::Unknown("how large the LLC is".into()));
    }
    Ok(Shape { l2, llc: target.advertised, llc_ways })
}

/// Who works where: one CPU of each core. Where the LLC may hold only what several cores share, which is every
/// LLC that is not known to be inclusive except AMD's, they work in pairs as far as they go; a core left over then
/// has nothing to do, unless it is the only one.
#[must_use]
pub fn stations(topology: &Topology, target: &Target) -> Vec<Station> {
    let mut cores: Vec<CpuId> = Vec::new();
    for &cpu in &target.cpus {
        if !cores.iter().any(|&other| topology.are_siblings(cpu, other)) {
            cores.push(cpu);
        }
    }
    let inclusive = topology.llcs.iter().any(|llc| llc.id == target.llc && llc.inclusive == Some(true));
    let amd = topology.model.vendor.as_deref() == Some("AuthenticAMD");
    if inclusive || amd || cores.len() < 2 {
        return cores.into_iter().map(|main| Station { main, helper: None }).collect();
    }
    cores.chunks_exact(2).map(|pair| Station { main: pair[0], helper: Some(pair[1]) }).collect()
}

/// A crew for `target`, with an arena large enough for `shape`.
///
/// # Errors
/// [`SetupError`].
pub fn crew_for(topology: &Topology, target: &Target, shape: Shape) -> Result<HwCrew, SetupError> {
    Ok(HwCrew::new(shape.pages(), tsc_ticks_per_ms()?, stations(topology, target))?)
}

/// A number of sets of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SizeCount {
    /// Lines in a set.
    pub lines: usize,
    /// Sets of that size.
    pub sets: u32,
}

/// A reason and how often it occurred.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailureCount {
    /// The reason.
    pub reason: String,
    /// Failed tries.
    pub tries: u32,
}

impl FailureCount {
    /// The most frequent first.
    #[must_use]
    pub fn list(failures: &Failures) -> Vec<Self> {
        let mut list: Vec<Self> =
            failures.iter().map(|(failure, &tries)| Self { reason: failure.to_string(), tries }).collect();
        list.sort_by_key(|failure| std::cmp::Reverse(failure.tries));
        list
    }
}

/// Durations, in ms.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Durations {
    /// Calibration and learning the colors.
    pub coloring: f64,
    /// Sorting the candidates by color.
    pub filtering: f64,
    /// Building and verifying the sets.
    pub building: f64,
}

/// The answer of `quell evsets --json`.
#[derive(Clone, Debug, Serialize)]
pub struct EvsetsReport {
    /// Name and version of the schema.
    pub schema: &'static str,
    /// What it ran on.
    pub machine: Machine,
    /// The LLC.
    pub llc: LlcId,
    /// Measuring CPUs, each with its helper if it has one.
    pub stations: Vec<Vec<CpuId>>,
    /// Ways that the LLC is said to have.
    pub advertised_ways: u32,
    /// Ways found: lines of a set; `null` if there are no sets.
    pub ways: Option<usize>,
    /// Whether fewer ways are usable than advertised; `null` if there are no sets.
    pub way_limited: Option<bool>,
    /// Page colors; `null` if there are none.
    pub colors: Option<usize>,
    /// Candidate pages that have a color.
    pub candidates: usize,
    /// Verified sets.
    pub sets: usize,
    /// Sets wanted.
    pub wanted: usize,
    /// The former over the latter, in percent.
    pub coverage_pct: f64,
    /// LLC sets over which the lines of one color at one page offset are spread, as far as can be inferred; `null`
    /// without sets.
    pub llc_sets_per_color: Option<f64>,
    /// Sizes of the sets found first, before their size was known.
    pub sizes: Vec<SizeCount>,
    /// Why tries failed, those made good later included.
    pub failures: Vec<FailureCount>,
    /// Lines loaded and timed to build the sets.
    pub accesses: u64,
    /// Trials thrown away: interrupted, or the CPU changed.
    pub void_trials: u64,
    /// Durations.
    pub duration_ms: Durations,
    /// Why the sets cannot be used; `null` if they can.
    pub reason: Option<String>,
}

impl EvsetsReport {
    /// A report of what came of a construction.
    #[must_use]
    pub fn new(
        topology: &Topology,
        target: &Target,
        crew: &HwCrew,
        shape: Shape,
        outcome: &Result<Construction, ConstructError>,
    ) -> Self {
        let stations = crew.stations().iter();
        let report = Self {
            schema: SCHEMA,
            machine: Machine::new(topology),
            llc: target.llc,
            stations: stations.map(|s| [Some(s.main), s.helper].into_iter().flatten().collect()).collect(),
            advertised_ways: shape.llc_ways,
            ways: None,
            way_limited: None,
            colors: None,
            candidates: 0,
            sets: 0,
            wanted: 0,
            coverage_pct: 0.0,
            llc_sets_per_color: None,
            sizes: Vec::new(),
            failures: Vec::new(),
            accesses: 0,
            void_trials: 0,
            duration_ms: Durations::default(),
            reason: None,
        };
        match outcome {
            Ok(found) => report.with(found),
            Err(error) => Self { reason: Some(crate::error_chain(error)), ..report },
        }
    }

    fn with(self, found: &Construction) -> Self {
        let built = &found.built;
        Self {
            ways: built.ways,
            way_limited: found.way_limited(),
            colors: Some(found.pages.len()),
            candidates: found.pages.iter().map(Vec::len).sum(),
            sets: built.sets.len(),
            wanted: built.wanted,
            coverage_pct: built.coverage_pct(),
            llc_sets_per_color: built.sets_per_color,
            sizes: built.sizes.iter().map(|(&lines, &sets)| SizeCount { lines, sets }).collect(),
            failures: FailureCount::list(&built.failures),
            accesses: built.accesses,
            void_trials: built.void,
            duration_ms: Durations {
                coloring: found.before_ms[0],
                filtering: found.before_ms[1],
                building: built.ms,
            },
            reason: found.verdict().err(),
            ..self
        }
    }
}
