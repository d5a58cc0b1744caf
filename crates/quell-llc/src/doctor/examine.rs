//! Measures what the rules need to know: the scan, the placement of vCPUs across LLCs, and what else ran.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use quell_core::CpuId;
use quell_topology::{PairReport, Plan, Survey, Topology};

use super::load::Totals;
use super::{Cache, CpuTime, Facts, Machine, Placement, Readings};
use crate::scan::{self, LlcScan, Progress, ScanSettings, TargetError};
use crate::session::Target;

/// Periods that a diagnosis rests on.
pub const PERIODS: u32 = 5;
/// How long pairs of vCPUs that are said to have different LLCs are watched.
const SURVEY: Duration = Duration::from_millis(1_400);
/// Time between two round trips of a pair; hosts were seen to move vCPUs every 50-160 ms.
const SPACING: Duration = Duration::from_millis(15);

/// As [`scan::targets()`], but a time-stamp counter that cannot be used yields no target instead of an error: the
/// diagnosis is then that very fact.
///
/// # Errors
/// A choice of CPUs that makes no sense.
pub fn targets(topology: &Topology, cpus: Option<&[CpuId]>) -> Result<Vec<Target>, TargetError> {
    match scan::targets(topology, cpus) {
        Err(TargetError::VariantTsc | TargetError::NoRdtscp) => Ok(Vec::new()),
        other => other,
    }
}

/// Examines the machine that this runs on, some nine seconds with periods of a second; `settings.periods` should
/// be [`PERIODS`]. `None` if `stop` was set before the end.
pub fn examine(
    topology: &Topology,
    targets: &[Target],
    settings: ScanSettings,
    stop: &AtomicBool,
    progress: &(dyn Fn(Progress) + Sync),
) -> Option<Facts> {
    let root = Path::new("/");
    let measured: Vec<CpuId> = targets.iter().flat_map(|target| target.cpus.iter().copied()).collect();
    let mut pairs = across(topology, &measured, stop);
    let before = Counters::read(targets);
    let scans = scan::scan(targets, settings, stop, progress);
    let after = Counters::read(targets);
    if stop.load(Ordering::Relaxed) {
        return None;
    }
    pairs.extend(scans.iter().flat_map(|scan| within(topology, scan)));
    let mut machine = Machine::read(root, topology, measured);
    machine.asides = scans.iter().flat_map(|scan| scan.notes.iter().cloned()).collect();
    let times = before.until(&after, targets.len());
    let caches = scans.into_iter().zip(times).map(|(scan, time)| cache(scan, settings, time)).collect();
    Some(Facts { clock: topology.tsc.clone(), machine, placement: Placement { pairs }, caches })
}

fn cache(scan: LlcScan, settings: ScanSettings, cpu_time: Option<CpuTime>) -> Cache {
    let readings = scan.measured.map(|m| Readings::of(&m.periods, settings.monitor.tiers, m.usable));
    Cache::new(&scan.target, settings.monitor.window_ms, scan.calibration, readings, cpu_time)
}

/// Pairs of CPUs that are not said to share an LLC; the scan watches the others. A survey that cannot run leaves
/// no pairs: the scan then says why.
fn across(topology: &Topology, cpus: &[CpuId], stop: &AtomicBool) -> Vec<PairReport> {
    let mut plan = Plan::new(topology, cpus);
    plan.pairs.retain(|&(a, b)| topology.share_llc(a, b) != Some(true));
    if plan.pairs.is_empty() {
        return Vec::new();
    }
    let survey = Survey::new(&plan).and_then(|mut survey| {
        survey.run(SURVEY, SPACING, stop)?;
        Ok(survey)
    });
    survey.map_or_else(|_| Vec::new(), |survey| survey.report(topology, &survey.near_far(), Duration::ZERO))
}

/// What the scan saw of the CPUs that are said to share its LLC.
fn within(topology: &Topology, scan: &LlcScan) -> Vec<PairReport> {
    let report = |companion: &crate::session::Companion| {
        let (a, b) = companion.cpus;
        PairReport {
            a,
            b,
            said_shared: topology.share_llc(a, b),
            said_siblings: topology.are_siblings(a, b),
            placement: companion.summary.clone(),
        }
    };
    scan.companions.iter().map(report).collect()
}

/// CPU time so far: of each target's probe CPU, and of this program.
struct Counters {
    at: Instant,
    cpus: Vec<Option<Totals>>,
    own_ms: f64,
}

impl Counters {
    fn read(targets: &[Target]) -> Self {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let own = getrusage(UsageWho::RUSAGE_SELF)
            .map_or(0, |usage| (usage.user_time() + usage.system_time()).num_microseconds());
        Self {
            at: Instant::now(),
            cpus: targets.iter().map(|target| Totals::of(&text, target.probe_cpu())).collect(),
            own_ms: own as f64 / 1e3,
        }
    }

    /// Each probe CPU's time until a later reading. This program's threads are taken to have shared its CPU time
    /// equally: nearly all of it is spent by the probes, one per target.
    fn until(&self, later: &Self, targets: usize) -> Vec<Option<CpuTime>> {
        let span_ms = (later.at - self.at).as_secs_f64() * 1e3;
        let own_ms = (later.own_ms - self.own_ms) / targets.max(1) as f64;
        let between = |(before, after): (&Option<Totals>, &Option<Totals>)| {
            CpuTime::between((*before)?, (*after)?, own_ms, span_ms)
        };
        self.cpus.iter().zip(&later.cpus).map(between).collect()
    }
}

#[cfg(test)]
mod tests {
    use quell_topology::TscFacts;

    use super::*;

    #[test]
    fn a_counter_that_cannot_be_used_is_a_diagnosis_but_a_wrong_cpu_an_error() {
        let tsc = TscFacts { invariant: Some(false), ..TscFacts::default() };
        let mut topology = Topology { tsc, allowed: vec![CpuId(0)], ..Topology::default() };
        assert_eq!(targets(&topology, None), Ok(Vec::new()));
        topology.tsc = TscFacts { rdtscp: Some(false), ..TscFacts::default() };
        assert_eq!(targets(&topology, None), Ok(Vec::new()));
        topology.tsc = TscFacts::default();
        assert!(targets(&topology, Some(&[CpuId(7)])).is_err());
        assert_eq!(targets(&topology, None).unwrap().len(), 1);
    }
}
