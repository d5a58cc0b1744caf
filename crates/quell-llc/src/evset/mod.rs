//! Which lines evict which: the eviction test, and what is built on it.
//!
//! A guest does not see host-physical addresses, so it cannot compute which lines share a cache set. It can
//! only try: load a target, load candidates, and time the target. [`mod@test`] holds this primitive for any level
//! of the hierarchy, [`l2`] finds groups of pages that share the sets of the private L2.

pub mod l2;
pub mod llc;
pub mod test;

pub use l2::{OctetTicks, PageTest, SearchError};
pub use test::{EvictionTest, Level, Outcome, Rule, Tally};
