//! Real memory: the implementation of [`quell_core::Memory`] for the machine this process runs on.
//!
//! The only part of the crate with `unsafe` code: `arena` owns the mapping, `loads` the timed loops.

mod arena;
mod crew;
mod loads;
mod machine;
mod priority;

pub use crew::{CrewError, HwCrew, Station};
pub use machine::{HwError, HwMemory};
pub use priority::Raised;
