//! What host and guest say to each other, one JSON object a line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use quell_migrate::{Plan, Settings};
use serde::{Deserialize, Serialize};

/// What a guest is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Workload {
    /// The `move_pages` workload.
    Migrate(Plan),
    /// A subcommand of `quell`; what it prints is kept in the guest's `job.log`.
    Quell(QuellCommand),
    /// A C program of this repository. Lines `{"sample": {…}}` on its standard output are measurements, all others
    /// are kept in the guest's `job.log`; an exit status other than 0 fails the guest.
    Program(Program),
}

impl Workload {
    /// The same workload with an arm's own arguments; only commands take any.
    #[must_use]
    pub fn with_args(mut self, more: &[String]) -> Self {
        match &mut self {
            Self::Quell(QuellCommand { args }) | Self::Program(Program { args, .. }) => {
                args.extend_from_slice(more);
            }
            Self::Migrate(_) => {}
        }
        self
    }
}

/// A program that is compiled for the guests: one C file, linked statically.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// The file, below the repository's root.
    pub source: PathBuf,
    /// Its arguments; those of the arm follow.
    #[serde(default)]
    pub args: Vec<String>,
}

impl Program {
    /// Path of the program in the guest.
    #[must_use]
    pub fn guest_path(&self) -> PathBuf {
        Path::new("/programs").join(self.source.file_stem().unwrap_or_default())
    }
}

/// A subcommand of `quell`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuellCommand {
    /// The words after `quell`.
    pub args: Vec<String>,
}

/// Host to guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Request {
    /// Run a job.
    Job(Job),
    /// Power off.
    Shutdown,
}

/// One job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// What to run.
    pub workload: Workload,
    /// Values for `/proc/sys`, by name (`vm.migrate_drain`), set before the job; one that does not exist
    /// fails the job.
    #[serde(default)]
    pub sysctl: BTreeMap<String, String>,
    /// Files to fetch after the job, as raw bytes.
    #[serde(default)]
    pub collect: Vec<String>,
    /// Trace it, and fetch the trace as the file [`TRACE_FILE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Tracing>,
    /// Kill the job after this many seconds.
    pub timeout_s: u64,
}

/// Path of the trace among the files that a job sends.
pub const TRACE_FILE: &str = "trace.txt";

/// What ftrace records while a job runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tracing {
    /// Functions below which everything is recorded; patterns with `*` are allowed.
    pub calls: Vec<String>,
    /// Only these functions are recorded below them, which distorts the times less; empty: all.
    #[serde(default)]
    pub functions: Vec<String>,
    /// Events, as `system:name`.
    #[serde(default)]
    pub events: Vec<String>,
    /// Kernel buffer of each CPU, in KiB.
    #[serde(default = "default_buffer_kb")]
    pub buffer_kb: u64,
}

const fn default_buffer_kb() -> u64 {
    32 << 10
}

/// Guest to host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Message {
    /// The agent is ready.
    Hello(Hello),
    /// One measurement.
    Sample(Measurement),
    /// The workload's own surroundings.
    Settings(Settings),
    /// A line that the job wrote to its standard error, or about it.
    Log(String),
    /// A collected file; its bytes were written to the bulk port before this line.
    File {
        /// Path in the guest.
        path: String,
        /// Bytes on the bulk port.
        bytes: u64,
    },
    /// The job is over.
    Done(Done),
}

/// What the guest is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the agent.
    pub version: String,
    /// As `uname -r` prints it.
    pub kernel: String,
    /// The kernel's command line.
    pub cmdline: String,
    /// CPUs online.
    pub cpus: usize,
    /// Nodes with memory.
    pub nodes: Vec<u32>,
    /// Seconds from the kernel's start to the agent.
    pub uptime_s: String,
}

/// One measured value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// What was measured.
    pub metric: String,
    /// What it was measured on: only values with equal dimensions are compared.
    pub dimensions: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// What else was counted in this sample; `failed`, `misplaced` and `corrupt` must be zero in both arms.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
}

/// The end of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Exit status, if it exited.
    pub exit_code: Option<i32>,
    /// Signal that killed it.
    pub signal: Option<i32>,
    /// It was killed at its time limit.
    pub timed_out: bool,
    /// Its time by the guest's clock.
    #[serde(default)]
    pub seconds: f64,
    /// Lines that look like measurements and are none; the first is in the log.
    #[serde(default)]
    pub bad_samples: u64,
    /// What `/proc/vmstat` counted during the job; counters that did not move are left out.
    pub vmstat: BTreeMap<String, i64>,
}

/// One line of the protocol, with its end.
pub(crate) fn to_line<T: Serialize>(value: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).expect("messages are plain data");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use quell_migrate::{Call, Case, Toucher};

    use super::*;

    #[test]
    fn a_job_survives_the_wire_and_is_one_line() {
        let case =
            Case { call: Call::Move, pages: 16, touched_by: Toucher::Other, from: Some(0), to: Some(1) };
        let workload = Workload::Migrate(Plan { samples: 600, warmup: 10, cpu: 0, cases: vec![case] });
        let job = Job {
            workload,
            sysctl: BTreeMap::from([(String::from("vm.migrate_drain"), String::from("a\nb"))]),
            collect: vec![],
            trace: None,
            timeout_s: 60,
        };
        let line = to_line(&Request::Job(job.clone()));
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(serde_json::from_slice::<Request>(&line).unwrap(), Request::Job(job));
    }
}
