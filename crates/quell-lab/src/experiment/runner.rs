//! Running an experiment: kernels first, then one fresh guest after another.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::SystemTime;

use super::bench::Bench;
use super::file::Experiment;
use super::output::{Host, RunRecord, SCHEMA, write};
use super::trace::TracedGuest;
use crate::Stop;
use crate::cache::{Cache, need_space, sha256, write_whole};
use crate::error::{IoContext, LabError, Result};
use crate::guest::{Accelerator, Qemu, probe};
use crate::initramfs;
use crate::kernel::{self, Flavor, Kernel, Progress, Source};
use crate::program;
use crate::protocol::Workload;

/// Space for the results of a run, in MiB: samples, consoles and traces.
const RUN_MIB: u64 = 64;

/// What every experiment needs.
#[derive(Debug)]
pub struct Lab<'a> {
    /// The checkout.
    pub repo: &'a Path,
    /// The cache.
    pub cache: &'a Cache,
    /// The binary that becomes the guests' agent: this program.
    pub agent: &'a Path,
    /// Where kernels come from.
    pub source: &'a Source,
}

/// Choices of one run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Directory for results; the run makes one below it.
    pub output: PathBuf,
    /// Also run traced guests, as the experiment's `[trace]` says.
    pub trace: bool,
}

/// What is going on.
#[derive(Debug)]
pub enum RunEvent {
    /// A kernel is being built.
    Kernel(Progress),
    /// The accelerators are being probed.
    Probing,
    /// A guest starts.
    Guest {
        /// Its number, from 1.
        number: usize,
        /// Of how many.
        of: usize,
        /// Its arm.
        arm: String,
        /// It is a traced one.
        traced: bool,
    },
    /// A guest failed; the others go on.
    Failed {
        /// Its number, from 1.
        number: usize,
        /// Why.
        reason: String,
    },
}

/// Runs the experiment and returns the directory of the results and what `run.json` there says.
///
/// Guests that fail are part of the result. On Ctrl-C after the first guest has started, what was measured by then
/// is the result, and says so.
///
/// # Errors
/// If a kernel cannot be built, nothing boots, or the results cannot be written.
pub fn run(
    lab: &Lab<'_>,
    experiment: &Experiment,
    options: &RunOptions,
    stop: &Stop,
    on_event: &mut dyn FnMut(RunEvent),
) -> Result<(PathBuf, RunRecord)> {
    let trace = match (&experiment.trace, options.trace) {
        (None, true) => {
            return Err(LabError::BadExperiment {
                path: experiment.name.clone().into(),
                reason: String::from("it has no [trace] section, which says what --trace records"),
            });
        }
        (trace, wanted) => trace.as_ref().filter(|_| wanted),
    };
    let qemu = Qemu::find()?;
    qemu.check(&experiment.guest)?;
    let extra = match &experiment.workload {
        Workload::Program(program) => vec![program::compile(lab.cache, lab.repo, program)?],
        Workload::Migrate(_) | Workload::Quell(_) => Vec::new(),
    };
    let initramfs = initramfs::build(lab.cache, lab.agent, &extra)?;
    let kernels = build_kernels(lab, experiment, stop, on_event)?;
    let any = kernels.values().next().ok_or_else(|| LabError::BadExperiment {
        path: experiment.name.clone().into(),
        reason: String::from("it has no arms"),
    })?;
    on_event(RunEvent::Probing);
    let probe = probe(lab.cache, &qemu, any, &initramfs, stop)?;
    let started = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let stamp = started.replace([':', '-'], "");
    let dir = options.output.join(format!("{}-{stamp}", experiment.name));
    fs::create_dir_all(&dir).context("create", &dir)?;
    let hint = "free some space, or choose another directory with --output";
    if let Err(full) = need_space(&dir, "a run", RUN_MIB, hint) {
        let _ = fs::remove_dir(&dir);
        return Err(full);
    }
    let file = lab.repo.join("experiments").join(format!("{}.toml", experiment.name));
    let text = fs::read(&file).context("read", &file)?;
    write_whole(&dir.join("experiment.toml"), &text)?;

    let mut record = RunRecord {
        schema: SCHEMA.to_owned(),
        name: experiment.name.clone(),
        started,
        experiment: experiment.clone(),
        experiment_sha256: sha256(&text),
        quell: env!("CARGO_PKG_VERSION").to_owned(),
        qemu: qemu.version.clone(),
        accelerator: probe.accelerator,
        probe,
        kernels: kernels
            .iter()
            .map(|(flavor, kernel)| (flavor.name().to_owned(), kernel.info.clone()))
            .collect(),
        host: Host::read(Path::new("/")),
        percentiles: String::from(
            "median and p99_nearest_rank: smallest value with at least that share of the samples at or below it; \
             p99_floor: element floor(0.99 (n - 1)) of the sorted samples, counted from 0",
        ),
        guests: Vec::new(),
        summaries: Vec::new(),
        comparisons: Vec::new(),
        targets: Vec::new(),
        interrupted: false,
        traces: Vec::new(),
        warnings: Vec::new(),
    };
    let bench = Bench {
        experiment,
        kernels: &kernels,
        qemu: &qemu,
        initramfs: &initramfs,
        accelerator: record.accelerator,
        dir: &dir,
        stop,
    };
    let mut samples = Vec::new();
    let planned = experiment.design.guests_per_arm;
    record.interrupted = !bench.each(planned, None, on_event, &mut |index, guest, own| {
        let problem = guest.failure.as_ref().map(ToString::to_string);
        record.guests.push(guest);
        samples.push((index, own));
        problem
    })?;
    if let (Some(plan), false) = (trace, record.interrupted) {
        record.interrupted = !bench.each(plan.guests_per_arm, trace, on_event, &mut |_, guest, _| {
            let traced = TracedGuest::read(&dir.join(&guest.directory), plan, guest);
            let failure = traced.guest.failure.as_ref().map(ToString::to_string);
            let problem = failure.or(traced.problem.clone());
            record.traces.push(traced);
            problem
        })?;
    }
    record.conclude(&samples);
    record.warnings = warnings(&record, planned as usize * experiment.arms.len());
    write(&dir, &record, &samples)?;
    Ok((dir, record))
}

fn build_kernels(
    lab: &Lab<'_>,
    experiment: &Experiment,
    stop: &Stop,
    on_event: &mut dyn FnMut(RunEvent),
) -> Result<BTreeMap<Flavor, Kernel>> {
    let mut kernels = BTreeMap::new();
    for arm in &experiment.arms {
        let Entry::Vacant(vacant) = kernels.entry(arm.kernel) else { continue };
        let jobs = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let (repo, cache, source) = (lab.repo, lab.cache, lab.source);
        let build = kernel::Build { repo, cache, source, flavor: arm.kernel, jobs };
        vacant.insert(build.run(stop, &mut |progress| on_event(RunEvent::Kernel(progress)))?);
    }
    Ok(kernels)
}

fn warnings(record: &RunRecord, planned: usize) -> Vec<String> {
    let mut warnings = Vec::new();
    if record.accelerator == Accelerator::Tcg {
        let why = record.probe.kvm_problem.as_deref().unwrap_or("unknown why");
        warnings.push(format!(
            "TCG, not KVM ({why}): absolute times mean nothing, only ratios within this run and counts; KVM: not measured"
        ));
    }
    if record.guests.len() < planned {
        warnings.push(format!("interrupted after {} of {planned} guests", record.guests.len()));
    }
    for guest in &record.guests {
        if let Some(failure) = &guest.failure {
            warnings.push(format!("guest {} ({}) is left out: {failure}", guest.index, guest.arm));
        }
    }
    for (summary, what, count) in record.lost_pages() {
        let dimensions: Vec<String> =
            summary.dimensions.iter().map(|(name, value)| format!("{name}={value}")).collect();
        warnings.push(format!("{} ({}): {count} pages {what}", summary.arm, dimensions.join(" ")));
    }
    warnings.extend(record.traces.iter().flat_map(TracedGuest::warnings));
    let settings = record.guests.iter().find_map(|guest| guest.settings.as_ref());
    if let Some(settings) = settings {
        warnings.extend(settings.warnings());
    }
    if let (Some(load), cpus) = (record.host.load, record.host.cpus)
        && load > cpus as f64 * 0.5
    {
        warnings.push(format!("the host was busy before the first guest: load {load} on {cpus} CPUs"));
    }
    warnings
}
