//! Which LLCs to watch, and from which CPUs.

use quell_core::{Bytes, CpuId, LlcId};
use quell_topology::{CacheKind, Topology, format_cpu_list};

use crate::session::Target;

/// Why there is nothing to watch.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// A CPU was asked for that cannot be used.
    #[error("CPU {asked} cannot be used by this process; the CPUs to choose from are {allowed}")]
    NotAllowed {
        /// The first such CPU.
        asked: CpuId,
        /// CPU list of what may be used.
        allowed: String,
    },
    /// An empty choice.
    #[error("no CPU to measure on: the list of CPUs is empty")]
    NoCpu,
    /// The CPU has no invariant time-stamp counter.
    #[error(
        "this CPU's time-stamp counter does not run at a constant rate, so no latency measured with it would \
         mean anything; choose a VM type with an invariant TSC"
    )]
    VariantTsc,
    /// No RDTSCP.
    #[error("this CPU has no RDTSCP instruction, which the probe needs to notice when it is moved")]
    NoRdtscp,
}

/// The L2 to assume where nothing tells its size: the largest of today's server CPUs, for a spill that is too
/// large costs a little time, while one too small hides evictions.
const ASSUMED_L2: Bytes = Bytes::mib(2);
/// Size to report for an LLC that nothing describes. Zero means unknown to the capacity measurement.
const UNKNOWN_LLC: Bytes = Bytes(0);

/// One target for each LLC that has a CPU among `cpus` (all allowed ones by default).
///
/// Where the topology does not say who shares an LLC, each CPU is taken to have one of its own: that claims
/// nothing about sharing.
///
/// # Errors
/// [`TargetError`].
pub fn targets(topology: &Topology, cpus: Option<&[CpuId]>) -> Result<Vec<Target>, TargetError> {
    if topology.tsc.invariant == Some(false) && topology.tsc.constant != Some(true) {
        return Err(TargetError::VariantTsc);
    }
    if topology.tsc.rdtscp == Some(false) {
        return Err(TargetError::NoRdtscp);
    }
    let allowed = &topology.allowed;
    let chosen = cpus.unwrap_or(allowed);
    if let Some(&asked) = chosen.iter().find(|cpu| !allowed.contains(cpu)) {
        return Err(TargetError::NotAllowed { asked, allowed: format_cpu_list(allowed) });
    }
    if chosen.is_empty() {
        return Err(TargetError::NoCpu);
    }
    let mut targets: Vec<Target> = topology
        .llcs
        .iter()
        .map(|llc| Target {
            llc: llc.id,
            cpus: chosen.iter().copied().filter(|cpu| llc.cpus.contains(cpu)).collect(),
            advertised: llc.advertised,
            l2: l2_of(topology, llc.cpus[0]).0,
            l2_ways: l2_of(topology, llc.cpus[0]).1,
        })
        .filter(|target| !target.cpus.is_empty())
        .collect();
    let orphans = chosen.iter().copied().filter(|&cpu| topology.llc_of(cpu).is_none());
    let first = topology.llcs.len() as u32;
    targets.extend(orphans.zip(first..).map(|(cpu, number)| Target {
        llc: LlcId(number),
        cpus: vec![cpu],
        advertised: UNKNOWN_LLC,
        l2: l2_of(topology, cpu).0,
        l2_ways: l2_of(topology, cpu).1,
    }));
    for target in &mut targets {
        siblings_last(topology, &mut target.cpus);
    }
    Ok(targets)
}

/// Puts the probe's own hyperthread behind the CPUs of other cores: as a partner it tells nothing of the LLC.
fn siblings_last(topology: &Topology, cpus: &mut [CpuId]) {
    let probe = cpus[0];
    cpus[1..].sort_by_key(|&cpu| (topology.are_siblings(probe, cpu), cpu));
}

/// Size and ways of a CPU's L2.
fn l2_of(topology: &Topology, cpu: CpuId) -> (Bytes, Option<u32>) {
    let l2 = topology.caches.iter().filter(|cache| cache.level == 2 && cache.kind != CacheKind::Instruction);
    let known: Vec<_> = l2.filter_map(|cache| Some((cache, cache.size?))).collect();
    let own = known.iter().find(|(cache, _)| cache.cpus.contains(&cpu));
    own.or(known.first()).map_or((ASSUMED_L2, None), |(cache, size)| (*size, cache.ways))
}
