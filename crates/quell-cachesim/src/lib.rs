//! Deterministic cache hierarchy with ground truth, for testing cache measurements.
//!
//! ```
//! use quell_cachesim::{Config, Sim, truth};
//! use quell_core::{Line, Memory};
//!
//! let config = Config::milan();
//! let mut sim = Sim::new(config.clone(), 42)?;
//! let mut memory = sim.memory(4096)?;
//! let lines: Vec<Line> = (0..512).map(|page| Line::new(page, 5)).collect();
//! memory.load(&lines);
//! let mut samples = Vec::new();
//! memory.time(&lines, &mut samples);
//!
//! let truth = truth::half_life_ms(&config, 42, 2_000)?;
//! assert!(truth.ci95_ms[0] < truth.median_ms);
//! # Ok::<(), quell_cachesim::ConfigError>(())
//! ```
//!
//! What is simulated: private L1 and L2, sliced last-level caches of three inclusion policies and four
//! replacement policies, way masks, the host's page mapping, TLB, prefetchers, the timer's step, latency
//! noise, pauses, and moves between LLCs. Foreign traffic is never replayed event by event: a set catches up
//! when it is next looked at, with a Poisson number of insertions from the integrated intensity.
//!
//! [`truth`] gives what a perfect measurement would find in the same run.

#![deny(unsafe_code)]

mod config;
mod geometry;
mod history;
mod host;
mod l1;
mod machine;
mod presets;
mod rng;
mod sets;
mod shared;
mod sibling;
mod sim;
mod tlb;
mod traffic;
pub mod truth;
mod vcpu;

pub use config::{
    Backing, Burst, Config, ConfigError, Inclusion, Indexing, L1, Level, Llc, Pause, Placement, Polluter,
    Prefetch, Replacement, SnoopFilter, Timing, Traffic,
};
pub use history::{History, RECORDED_PAUSE_MS};
pub use shared::Evictions;
pub use sim::{Place, Sim, SimCrew, SimMemory};
