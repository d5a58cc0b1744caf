//! Minimal eviction sets of the last-level cache.

pub mod build;
pub mod filter;
pub mod search;
pub mod test;
pub mod verify;

pub use build::{BuildSettings, Built, EvictionSet, Failure, build};
pub use test::LlcTest;
