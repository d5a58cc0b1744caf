//! Experiments: arms interleaved over fresh guests, every sample kept, statistics on guests.

mod analysis;
mod file;
mod html;
mod output;
mod runner;
mod schedule;
mod trace;
mod trace_html;

pub use analysis::{Cell, Comparison, GuestSamples, Summary, Table, Verdict};
pub use file::{Arm, Design, Experiment, Short, list};
pub use output::{GuestRecord, Host, RunRecord, SCHEMA, load, report};
pub use runner::{Lab, RunEvent, RunOptions, run};
pub use schedule::schedule;
pub use trace::{TracePlan, TracedGuest};
