//! Colors in the form that leaves the program: schemas `quell.colors/1` and `quell.colors-check/1`, see
//! `docs/json.md`.

use quell_core::{Bytes, CpuId};
use quell_topology::Topology;
use serde::Serialize;

use super::agreement::Agreement;
use super::classify::{Classification, Effort};
use super::frames::Prediction;
use super::partition::{Arm, Partition, Verdict};
use super::permutation::Permutations;
use crate::scan::report::Machine;

/// Name and version of the schema of a classification.
pub const SCHEMA: &str = "quell.colors/1";
/// Name and version of the schema of a check.
pub const CHECK_SCHEMA: &str = "quell.colors-check/1";

/// A classification, what confirms it, and what follows from it.
#[derive(Clone, Debug, Serialize)]
pub struct ColorsReport {
    /// Name and version of the schema.
    pub schema: &'static str,
    /// What it ran on.
    pub machine: Machine,
    /// The CPU whose L2 sorted the pages.
    pub cpu: CpuId,
    /// Size of that L2.
    pub l2_bytes: Bytes,
    /// Its ways.
    pub l2_ways: u32,
    /// Pages sorted.
    pub pool_pages: u32,
    /// Pages without a color.
    pub unknown_pages: usize,
    /// What sorting took.
    pub effort: Effort,
    /// The colors.
    pub colors: Vec<ColorReport>,
    /// A second, independent classification of the same pages at other page offsets.
    pub second_pass: Option<SecondPass>,
    /// Why there is none.
    pub second_pass_reason: Option<String>,
    /// Pages by permutation of address bits 9 to 11, relative to a page of their color.
    pub permutation_pages: [u32; 8],
    /// Whether pages differ in it.
    pub permuted: bool,
    /// What guest-physical addresses tell of colors.
    pub guest_frames: Option<Prediction>,
    /// Why that is not known.
    pub guest_frames_reason: Option<String>,
    /// Whether colors partition the LLC, where asked for.
    pub llc: Option<LlcReport>,
    /// Why that is not known.
    pub llc_reason: Option<String>,
}

/// One color.
#[derive(Clone, Debug, Serialize)]
pub struct ColorReport {
    /// Its number in this run.
    pub color: u32,
    /// Its pages.
    pub pages: usize,
    /// Those that have a color in the second pass, too …
    pub compared: Option<u32>,
    /// … and whose color there is this one's partner.
    pub agreeing: Option<u32>,
}

/// The second classification against the first.
#[derive(Clone, Debug, Serialize)]
pub struct SecondPass {
    /// Colors found.
    pub colors: usize,
    /// Pages without a color.
    pub unknown_pages: usize,
    /// Pages that have a color in both.
    pub compared: u32,
    /// Those of them whose colors agree.
    pub agreeing: u32,
    /// The same in percent; `None` if no page was compared.
    pub agreeing_pct: Option<f64>,
    /// Pages by color in the first (outer) and the second pass (inner).
    pub table: Vec<Vec<u32>>,
}

/// The test of the LLC.
#[derive(Clone, Debug, Serialize)]
pub struct LlcReport {
    /// `partitioned`, `shared`, or unknown with the reason.
    pub verdict: Verdict,
    /// Lines of the canary.
    pub canary_lines: usize,
    /// Size of a stream.
    pub stream_bytes: Bytes,
    /// By stream.
    pub arms: Vec<Arm>,
}

impl ColorsReport {
    /// A report of a classification and its permutations; the rest is added by the caller.
    #[must_use]
    pub fn new(topology: &Topology, cpu: CpuId, sorted: &Classification, found: &Permutations) -> Self {
        let color = |(color, pages)| ColorReport { color, pages, compared: None, agreeing: None };
        Self {
            schema: SCHEMA,
            machine: Machine::new(topology),
            cpu,
            l2_bytes: sorted.l2.size,
            l2_ways: sorted.l2.ways,
            pool_pages: sorted.pool.count,
            unknown_pages: sorted.unknown(),
            effort: sorted.effort,
            colors: (0..).zip(sorted.counts()).map(color).collect(),
            second_pass: None,
            second_pass_reason: None,
            permutation_pages: found.counts,
            permuted: found.permuted(),
            guest_frames: None,
            guest_frames_reason: None,
            llc: None,
            llc_reason: None,
        }
    }

    /// Adds the second pass, or why it failed.
    pub fn second_pass(&mut self, first: &Classification, second: Result<Classification, String>) {
        match second {
            Ok(second) => {
                let agreement = Agreement::between(first, &second);
                for (color, (row, partner)) in
                    self.colors.iter_mut().zip(agreement.table.iter().zip(&agreement.partner))
                {
                    color.compared = Some(row.iter().sum());
                    color.agreeing = Some(partner.map_or(0, |partner| row[partner]));
                }
                self.second_pass = Some(SecondPass::new(&agreement, &second));
            }
            Err(reason) => self.second_pass_reason = Some(reason),
        }
    }

    /// Adds the test of the LLC, or why it could not run.
    pub fn llc(&mut self, outcome: Result<Partition, String>) {
        match outcome {
            Ok(Partition { arms, verdict, stream, canary_lines }) => {
                self.llc = Some(LlcReport { verdict, canary_lines, stream_bytes: stream, arms });
            }
            Err(reason) => self.llc_reason = Some(reason),
        }
    }
}

impl SecondPass {
    fn new(agreement: &Agreement, second: &Classification) -> Self {
        Self {
            colors: second.colors(),
            unknown_pages: second.unknown(),
            compared: agreement.compared,
            agreeing: agreement.agreeing,
            agreeing_pct: agreement.share().map(|share| share * 100.0),
            table: agreement.table.clone(),
        }
    }
}

/// A classification repeated after a while, with the pages held.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// Name and version of the schema.
    pub schema: &'static str,
    /// What it ran on.
    pub machine: Machine,
    /// The CPU whose L2 sorted the pages.
    pub cpu: CpuId,
    /// Pages sorted.
    pub pool_pages: u32,
    /// Time between the two classifications, in s.
    pub after_s: f64,
    /// Colors found first.
    pub colors: usize,
    /// Pages without a color at first.
    pub unknown_pages: usize,
    /// The second classification against the first.
    pub again: SecondPass,
}

impl CheckReport {
    /// Compares two classifications of the same pages, `after_s` seconds apart.
    #[must_use]
    pub fn new(
        topology: &Topology,
        cpu: CpuId,
        first: &Classification,
        again: &Classification,
        after_s: f64,
    ) -> Self {
        Self {
            schema: CHECK_SCHEMA,
            machine: Machine::new(topology),
            cpu,
            pool_pages: first.pool.count,
            after_s,
            colors: first.colors(),
            unknown_pages: first.unknown(),
            again: SecondPass::new(&Agreement::between(first, again), again),
        }
    }
}
