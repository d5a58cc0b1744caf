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
pub mod color;
pub mod curve;
pub mod detect;
pub mod doctor;
pub mod evset;
pub mod hw;
mod jumps;
pub mod layout;
pub mod monitor;
pub mod planner;
pub mod scan;
pub mod session;
pub mod summary;
pub mod tier;
pub mod timer;
pub mod truth;
pub mod watch;

pub use attribution::Source;
pub use calibrate::{Calibration, Discriminator, calibrate};
pub use canary::{Canary, Wait, WindowResult};
pub use curve::{Curve, Observation};
pub use layout::{Layout, Spill};
pub use monitor::{Discarded, Monitor, Period, Plan, Settings};
pub use summary::Summary;
pub use tier::{Tier, TierLimits};

/// An error with its causes, on one line.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
