//! Minimal eviction sets of the last-level cache.

pub mod bench;
pub mod build;
pub mod construct;
pub mod filter;
pub mod search;
pub mod test;
pub mod verify;

pub use build::{BuildSettings, Built, EvictionSet, Failure, build};
pub use construct::{ConstructError, Construction, Shape, Stage, construct};
pub use test::LlcTest;
