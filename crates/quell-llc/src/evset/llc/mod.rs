//! Minimal eviction sets of the last-level cache.

pub mod search;
pub mod test;
