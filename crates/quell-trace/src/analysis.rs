//! From a trace to the attribution of its calls.

use std::io::BufRead;

use serde::{Deserialize, Serialize};

use crate::analyzer::Analyzer;
use crate::attribution::Breakdown;
use crate::line::{Line, LineParser};
use crate::reader::Lines;
use crate::{MOVE_PAGES, Result, TraceError};

/// Name and version of the answer in JSON.
pub const SCHEMA: &str = "quell.trace/1";

/// What to look for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names of the function whose calls are attributed; below the first that occurs the others are ordinary
    /// functions. Compiler suffixes do not count.
    pub calls: Vec<String>,
    /// Only calls that took at least so many nanoseconds.
    pub slower_than_ns: u64,
    /// How many of the slowest calls are kept one by one.
    pub slowest: usize,
}

impl Default for Options {
    /// All calls of `move_pages`, the ten slowest one by one.
    fn default() -> Self {
        Self { calls: MOVE_PAGES.map(String::from).to_vec(), slower_than_ns: 0, slowest: 10 }
    }
}

/// Events that the kernel lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lost {
    /// The CPU; `null` if all are counted together.
    pub cpu: Option<u32>,
    /// How many; `null` if the kernel does not know.
    pub events: Option<u64>,
    /// When, in seconds of the trace; `null` if before its first line, or unknown.
    pub time_s: Option<f64>,
    /// `during` the trace at that time, `before` its first line, or somewhere `unknown`.
    pub when: String,
}

/// Calls that were seen and not attributed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incomplete {
    /// Why.
    pub reason: String,
    /// How many.
    pub calls: u64,
}

/// All calls with the same label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// What the program wrote to `trace_marker` before these calls; empty for calls without.
    pub label: String,
    /// Calls that the sums are made of.
    pub calls: u64,
    /// The shortest of them, in nanoseconds.
    pub min_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Calls that are left out, because the trace does not show them whole.
    pub incomplete: Vec<Incomplete>,
    /// Sums over all calls.
    pub breakdown: Breakdown,
    /// The call whose duration is the median, without details; `null` without calls. Where one call in a hundred
    /// takes a hundred times as long, the sums show that one, and this the others.
    pub median: Option<Breakdown>,
}

/// One call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// As in [`Group`].
    pub label: String,
    /// When it began, in seconds of the trace; `null` without times.
    pub start_s: Option<f64>,
    /// CPU on which it began.
    pub cpu: Option<u32>,
    /// Name of the task, which the function graph cuts to 7 characters.
    pub task: String,
    /// Its thread ID.
    pub pid: Option<u32>,
    /// Where its time went.
    pub breakdown: Breakdown,
}

/// A line that was not understood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreadable {
    /// Its number, from 1.
    pub line: u64,
    /// Its beginning.
    pub text: String,
}

/// What a trace says about the calls of a function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Analysis {
    /// [`SCHEMA`].
    pub schema: String,
    /// The function, as it is called in the trace.
    pub call: String,
    /// Lines of the file.
    pub lines: u64,
    /// Lines that were not understood.
    pub unreadable_lines: u64,
    /// The first of them.
    pub first_unreadable: Option<Unreadable>,
    /// Events that the kernel lost.
    pub lost: Vec<Lost>,
    /// Calls shorter than what was asked for.
    pub faster_calls: u64,
    /// Calls by label, in the order in which they first ended.
    pub groups: Vec<Group>,
    /// The slowest calls that the trace shows whole, the slowest first.
    pub slowest: Vec<Call>,
    /// What limits this answer, in sentences.
    pub notes: Vec<String>,
}

/// Reads a trace to its end and attributes the calls asked for.
///
/// # Errors
/// If reading fails, the input is no trace, or there is no such call in it; not if only parts are broken.
pub fn analyze(input: impl BufRead, options: &Options) -> Result<Analysis> {
    let mut analyzer = Analyzer::new(options);
    let (mut lines, mut parser, mut line) = (Lines::new(input), LineParser::default(), String::new());
    while lines.next(&mut line).map_err(|source| TraceError::Read { source })? {
        match parser.parse(&line) {
            Line::Unreadable => analyzer.unreadable(&line),
            line => analyzer.line(line),
        }
    }
    analyzer.finish()
}
