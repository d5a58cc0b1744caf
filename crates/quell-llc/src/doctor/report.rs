//! The diagnosis in the form that leaves the program: schema `quell.doctor/1`, documented in `docs/json.md`.

use std::time::Duration;

use quell_topology::Topology;
use serde::Serialize;

use super::{Finding, Severity};
use crate::scan::report::Machine;

/// Name and version of the schema.
const SCHEMA: &str = "quell.doctor/1";

/// Everything that was found out.
#[derive(Clone, Debug, Serialize)]
pub struct DoctorReport {
    schema: &'static str,
    quell_version: &'static str,
    /// Wall-clock length of the examination in seconds.
    pub duration_s: f64,
    /// What it ran on.
    pub machine: Machine,
    /// Findings of severity `problem`.
    pub problems: usize,
    /// Findings of severity `warning`.
    pub warnings: usize,
    /// All findings, the most serious first.
    pub findings: Vec<Finding>,
}

impl DoctorReport {
    /// Sums up what was found on a machine.
    #[must_use]
    pub fn new(topology: &Topology, findings: Vec<Finding>, duration: Duration) -> Self {
        let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
        Self {
            schema: SCHEMA,
            quell_version: env!("CARGO_PKG_VERSION"),
            duration_s: duration.as_secs_f64(),
            machine: Machine::new(topology),
            problems: count(Severity::Problem),
            warnings: count(Severity::Warning),
            findings,
        }
    }
}
