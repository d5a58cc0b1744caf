//! Experiments: arms interleaved over fresh guests, every sample kept, statistics on guests.

mod analysis;
mod bench;
mod csv;
mod file;
mod html;
mod output;
mod runner;
mod schedule;
mod target;
mod trace;
mod trace_html;

pub use analysis::{Cell, Comparison, GuestSamples, Summary, Table, Verdict, shown};
pub use file::{Arm, Design, Experiment, Short, list};
pub use output::{GuestRecord, Host, RunRecord, SCHEMA, load, report};
pub use runner::{Lab, RunEvent, RunOptions, run};
pub use schedule::schedule;
pub use target::{Aim, NotLonger, Outcome, Target, TargetResult};
pub use trace::{TracePlan, TracedGuest};
