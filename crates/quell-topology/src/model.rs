//! What [`Topology`] consists of. Every list is in ascending order of its first CPU.

use quell_core::{Bytes, CpuId, LlcId, NodeId};
use serde::Serialize;

use crate::CacheShape;

/// What the guest's kernel and CPUID say about this machine.
///
/// None of it is proof: the hypervisor makes it up, and may move vCPUs at any time. See [`crate::pingpong`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Topology {
    /// The CPU model.
    pub model: CpuModel,
    /// The hypervisor.
    pub hypervisor: Hypervisor,
    /// The time-stamp counter.
    pub tsc: TscFacts,
    /// The online CPUs.
    pub cpus: Vec<Cpu>,
    /// CPUs that exist but are offline.
    pub offline: Vec<CpuId>,
    /// The online CPUs that this process may use.
    pub allowed: Vec<CpuId>,
    /// The CPUs that the control group's cpuset allows; `None` if that cannot be read.
    pub cpuset: Option<Vec<CpuId>>,
    /// Every cache instance, lowest level first.
    pub caches: Vec<Cache>,
    /// The last-level cache domains. Empty if it is not known which CPUs share one.
    pub llcs: Vec<Llc>,
    /// The NUMA nodes. Empty without NUMA information.
    pub nodes: Vec<Node>,
    /// What was missing, malformed or contradictory, in words.
    pub notes: Vec<String>,
}

/// The CPU model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CpuModel {
    /// For example `AuthenticAMD`.
    pub vendor: Option<String>,
    /// Family number, extended family included.
    pub family: Option<u32>,
    /// Model number, extended model included.
    pub model: Option<u32>,
    /// Stepping.
    pub stepping: Option<u32>,
    /// The marketing name.
    pub name: Option<String>,
}

/// The hypervisor, as far as it shows itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hypervisor {
    /// Whether this is a virtual machine: CPUID's hypervisor bit, or the kernel's flag.
    pub present: Option<bool>,
    /// The signature in CPUID leaf 0x40000000, for example `KVMKVMKVM`.
    pub signature: Option<String>,
    /// The hypervisor's common name, if the signature is known.
    pub name: Option<&'static str>,
    /// Vendor and product in the firmware's DMI tables, where readable.
    pub product: Option<String>,
}

/// What is known about the time-stamp counter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TscFacts {
    /// Runs at one rate in all power states (CPUID leaf 0x80000007).
    pub invariant: Option<bool>,
    /// The kernel's flag `constant_tsc`.
    pub constant: Option<bool>,
    /// The kernel's flag `nonstop_tsc`.
    pub nonstop: Option<bool>,
    /// The instruction RDTSCP exists.
    pub rdtscp: Option<bool>,
    /// The clock that the kernel uses now, for example `tsc` or `kvm-clock`.
    pub clocksource: Option<String>,
}

/// One online CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// Its number.
    pub id: CpuId,
    /// Number of its core within the package.
    pub core: Option<u32>,
    /// Number of its package (socket).
    pub package: Option<u32>,
    /// The hyperthreads of its core that are online, itself included.
    pub siblings: Vec<CpuId>,
    /// Its NUMA node.
    pub node: Option<NodeId>,
    /// Its APIC id, which CPUID's sharing masks apply to.
    pub apic_id: Option<u32>,
    /// Whether this process may use it.
    pub allowed: bool,
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheKind {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Both.
    Unified,
}

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// `/sys/devices/system/cpu/cpu*/cache`.
    Sysfs,
    /// CPUID leaf 4 or 0x8000001D.
    Cpuid,
}

/// One cache instance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cache {
    /// 1 is closest to the core.
    pub level: u32,
    /// What it holds.
    pub kind: CacheKind,
    /// Its size.
    pub size: Option<Bytes>,
    /// Ways of associativity.
    pub ways: Option<u32>,
    /// Number of sets.
    pub sets: Option<u32>,
    /// Size of a line in bytes.
    pub line_bytes: Option<u32>,
    /// Whether it holds everything that the caches below hold; only CPUID tells.
    pub inclusive: Option<bool>,
    /// The online CPUs that share it; empty if that is not known.
    pub cpus: Vec<CpuId>,
    /// Where the above comes from.
    pub source: Source,
    /// What CPUID says instead, if `source` is sysfs and the two disagree about size, ways, sets or line.
    pub cpuid_differs: Option<CacheShape>,
}

/// A last-level cache domain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Llc {
    /// Its number, in the order of the lowest CPU.
    pub id: LlcId,
    /// The online CPUs that share it.
    pub cpus: Vec<CpuId>,
    /// The size it is advertised with. How much of it one can hold is another matter.
    pub advertised: Bytes,
    /// Ways of associativity, if known.
    pub ways: Option<u32>,
    /// Its level, usually 3.
    pub level: u32,
    /// Whether it holds everything that the caches below hold.
    pub inclusive: Option<bool>,
    /// Where this comes from.
    pub source: Source,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// Its online CPUs; empty for a node of memory only.
    pub cpus: Vec<CpuId>,
    /// Its memory.
    pub memory: Option<Bytes>,
    /// Distance to each online node, in the order of their numbers; 10 is local.
    pub distances: Vec<u32>,
}

impl Topology {
    /// The LLC domain of a CPU; `None` if it is not known or the CPU is not online.
    #[must_use]
    pub fn llc_of(&self, cpu: CpuId) -> Option<&Llc> {
        self.llcs.iter().find(|llc| llc.cpus.contains(&cpu))
    }

    /// Whether two CPUs are said to share an LLC; `None` if that is not known.
    #[must_use]
    pub fn share_llc(&self, a: CpuId, b: CpuId) -> Option<bool> {
        Some(self.llc_of(a)?.id == self.llc_of(b)?.id)
    }

    /// An online CPU.
    #[must_use]
    pub fn cpu(&self, id: CpuId) -> Option<&Cpu> {
        self.cpus.iter().find(|cpu| cpu.id == id)
    }

    /// Whether two CPUs are said to be hyperthreads of one core.
    #[must_use]
    pub fn are_siblings(&self, a: CpuId, b: CpuId) -> bool {
        a != b && self.cpu(a).is_some_and(|cpu| cpu.siblings.contains(&b))
    }

    /// The online CPUs, as numbers.
    #[must_use]
    pub fn online(&self) -> Vec<CpuId> {
        self.cpus.iter().map(|cpu| cpu.id).collect()
    }
}
