//! The measurement of the machine itself, in seconds and without privilege.

use std::path::Path;
use std::time::{Duration, Instant};

use quell_core::stats::{quantile, quantile_floor};
use serde::Serialize;

use crate::plan::{Call, Case, Plan, Toucher};
use crate::recommend::{Recommendation, recommend};
use crate::run::{Sample, run};
use crate::settings::{Settings, memory_nodes};
use crate::sys::{allowed_cpus, fault_and_copy};
use crate::{MigrateError, Result};

/// Name and version of the JSON form of [`Survey`].
pub const SCHEMA: &str = "quell.migrate/1";

/// How to measure the machine.
#[derive(Clone, Debug)]
pub struct SurveyOptions {
    /// Pages in one call, each size in turn.
    pub pages: Vec<u32>,
    /// Samples of each kind of call.
    pub samples: u32,
    /// End early after this time, with the samples taken by then.
    pub time_limit: Duration,
    /// Longest call that the user can bear at the 99th percentile.
    pub budget: Option<Duration>,
}

impl Default for SurveyOptions {
    /// Batches of 1 to 256 pages, 300 samples each, 20 s at most, no budget.
    fn default() -> Self {
        Self {
            pages: vec![1, 4, 16, 64, 256],
            samples: 300,
            time_limit: Duration::from_secs(20),
            budget: None,
        }
    }
}

/// What one kind of call cost.
#[derive(Clone, Debug, Serialize)]
pub struct CaseSummary {
    /// The call.
    #[serde(flatten)]
    pub case: Case,
    /// Calls measured.
    pub samples: usize,
    /// Median duration, nearest rank, in nanoseconds.
    pub median_ns: f64,
    /// 99th percentile as element `floor(0.99 (n − 1))` of the sorted samples, in nanoseconds.
    pub p99_floor_ns: f64,
    /// 99th percentile by nearest rank, in nanoseconds.
    pub p99_nearest_rank_ns: f64,
    /// Longest call, in nanoseconds.
    pub max_ns: f64,
    /// Pages that did not arrive, over all calls.
    pub failed_pages: u64,
    /// Pages found elsewhere afterwards.
    pub misplaced_pages: u64,
    /// Pages with wrong content.
    pub corrupt_pages: u64,
}

/// The result of [`survey`].
#[derive(Clone, Debug, Serialize)]
pub struct Survey {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Version of the running kernel.
    pub kernel: String,
    /// CPU that made the calls.
    pub cpu: u32,
    /// Nodes with memory.
    pub nodes: Vec<u32>,
    /// What else may have moved pages.
    pub settings: Settings,
    /// Median of an empty measurement: the clock's own share of every sample, in nanoseconds.
    pub clock_ns: f64,
    /// Faulting in and filling a fresh page, in nanoseconds; a move copies at least that much.
    pub copy_ns: f64,
    /// The kinds of call.
    pub cases: Vec<CaseSummary>,
    /// What a call waits before it moves the first page, in nanoseconds: the median of the no-op move less that of the
    /// query, for the smallest batch; `None` if they were not both measured, or the query took longer.
    pub fixed_cost_ns: Option<f64>,
    /// What that means, in a sentence.
    pub verdict: String,
    /// Batch size for the budget, if there was one.
    pub recommendation: Option<Recommendation>,
    /// What limits these numbers.
    pub warnings: Vec<String>,
}

/// Measures this machine: the query form and the no-op move for every batch size, and real moves if a second
/// node has memory.
///
/// # Errors
/// If the system call is not allowed here, or the options ask for nothing.
pub fn survey(options: &SurveyOptions) -> Result<Survey> {
    let root = Path::new("/");
    let nodes = memory_nodes(root);
    let cpus = allowed_cpus()?;
    let cpu =
        *cpus.first().ok_or_else(|| MigrateError::BadPlan { reason: String::from("no CPU is allowed") })?;
    let settings = Settings::read(root);
    let mut warnings = settings.warnings();
    if nodes.len() < 2 {
        warnings.push(String::from(
            "only one node has memory: the no-op move shows the fixed cost of a call, real moves cannot be measured",
        ));
    }
    let plan =
        Plan { samples: options.samples, warmup: 10, cpu, cases: cases(&options.pages, nodes.len() > 1) };
    let samples = run(&plan, Some(Instant::now() + options.time_limit))?;
    let taken = samples.len() / plan.cases.len();
    if taken < options.samples as usize {
        warnings.push(format!("the time limit ended the run after {taken} of {} samples", options.samples));
    }
    let cases: Vec<CaseSummary> = summarize(&samples);
    let copy_ns = copy_cost()?;
    let (fixed_cost_ns, verdict) = fixed_cost(&cases);
    let recommendation = options.budget.map(|budget| recommend(&cases, copy_ns, budget));
    Ok(Survey {
        schema: SCHEMA,
        kernel: kernel_release(),
        cpu,
        nodes,
        settings,
        clock_ns: clock_cost(),
        copy_ns,
        cases,
        fixed_cost_ns,
        verdict,
        recommendation,
        warnings,
    })
}

fn cases(pages: &[u32], moves: bool) -> Vec<Case> {
    let calls: &[Call] =
        if moves { &[Call::Query, Call::Noop, Call::Move] } else { &[Call::Query, Call::Noop] };
    let case = |call, pages| Case { call, pages, touched_by: Toucher::Same, from: None, to: None };
    calls.iter().flat_map(|&call| pages.iter().map(move |&pages| case(call, pages))).collect()
}

/// One summary for each case, in the order of their first samples.
pub(crate) fn summarize(samples: &[Sample]) -> Vec<CaseSummary> {
    let mut cases: Vec<&Case> = Vec::new();
    for sample in samples {
        if !cases.contains(&&sample.case) {
            cases.push(&sample.case);
        }
    }
    cases
        .into_iter()
        .filter_map(|case| {
            let of_case: Vec<&Sample> = samples.iter().filter(|sample| sample.case == *case).collect();
            let nanos: Vec<f64> = of_case.iter().map(|sample| sample.nanos as f64).collect();
            let sum = |count: fn(&Sample) -> u32| of_case.iter().map(|sample| u64::from(count(sample))).sum();
            Some(CaseSummary {
                case: case.clone(),
                samples: nanos.len(),
                median_ns: quantile(&nanos, 0.5)?,
                p99_floor_ns: quantile_floor(&nanos, 0.99)?,
                p99_nearest_rank_ns: quantile(&nanos, 0.99)?,
                max_ns: quantile(&nanos, 1.0)?,
                failed_pages: sum(Sample::failed),
                misplaced_pages: sum(|sample| sample.misplaced),
                corrupt_pages: sum(|sample| sample.corrupt),
            })
        })
        .collect()
}

/// A no-op move above this multiple of the query form holds more than the walk over the page tables.
const WAITS_ABOVE: f64 = 5.0;

/// [`Survey::fixed_cost_ns`] and [`Survey::verdict`].
fn fixed_cost(cases: &[CaseSummary]) -> (Option<f64>, String) {
    let smallest =
        |call| cases.iter().filter(|s| s.case.call == call).min_by_key(|summary| summary.case.pages);
    let pair = smallest(Call::Query).zip(smallest(Call::Noop));
    let Some((query, noop)) = pair.filter(|(query, noop)| query.case.pages == noop.case.pages) else {
        return (
            None,
            String::from("Unknown what a call waits for: no query and no-op of the same size were measured."),
        );
    };
    let fixed = noop.median_ns - query.median_ns;
    let micros = |nanos: f64| format!("{:.1} us", nanos / 1e3);
    let text = if noop.median_ns > WAITS_ABOVE * query.median_ns {
        format!(
            "Every call waits about {} before it moves the first page (a no-op move takes {:.0} times as long as a query). \
             Stock kernels wait here for RCU and for all CPUs to empty their LRU batches; the price is one per call, so \
             larger batches share it.",
            micros(fixed),
            noop.median_ns / query.median_ns
        )
    } else {
        format!(
            "Calls do not wait before they move pages (a no-op move takes {} longer than a query).",
            micros(fixed.max(0.0))
        )
    };
    ((fixed >= 0.0).then_some(fixed), text)
}

fn clock_cost() -> f64 {
    let empty = |_| Instant::now().elapsed().as_nanos() as f64;
    quantile(&(0..1000).map(empty).collect::<Vec<_>>(), 0.5).unwrap_or_default()
}

fn copy_cost() -> Result<f64> {
    let mut nanos = Vec::new();
    for _ in 0..11 {
        nanos.push(fault_and_copy(256)?.as_nanos() as f64);
    }
    Ok(quantile(&nanos, 0.5).unwrap_or_default())
}

fn kernel_release() -> String {
    nix::sys::utsname::uname()
        .map_or_else(|_| String::new(), |name| name.release().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(call: Call, pages: u32, median_ns: f64) -> CaseSummary {
        CaseSummary {
            case: Case { call, pages, touched_by: Toucher::Same, from: None, to: None },
            samples: 300,
            median_ns,
            p99_floor_ns: median_ns,
            p99_nearest_rank_ns: median_ns,
            max_ns: median_ns,
            failed_pages: 0,
            misplaced_pages: 0,
            corrupt_pages: 0,
        }
    }

    #[test]
    fn the_fixed_cost_is_that_of_the_smallest_batch() {
        let (query, noop) = (summary(Call::Query, 4, 1e3), summary(Call::Noop, 4, 51e3));
        let (fixed, text) =
            fixed_cost(&[summary(Call::Query, 16, 9e3), query.clone(), noop, summary(Call::Noop, 16, 99e3)]);
        assert_eq!(fixed, Some(50e3));
        assert!(text.contains("waits about 50.0 us") && text.contains("51 times"), "{text}");

        let (fixed, text) = fixed_cost(&[query.clone(), summary(Call::Noop, 4, 1.5e3)]);
        assert_eq!(fixed, Some(500.0));
        assert!(text.contains("do not wait"), "{text}");
        assert_eq!(fixed_cost(&[query.clone(), summary(Call::Noop, 4, 0.9e3)]).0, None);
        assert_eq!(fixed_cost(&[query, summary(Call::Noop, 16, 9e3)]).0, None);
    }
}
