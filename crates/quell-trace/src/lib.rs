//! Where did the time of a slow kernel call go?
//!
//! [`analyze`] reads the text of an ftrace `function_graph` trace, as `/sys/kernel/tracing/trace`, `trace_pipe`
//! or `trace-cmd report` print it, rebuilds the call trees of each task, and divides the duration of each call
//! among [`Class`]es: waiting for RCU, draining other CPUs, off the CPU and who ran instead, copying, and so on.
//! The classes are exclusive, and with what is unaccounted they sum up to the call's duration, to the nanosecond.
//!
//! Reading is a stream: memory does not grow with the length of the trace. What a trace cannot tell stays
//! unknown: calls during which events were lost are counted, not attributed, and a class of which no function
//! was traced is marked.
//!
//! The formats are those of `kernel/trace/trace_functions_graph.c` and `trace_output.c` of Linux 6.12, with the
//! differences between 5.4 and 6.17 that matter (`Documentation/trace/ftrace.rst`).

#![forbid(unsafe_code)]

mod analysis;
mod analyzer;
mod attribution;
mod class;
mod cpu;
mod line;
mod reader;
mod sched;
mod task;

pub use analysis::{Analysis, Call, Group, Incomplete, Lost, Options, SCHEMA, Unreadable, analyze};
pub use attribution::{Breakdown, ClassTime, FunctionTime, Off, OffKind};
pub use class::{Class, class_of};
pub use line::{Duration, Line, LineParser, Record, Task, What};
pub use reader::{Lines, MAX_LINE_BYTES};
pub use sched::{Switch, Wakeup};

/// The names of the system call `move_pages` in a trace, the outermost first. Which of them exist depends on
/// architecture, version and inlining.
pub const MOVE_PAGES: [&str; 8] = [
    "__x64_sys_move_pages",
    "__arm64_sys_move_pages",
    "__se_sys_move_pages",
    "__do_sys_move_pages",
    "SyS_move_pages",
    "sys_move_pages",
    "kernel_move_pages",
    "do_pages_move",
];

/// Why a file could not be analyzed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// Reading failed.
    #[error("Cannot read the trace")]
    Read {
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Nothing in it looks like ftrace.
    #[error("This is not an ftrace text: {reason}")]
    NotATrace {
        /// What was found instead.
        reason: String,
    },
    /// It holds events, but no function graph.
    #[error(
        "This trace holds {events} events ({examples}) and no function graph: record it with `echo function_graph > current_tracer`"
    )]
    NoFunctions {
        /// How many.
        events: u64,
        /// Some of their names.
        examples: String,
    },
    /// The call that was asked for does not occur.
    #[error("The trace holds no call of {call}{}", hint(.functions, *.outer))]
    NoSuchCall {
        /// What was asked for.
        call: String,
        /// The functions that it holds instead, the most frequent first.
        functions: Vec<String>,
        /// Whether these are the outermost functions, and not just any.
        outer: bool,
    },
    /// The call occurs, but not once from its beginning to its end.
    #[error("The trace holds no complete call of {call}: {reason}")]
    NoCompleteCall {
        /// What was asked for.
        call: String,
        /// What was found of it.
        reason: String,
    },
}

fn hint(functions: &[String], outer: bool) -> String {
    let what = if outer { "its outermost functions are" } else { "its functions are" };
    if functions.is_empty() {
        String::from(", nor of any other function")
    } else {
        format!("; {what} {} (choose one with --call)", functions.join(", "))
    }
}

/// Result of the analysis.
pub type Result<T, E = TraceError> = std::result::Result<T, E>;
