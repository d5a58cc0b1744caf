//! How long does `move_pages` take on this kernel, and how much of it is not the copy?
//!
//! Before Linux isolates a page to move it, it empties the LRU batches of *all* CPUs and waits for RCU, once
//! per call, however few pages are moved. A call that moves a page to the node where it already is copies
//! nothing but pays for that too, so the stall shows on any machine, with one node and no privilege.
//!
//! [`run`] executes a [`Plan`] and returns one [`Sample`] per call: only the system call is timed, and every
//! sample says whether the pages arrived with their content. [`survey`] chooses the plan for a machine and
//! [`recommend`] turns its result into a batch size.

#![deny(unsafe_code)]

mod plan;
mod recommend;
mod run;
mod settings;
mod survey;
mod sys;

use std::io;

pub use plan::{Call, Case, Plan, Toucher};
pub use recommend::{Basis, Recommendation, recommend};
pub use run::{Sample, run, run_announced};
pub use settings::{Settings, memory_nodes};
pub use survey::{CaseSummary, SCHEMA, Survey, SurveyOptions, survey};
pub use sys::PAGE_BYTES;

/// An error of the workload.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// A plan that asks for the impossible.
    #[error("This plan cannot run: {reason}")]
    BadPlan {
        /// What is wrong with it.
        reason: String,
    },
    /// A system call failed as a whole.
    #[error("{call} failed{}", hint(.call, .source))]
    Syscall {
        /// Name of the call.
        call: &'static str,
        /// Its error.
        #[source]
        source: io::Error,
    },
    /// A file of `/proc` or `/sys` could not be written.
    #[error("Cannot set {path} to {value}")]
    Setting {
        /// The file.
        path: std::path::PathBuf,
        /// What should have been written.
        value: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The thread that faults pages on another CPU ended.
    #[error("The helper thread on CPU {cpu} ended early")]
    HelperGone {
        /// Its CPU.
        cpu: u32,
    },
}

fn hint(call: &str, source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::ENOSYS) if call == "move_pages" => {
            " (a container's seccomp filter often forbids it; allow CAP_SYS_NICE or run outside)"
        }
        _ => "",
    }
}

/// Result of the workload.
pub type Result<T, E = MigrateError> = std::result::Result<T, E>;
