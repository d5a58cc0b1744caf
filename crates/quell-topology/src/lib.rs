//! CPUs, caches and NUMA nodes of this machine, and a probe of who really shares a cache.

#![deny(unsafe_code)]

pub mod affinity;
mod caches;
mod clock;
pub mod cpuid;
mod cpulist;
mod error;
mod files;
mod mixture;
mod model;
pub mod near_far;
pub mod pingpong;
mod read;
pub mod series;
pub mod survey;
mod yardstick;

pub use affinity::Pinned;
pub use clock::{deadline_in, tsc_ticks_per_ms};
pub use cpuid::{CacheShape, CpuidCache, CpuidFacts};
pub use cpulist::{format_cpu_list, parse_cpu_list};
pub use error::Error;
pub use model::{Cache, CacheKind, Cpu, CpuModel, Hypervisor, Llc, Node, Source, Topology, TscFacts};
pub use near_far::{NearFar, Placement};
pub use pingpong::{Pair, RoundTrip, Table};
pub use series::{PlacementSeries, PlacementSummary, Verdict};
pub use survey::{PairReport, Plan, Pooled, Survey, hidden_siblings};
pub use yardstick::memory_latency_ns;
