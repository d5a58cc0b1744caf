//! The scan's result in the form that leaves the program: schema `quell.scan/1`, documented in `docs/json.md`.

use std::time::Duration;

use quell_core::{Bytes, CpuId, Estimate, LlcId};
use quell_topology::{PlacementSummary, Topology};
use serde::Serialize;

use super::llc::{LlcScan, Measured};
use super::verdict;
use crate::attribution::Source;
use crate::capacity::Usable;
use crate::layout::Layout;
use crate::monitor::Discarded;
use crate::tier::Tier;

/// Name and version of the schema.
pub const SCHEMA: &str = "quell.scan/1";
/// The only engine so far.
const ENGINE: &str = "canary";

/// Everything a scan found out.
#[derive(Clone, Debug, Serialize)]
pub struct ScanReport {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Version of the program.
    pub quell_version: &'static str,
    /// Wall-clock length of the scan in seconds.
    pub duration_s: f64,
    /// What it ran on.
    pub machine: Machine,
    /// One entry per LLC.
    pub llcs: Vec<LlcReport>,
    /// Who shares a cache, for the pair of CPUs that does so least.
    pub placement: PlacementReport,
    /// What the measurement cost, all LLCs together; percentages are those of the worst LLC.
    pub cost: Cost,
    /// Windows thrown away, all LLCs together.
    pub discarded_windows: Discarded,
    /// The result in plain words, one sentence each.
    pub verdict: Vec<String>,
    /// What limits the result.
    pub notes: Vec<String>,
}

/// The machine in a few words.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Marketing name of the CPU.
    pub cpu: Option<String>,
    /// Vendor, family and model number.
    pub cpu_id: String,
    /// Hypervisor, if this is a VM.
    pub hypervisor: Option<String>,
    /// CPUs that this process may use.
    pub cpus: Vec<CpuId>,
}

/// One LLC.
#[derive(Clone, Debug, Serialize)]
pub struct LlcReport {
    /// Number of the LLC.
    pub id: LlcId,
    /// CPUs that share it, according to the guest's kernel.
    pub cpus: Vec<CpuId>,
    /// Size according to CPUID or sysfs; `None` if nothing tells.
    pub advertised_bytes: Option<u64>,
    /// How much can be held.
    pub usable_bytes: Usable,
    /// What measured.
    pub engine: &'static str,
    /// Hazard at the half-life, per ms.
    pub hazard_per_ms: Estimate,
    /// Median survival of a line, in ms.
    pub half_life_ms: Estimate,
    /// Percent evicted per ms over 7 ms.
    pub rate_pct_per_ms: Estimate,
    /// Weibull shape of the survival law.
    pub shape: Estimate,
    /// Mean squared residual of the fit, in shares squared.
    pub misfit: Option<f64>,
    /// Center of the windows at the end, in ms.
    pub window_ms: Option<f64>,
    /// Grade, if it can be told.
    pub tier: Option<Tier>,
    /// Why there is no tier.
    pub tier_reason: Option<String>,
    /// Who evicts.
    pub source: Source,
    /// On what grounds.
    pub source_grounds: String,
    /// Windows measured.
    pub windows: usize,
    /// Windows thrown away.
    pub discarded_windows: Discarded,
    /// Control: percent of lines lost without any wait; taken out of the estimates.
    pub lost_at_once_pct: Option<f64>,
    /// Control: percent of flushed lines that read as hits.
    pub false_hits_pct: Option<f64>,
    /// What this LLC's measurement cost.
    pub cost: Cost,
    /// Single windows of all lengths: the survival curve as points.
    pub survival: Vec<Point>,
}

/// A window of the sweep.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    /// Exposure in ms.
    pub exposure_ms: f64,
    /// Percent of lines evicted.
    pub evicted_pct: f64,
}

/// Two CPUs over time.
#[derive(Clone, Debug, Serialize)]
pub struct PlacementReport {
    /// Share of the time in one LLC, in percent.
    pub near_pct: Estimate,
    /// Moves per second between sharing and not sharing.
    pub switches_per_s: Estimate,
    /// All pairs that were watched.
    pub pairs: Vec<PairReport>,
}

/// One pair of CPUs.
#[derive(Clone, Debug, Serialize)]
pub struct PairReport {
    /// The two.
    pub cpus: [CpuId; 2],
    /// Everything known about them.
    #[serde(flatten)]
    pub summary: PlacementSummary,
}

/// The measurement's own cost; nothing is known of an LLC that was not measured.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Cost {
    /// CPU time of the probing threads while monitoring, in ms per second.
    pub cpu_ms_per_s: Option<f64>,
    /// Memory that one window brings into the cache, spill included.
    pub footprint_bytes: Option<u64>,
    /// The same in percent of the advertised LLC.
    pub footprint_pct: Option<f64>,
    /// The canary lines alone, in percent of the advertised LLC.
    pub canary_pct: Option<f64>,
}

impl ScanReport {
    /// Puts a scan into words and figures.
    #[must_use]
    pub fn new(topology: &Topology, scans: &[LlcScan], duration: Duration, mut notes: Vec<String>) -> Self {
        let llcs: Vec<LlcReport> = scans.iter().map(LlcReport::new).collect();
        let placement = PlacementReport::new(scans);
        notes.extend(topology.notes.iter().cloned());
        notes.extend(scans.iter().flat_map(|scan| scan.notes.iter().cloned()));
        let mut discarded = Discarded::default();
        let mut cost = Cost::default();
        for llc in &llcs {
            discarded.add(llc.discarded_windows);
            cost.add(llc.cost);
        }
        let verdict = verdict::verdict(&llcs, &placement, cost);
        Self {
            schema: SCHEMA,
            quell_version: env!("CARGO_PKG_VERSION"),
            duration_s: duration.as_secs_f64(),
            machine: Machine::new(topology),
            llcs,
            placement,
            cost,
            discarded_windows: discarded,
            verdict,
            notes,
        }
    }
}

impl Machine {
    /// The machine that a topology describes.
    #[must_use]
    pub fn new(topology: &Topology) -> Self {
        let model = &topology.model;
        let number = |n: Option<u32>| n.map_or_else(|| "?".to_owned(), |n| n.to_string());
        Self {
            cpu: model.name.clone(),
            cpu_id: format!(
                "{} family {} model {}",
                model.vendor.as_deref().unwrap_or("unknown vendor"),
                number(model.family),
                number(model.model)
            ),
            hypervisor: topology
                .hypervisor
                .name
                .map(str::to_owned)
                .or_else(|| topology.hypervisor.signature.clone()),
            cpus: topology.allowed.clone(),
        }
    }
}

impl LlcReport {
    fn new(scan: &LlcScan) -> Self {
        let advertised = (scan.target.advertised.0 > 0).then_some(scan.target.advertised);
        match &scan.measured {
            Ok(measured) => Self::measured(scan, measured, advertised),
            Err(reason) => Self::unmeasured(scan, reason, advertised),
        }
    }

    fn measured(scan: &LlcScan, measured: &Measured, advertised: Option<Bytes>) -> Self {
        let summary = &measured.summary;
        let points = measured.sweep.observations.iter();
        Self {
            id: scan.target.llc,
            cpus: scan.target.cpus.clone(),
            advertised_bytes: advertised.map(|bytes| bytes.0),
            usable_bytes: measured.usable.clone(),
            engine: ENGINE,
            hazard_per_ms: summary.hazard_per_ms.clone(),
            half_life_ms: summary.half_life_ms.clone(),
            rate_pct_per_ms: summary.rate_pct_per_ms.clone(),
            shape: summary.shape.clone(),
            misfit: summary.curve.misfit(),
            window_ms: Some(summary.window_ms),
            tier: summary.tier.as_ref().ok().copied(),
            tier_reason: summary.tier.as_ref().err().cloned(),
            source: summary.source.source,
            source_grounds: summary.source.grounds.clone(),
            windows: summary.windows,
            discarded_windows: summary.discarded,
            lost_at_once_pct: summary.lost_at_once.map(|share| share * 100.0),
            false_hits_pct: summary.false_hits.map(|share| share * 100.0),
            cost: Cost::new(summary.cpu_ms_per_s, measured.footprint, advertised),
            survival: points
                .map(|o| Point { exposure_ms: o.window.exposure_ms, evicted_pct: o.window.share * 100.0 })
                .collect(),
        }
    }

    fn unmeasured(scan: &LlcScan, reason: &str, advertised: Option<Bytes>) -> Self {
        let unknown = || Estimate::unknown(reason.to_owned());
        Self {
            id: scan.target.llc,
            cpus: scan.target.cpus.clone(),
            advertised_bytes: advertised.map(|bytes| bytes.0),
            usable_bytes: Usable::unknown(reason),
            engine: ENGINE,
            hazard_per_ms: unknown(),
            half_life_ms: unknown(),
            rate_pct_per_ms: unknown(),
            shape: unknown(),
            misfit: None,
            window_ms: None,
            tier: None,
            tier_reason: Some(reason.to_owned()),
            source: Source::Unknown,
            source_grounds: reason.to_owned(),
            windows: 0,
            discarded_windows: Discarded::default(),
            lost_at_once_pct: None,
            false_hits_pct: None,
            cost: Cost::default(),
            survival: Vec::new(),
        }
    }
}

impl PlacementReport {
    fn new(scans: &[LlcScan]) -> Self {
        let pairs: Vec<PairReport> = scans
            .iter()
            .flat_map(|scan| &scan.companions)
            .map(|c| PairReport { cpus: [c.cpus.0, c.cpus.1], summary: c.summary.clone() })
            .collect();
        let near = |pair: &&PairReport| pair.summary.near_pct.value().unwrap_or(f64::INFINITY);
        let worst = pairs.iter().min_by(|a, b| near(a).total_cmp(&near(b)));
        let unknown = || {
            Estimate::unknown(if scans.iter().map(|scan| scan.target.cpus.len()).sum::<usize>() < 2 {
                "only one CPU is measured, so there is no pair to watch"
            } else {
                "no two of the measured CPUs are said to share an LLC"
            })
        };
        Self {
            near_pct: worst.map_or_else(unknown, |pair| pair.summary.near_pct.clone()),
            switches_per_s: worst.map_or_else(unknown, |pair| pair.summary.switches_per_s.clone()),
            pairs,
        }
    }
}

impl Cost {
    /// Cost of one LLC's measurement.
    #[must_use]
    pub fn new(cpu_ms_per_s: f64, footprint: Bytes, advertised: Option<Bytes>) -> Self {
        let pct = |bytes: Bytes| advertised.map(|llc| bytes.0 as f64 / llc.0 as f64 * 100.0);
        Self {
            cpu_ms_per_s: Some(cpu_ms_per_s),
            footprint_bytes: Some(footprint.0),
            footprint_pct: pct(footprint),
            canary_pct: pct(Layout::canary_bytes()),
        }
    }

    fn add(&mut self, other: Self) {
        self.cpu_ms_per_s = merge(self.cpu_ms_per_s, other.cpu_ms_per_s, |a, b| a + b);
        self.footprint_bytes = merge(self.footprint_bytes, other.footprint_bytes, |a, b| a + b);
        self.footprint_pct = merge(self.footprint_pct, other.footprint_pct, f64::max);
        self.canary_pct = merge(self.canary_pct, other.canary_pct, f64::max);
    }
}

/// Combines what is known; unknown only if neither is.
fn merge<T>(a: Option<T>, b: Option<T>, combine: impl Fn(T, T) -> T) -> Option<T> {
    [a, b].into_iter().flatten().reduce(combine)
}
