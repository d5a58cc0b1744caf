//! Measures last-level-cache contention from inside a virtual machine, with no help from the hypervisor.
//!
//! A [`canary`] of a few hundred lines is primed into the LLC, left alone for a window and probed; the
//! [`monitor`] spreads such windows over time, and [`curve`] fits the survival curve from which half-life,
//! hazard and eviction rate follow. [`calibrate`](mod@calibrate) learns from data what a miss looks like.
//! Everything works on [`quell_core::Memory`]: [`hw`] is the real machine.

#![deny(unsafe_code)]

pub mod attribution;
pub mod calibrate;
pub mod canary;
pub mod capacity;
pub mod curve;
pub mod detect;
pub mod hw;
pub mod layout;
pub mod monitor;
pub mod planner;
pub mod summary;
pub mod tier;
pub mod timer;

pub use attribution::Source;
pub use calibrate::{Calibration, Discriminator, calibrate};
pub use canary::{Canary, Wait, WindowResult};
pub use curve::{Curve, Observation};
pub use layout::{Layout, Spill};
pub use monitor::{Discarded, Monitor, Period, Plan, Settings};
pub use summary::Summary;
pub use tier::{Tier, TierLimits};
