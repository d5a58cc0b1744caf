//! Taking the samples.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::plan::{Call, Case, Plan, Toucher};
use crate::settings::memory_nodes;
use crate::sys::{Region, allowed_cpus, pin};
use crate::{MigrateError, Result};

/// One timed call and what became of its pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// What was called, with the nodes filled in.
    #[serde(flatten)]
    pub case: Case,
    /// Duration of the system call alone, in nanoseconds.
    pub nanos: u64,
    /// Pages whose status is the node asked for (for a query: any node).
    pub arrived: u32,
    /// Pages whose status is an error, counted by error number.
    pub errors: BTreeMap<i32, u32>,
    /// Pages that a query afterwards finds elsewhere than they should be.
    pub misplaced: u32,
    /// Pages whose content or a write to them went wrong.
    pub corrupt: u32,
}

impl Sample {
    /// Pages that did not get to where they should.
    #[must_use]
    pub fn failed(&self) -> u32 {
        self.case.pages - self.arrived
    }
}

/// Executes a plan on this machine. Ends early, with the samples so far, at the `deadline`.
///
/// The thread stays pinned to the plan's CPU during the run and gets its CPUs back afterwards.
///
/// # Errors
/// If the plan does not fit this machine or a system call fails as a whole; pages that were refused are
/// counted in their sample instead.
pub fn run(plan: &Plan, deadline: Option<Instant>) -> Result<Vec<Sample>> {
    run_announced(plan, deadline, &mut |_| ())
}

/// As [`run`], and calls `announce` right before each call that is timed, so that a trace can be labeled.
///
/// # Errors
/// As [`run`].
pub fn run_announced(
    plan: &Plan,
    deadline: Option<Instant>,
    announce: &mut dyn FnMut(&Case),
) -> Result<Vec<Sample>> {
    let cases = plan.resolve(&memory_nodes(Path::new("/")))?;
    let allowed = allowed_cpus()?;
    if !allowed.contains(&plan.cpu) {
        return Err(MigrateError::BadPlan { reason: format!("CPU {} is not one of {allowed:?}", plan.cpu) });
    }
    let needs_helper = cases.iter().any(|case| case.touched_by == Toucher::Other);
    let other = allowed.iter().copied().find(|cpu| *cpu != plan.cpu);
    let helper = match (needs_helper, other) {
        (true, Some(cpu)) => Some(Helper::start(cpu)),
        (true, None) => {
            return Err(MigrateError::BadPlan {
                reason: String::from("`touched_by = other` needs a second CPU"),
            });
        }
        (false, _) => None,
    };
    pin(&[plan.cpu])?;
    let samples = take(plan, &cases, helper.as_ref(), deadline, announce);
    pin(&allowed)?;
    samples
}

fn take(
    plan: &Plan,
    cases: &[Case],
    helper: Option<&Helper>,
    deadline: Option<Instant>,
    announce: &mut dyn FnMut(&Case),
) -> Result<Vec<Sample>> {
    let bind = memory_nodes(Path::new("/")).len() > 1;
    let mut samples = Vec::with_capacity(plan.samples as usize * cases.len());
    for round in 0..plan.warmup + plan.samples {
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            break;
        }
        for case in cases {
            let sample = one(case, u64::from(round), bind, helper, announce)?;
            if round >= plan.warmup {
                samples.push(sample);
            }
        }
    }
    Ok(samples)
}

fn one(
    case: &Case,
    seed: u64,
    bind: bool,
    helper: Option<&Helper>,
    announce: &mut dyn FnMut(&Case),
) -> Result<Sample> {
    let mut region = Region::new(case.pages as usize)?;
    let from = case.from.unwrap_or_default();
    if bind {
        region.bind(from)?;
    }
    match (case.touched_by, helper) {
        (Toucher::Other, Some(helper)) => region = helper.fill(region, seed)?,
        _ => region.fill(seed),
    }
    let mut call = region.call(case.to);
    announce(case);
    let took = call.make()?;
    let goal = case.to.unwrap_or(from).cast_signed();
    let mut errors = BTreeMap::new();
    for &status in call.status().iter().filter(|status| **status < 0) {
        *errors.entry(-status).or_insert(0) += 1;
    }
    let arrived = match case.call {
        Call::Query => call.status().iter().filter(|status| **status >= 0).count(),
        Call::Noop | Call::Move => call.status().iter().filter(|status| **status == goal).count(),
    };
    drop(call);
    let mut query = region.call(None);
    query.make()?;
    let misplaced = query.status().iter().filter(|status| **status != goal).count() as u32;
    drop(query);
    let corrupt = region.wrong_pages(seed) + region.failed_writes(seed);
    Ok(Sample {
        case: case.clone(),
        nanos: took.as_nanos() as u64,
        arrived: arrived as u32,
        errors,
        misplaced,
        corrupt,
    })
}

/// A thread on another CPU that faults pages in.
struct Helper {
    cpu: u32,
    work: Option<SyncSender<(Region, u64)>>,
    done: Receiver<Result<Region>>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    fn start(cpu: u32) -> Self {
        let (work, jobs) = sync_channel::<(Region, u64)>(0);
        let (answer, done) = sync_channel(1);
        let thread = thread::spawn(move || {
            let pinned = pin(&[cpu]);
            let mut failure = pinned.err();
            while let Ok((mut region, seed)) = jobs.recv() {
                let result = match failure.take() {
                    Some(error) => Err(error),
                    None => {
                        region.fill(seed);
                        Ok(region)
                    }
                };
                if answer.send(result).is_err() {
                    break;
                }
            }
        });
        Self { cpu, work: Some(work), done, thread: Some(thread) }
    }

    fn fill(&self, region: Region, seed: u64) -> Result<Region> {
        let gone = || MigrateError::HelperGone { cpu: self.cpu };
        let work = self.work.as_ref().ok_or_else(gone)?;
        work.send((region, seed)).map_err(|_| gone())?;
        self.done.recv().map_err(|_| gone())?
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
