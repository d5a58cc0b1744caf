//! Shared ground of every Quell crate: units, estimates that may be unknown, statistics, and the
//! [`Memory`] trait that real hardware and the simulator both implement.
//!
//! Nothing here touches the machine, except [`tsc`], which reads the time-stamp counter.

#![deny(unsafe_code)]

pub mod estimate;
pub mod memory;
pub mod stats;
pub mod tsc;
pub mod units;

pub use estimate::Estimate;
pub use memory::{Crew, Line, Memory, Sample};
pub use units::{Bytes, CpuId, LlcId, NodeId, Ticks};
