//! Traced guests: what they record, and what the traces say.
//!
//! Tracing slows every function down, so traced guests are never among the measured ones.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use quell_trace::{Analysis, Options, analyze};
use serde::{Deserialize, Serialize};

use super::output::GuestRecord;
use crate::protocol::{TRACE_FILE, Tracing, Workload};

/// The section `[trace]` of an experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracePlan {
    /// Functions below which everything is recorded. The calls of the first are attributed.
    pub calls: Vec<String>,
    /// Only these functions are recorded below them (`*` is allowed), which distorts the times less; empty: all.
    #[serde(default)]
    pub functions: Vec<String>,
    /// Events, as `system:name`.
    #[serde(default)]
    pub events: Vec<String>,
    /// Kernel buffer of each CPU, in KiB.
    #[serde(default = "default_buffer_kb")]
    pub buffer_kb: u64,
    /// Samples of each case in a traced guest.
    pub samples: u32,
    /// Fresh traced guests of each arm.
    #[serde(default = "one")]
    pub guests_per_arm: u32,
}

const fn default_buffer_kb() -> u64 {
    32 << 10
}

const fn one() -> u32 {
    1
}

impl TracePlan {
    pub(super) fn validate(&self) -> Result<(), String> {
        if self.calls.is_empty() {
            return Err(String::from("`calls` in [trace] is empty"));
        }
        if self.samples == 0 {
            return Err(String::from("`samples` in [trace] is 0"));
        }
        if !(1..=100).contains(&self.guests_per_arm) {
            return Err(String::from("`guests_per_arm` in [trace] must be 1 to 100"));
        }
        Ok(())
    }

    pub(super) fn tracing(&self) -> Tracing {
        Tracing {
            calls: self.calls.clone(),
            functions: self.functions.clone(),
            events: self.events.clone(),
            buffer_kb: self.buffer_kb,
        }
    }

    /// The workload with the number of samples that is traced.
    pub(super) fn workload(&self, workload: &Workload) -> Workload {
        let mut workload = workload.clone();
        if let Workload::Migrate(plan) = &mut workload {
            plan.samples = self.samples;
        }
        workload
    }
}

/// A traced guest of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TracedGuest {
    /// The guest. Its samples are not kept, as tracing falsifies them.
    pub guest: GuestRecord,
    /// The trace, in the guest's directory.
    pub file: String,
    /// Where the time of its calls went; `null` if that could not be found out.
    pub analysis: Option<Analysis>,
    /// Why not.
    pub problem: Option<String>,
}

impl TracedGuest {
    /// Analyzes the trace that a guest left in `dir`.
    pub(super) fn read(dir: &Path, plan: &TracePlan, guest: GuestRecord) -> Self {
        let options = Options { calls: plan.calls.iter().take(1).cloned().collect(), ..Options::default() };
        let analysis = match (File::open(dir.join(TRACE_FILE)), &guest.failure) {
            (Ok(file), _) => analyze(BufReader::new(file), &options).map_err(|error| error.to_string()),
            (Err(_), Some(failure)) => Err(format!("there is no trace: {failure}")),
            (Err(error), None) => Err(format!("there is no trace: {error}")),
        };
        let problem = analysis.as_ref().err().cloned();
        Self { guest, file: TRACE_FILE.to_owned(), analysis: analysis.ok(), problem }
    }

    /// Why the guest's trace says less than it should, in sentences.
    pub(super) fn warnings(&self) -> Vec<String> {
        let (arm, index) = (&self.guest.arm, self.guest.index);
        let mut warnings: Vec<String> =
            self.problem.iter().map(|problem| format!("traced guest {index} ({arm}): {problem}")).collect();
        for note in self.analysis.iter().flat_map(|analysis| &analysis.notes) {
            warnings.push(format!("trace of guest {index} ({arm}): {note}"));
        }
        for group in self.analysis.iter().flat_map(|analysis| &analysis.groups) {
            for incomplete in &group.incomplete {
                let (calls, reason, label) = (incomplete.calls, &incomplete.reason, &group.label);
                warnings.push(format!(
                    "trace of guest {index} ({arm}): {calls} calls ({label}) left out: {reason}"
                ));
            }
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> TracePlan {
        toml::from_str("calls = [\"__x64_sys_move_pages\", \"x\"]\nsamples = 5").unwrap()
    }

    #[test]
    fn plans_that_cannot_be_are_refused() {
        plan().validate().unwrap();
        let refused = |plan: TracePlan| plan.validate().unwrap_err();
        assert!(refused(TracePlan { calls: vec![], ..plan() }).contains("`calls`"));
        assert!(refused(TracePlan { samples: 0, ..plan() }).contains("`samples`"));
        assert!(refused(TracePlan { guests_per_arm: 0, ..plan() }).contains("`guests_per_arm`"));
        assert!(toml::from_str::<TracePlan>("calls = []\nsamples = 1\nsample = 2").is_err());
    }

    #[test]
    fn a_guest_without_a_trace_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let traced = TracedGuest::read(dir.path(), &plan(), GuestRecord::default());
        assert!(traced.analysis.is_none() && traced.warnings()[0].contains("there is no trace"));
        let text = " 0)   1.500 us    |  __x64_sys_move_pages();\n";
        std::fs::write(dir.path().join(TRACE_FILE), text).unwrap();
        let traced = TracedGuest::read(dir.path(), &plan(), GuestRecord::default());
        assert_eq!(traced.analysis.unwrap().groups[0].breakdown.duration_ns, 1_500);
    }
}
