//! Minimal eviction sets of the last-level cache.

pub mod bench;
pub mod build;
pub mod construct;
pub mod filter;
pub mod monitor;
pub mod report;
pub mod search;
pub mod test;
pub mod verify;
mod window;
mod worker;

pub use build::{BuildSettings, Built, EvictionSet, Failure, build};
pub use construct::{ConstructError, Construction, Shape, Stage, construct};
pub use monitor::{EvsetError, EvsetMonitor, EvsetPeriod};
pub use test::LlcTest;
