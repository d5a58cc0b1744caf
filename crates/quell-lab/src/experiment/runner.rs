//! Running an experiment: kernels first, then one fresh guest after another.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::analysis::{GuestSamples, Table};
use super::file::{Arm, Experiment};
use super::output::{GuestRecord, Host, RunRecord, SCHEMA, healthy, write};
use super::schedule::schedule;
use super::trace::{TracePlan, TracedGuest};
use crate::Stop;
use crate::cache::{Cache, sha256, write_whole};
use crate::error::{IoContext, LabError, Result};
use crate::guest::{Accelerator, Guest, JobOutput, Launch, Qemu, kernel_cmdline, probe};
use crate::initramfs;
use crate::kernel::{self, Flavor, Kernel, Progress, Source};
use crate::protocol::Job;

/// How long a guest may take to power off after its job.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(20);

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
/// Guests that fail are part of the result. On Ctrl-C what was measured by then is written, and the error is
/// [`LabError::Interrupted`].
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
    let initramfs = initramfs::build(lab.cache, lab.agent)?;
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
        traces: Vec::new(),
        warnings: Vec::new(),
    };
    let mut samples = Vec::new();
    let order = schedule(experiment.arms.len(), experiment.design.guests_per_arm);
    let mut interrupted = false;
    for (index, &arm) in order.iter().enumerate() {
        let arm = &experiment.arms[arm];
        on_event(RunEvent::Guest {
            number: index + 1,
            of: order.len(),
            arm: arm.name.clone(),
            traced: false,
        });
        let one = OneGuest {
            experiment,
            arm,
            kernel: &kernels[&arm.kernel],
            qemu: &qemu,
            initramfs: &initramfs,
            accelerator: record.accelerator,
            directory: format!("guests/{index:03}-{}", arm.name),
            dir: &dir,
            trace: None,
        };
        match one.run(index, stop) {
            Ok((guest, own)) => {
                if let Some(failure) = &guest.failure {
                    on_event(RunEvent::Failed { number: index + 1, reason: failure.to_string() });
                }
                record.guests.push(guest);
                samples.push((index, own));
            }
            Err(LabError::Interrupted) => {
                interrupted = true;
                break;
            }
            Err(error) => return Err(error),
        }
    }
    if let (Some(plan), false) = (trace, interrupted) {
        let order = schedule(experiment.arms.len(), plan.guests_per_arm);
        for (index, &arm) in order.iter().enumerate() {
            let arm = &experiment.arms[arm];
            on_event(RunEvent::Guest {
                number: index + 1,
                of: order.len(),
                arm: arm.name.clone(),
                traced: true,
            });
            let one = OneGuest {
                experiment,
                arm,
                kernel: &kernels[&arm.kernel],
                qemu: &qemu,
                initramfs: &initramfs,
                accelerator: record.accelerator,
                directory: format!("guests/trace-{index:03}-{}", arm.name),
                dir: &dir,
                trace: Some(plan),
            };
            match one.run(index, stop) {
                Ok((guest, _)) => {
                    let traced = TracedGuest::read(&dir.join(&guest.directory), plan, guest);
                    let failure = traced.guest.failure.as_ref().map(ToString::to_string);
                    if let Some(reason) = failure.or(traced.problem.clone()) {
                        on_event(RunEvent::Failed { number: index + 1, reason });
                    }
                    record.traces.push(traced);
                }
                Err(LabError::Interrupted) => {
                    interrupted = true;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
    }
    let arms = record.arms();
    let table = Table::new(&healthy(&record, &samples));
    record.summaries = table.summaries(&arms);
    record.comparisons = table.comparisons(&arms);
    record.warnings = warnings(&record, order.len());
    write(&dir, &record, &samples)?;
    if interrupted { Err(LabError::Interrupted) } else { Ok((dir, record)) }
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

struct OneGuest<'a> {
    experiment: &'a Experiment,
    arm: &'a Arm,
    kernel: &'a Kernel,
    qemu: &'a Qemu,
    initramfs: &'a Path,
    accelerator: Accelerator,
    directory: String,
    dir: &'a Path,
    trace: Option<&'a TracePlan>,
}

impl OneGuest<'_> {
    fn run(&self, index: usize, stop: &Stop) -> Result<(GuestRecord, GuestSamples)> {
        let dir = self.dir.join(&self.directory);
        fs::create_dir_all(&dir).context("create", &dir)?;
        let cmdline = kernel_cmdline(&self.experiment.guest, &self.arm.cmdline);
        let launch = Launch {
            qemu: self.qemu,
            spec: &self.experiment.guest,
            accelerator: self.accelerator,
            kernel: &self.kernel.image,
            initramfs: self.initramfs,
            cmdline: cmdline.clone(),
            console_file: Some(dir.join("console.log")),
        };
        let mut record = GuestRecord {
            index,
            arm: self.arm.name.clone(),
            directory: self.directory.clone(),
            cmdline,
            kernel: self.kernel.info.key.clone(),
            ..GuestRecord::default()
        };
        let mut output = JobOutput::default();
        let start = Instant::now();
        let ended = match Guest::boot(&launch, stop)? {
            Err(ended) => *ended,
            Ok(mut guest) => {
                record.boot_seconds = Some(start.elapsed().as_secs_f64());
                record.hello = guest.hello.clone();
                let job = Instant::now();
                let outcome = guest.run(&self.job(), &mut output)?;
                record.job_seconds = Some(job.elapsed().as_secs_f64());
                match outcome {
                    Ok(()) => guest.end(SHUTDOWN_GRACE),
                    Err(failure) => guest.end_with(Some(failure)),
                }
            }
        };
        if !ended.qemu_errors.is_empty() {
            write_whole(&dir.join("qemu.log"), ended.qemu_errors.as_bytes())?;
        }
        if !output.log.is_empty() {
            write_whole(&dir.join("job.log"), output.log.join("\n").as_bytes())?;
        }
        for file in &output.files {
            let name = file.path.trim_start_matches('/').replace('/', "_");
            write_whole(&dir.join(name), &file.content)?;
        }
        record.settings = output.settings;
        record.vmstat = output.vmstat;
        record.samples = output.samples.len();
        record.splats = ended.splats;
        record.failure = ended.failure;
        Ok((record, GuestSamples { arm: self.arm.name.clone(), samples: output.samples }))
    }

    fn job(&self) -> Job {
        Job {
            workload: match self.trace {
                Some(plan) => plan.workload(&self.experiment.workload),
                None => self.experiment.workload.clone(),
            },
            sysctl: self.arm.sysctl.clone(),
            collect: self.experiment.collect.clone(),
            trace: self.trace.map(TracePlan::tracing),
            timeout_s: self.experiment.design.job_timeout_s,
        }
    }
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
    for summary in &record.summaries {
        for name in ["failed", "misplaced", "corrupt"] {
            let count = summary.counts.get(name).copied().unwrap_or(0);
            if count > 0 {
                let dimensions: Vec<String> =
                    summary.dimensions.iter().map(|(name, value)| format!("{name}={value}")).collect();
                warnings.push(format!("{} ({}): {count} pages {name}", summary.arm, dimensions.join(" ")));
            }
        }
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
