//! The guests of an experiment, one after another: boot, job, end, and what each leaves in its directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::analysis::GuestSamples;
use super::file::{Arm, Experiment};
use super::output::GuestRecord;
use super::runner::RunEvent;
use super::schedule::schedule;
use super::trace::TracePlan;
use crate::Stop;
use crate::cache::write_whole;
use crate::error::{IoContext, LabError, Result};
use crate::guest::{Accelerator, Ended, Guest, JobOutput, Launch, Qemu, kernel_cmdline};
use crate::kernel::{Flavor, Kernel};
use crate::protocol::Job;

/// How long a guest may take to power off after its job.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(20);

/// What all guests of an experiment have in common.
pub(super) struct Bench<'a> {
    pub(super) experiment: &'a Experiment,
    pub(super) kernels: &'a BTreeMap<Flavor, Kernel>,
    pub(super) qemu: &'a Qemu,
    pub(super) initramfs: &'a Path,
    pub(super) accelerator: Accelerator,
    /// Directory of the run.
    pub(super) dir: &'a Path,
    pub(super) stop: &'a Stop,
}

/// Takes a guest's number, record and samples, and returns what is to be reported about it.
type Keep<'a> = dyn FnMut(usize, GuestRecord, GuestSamples) -> Option<String> + 'a;

impl Bench<'_> {
    /// Runs so many fresh guests of each arm, interleaved, traced if there is a plan for it. `false`: Ctrl-C ended it.
    ///
    /// # Errors
    /// If guests cannot be started at all, or their files not written.
    pub(super) fn each(
        &self,
        guests_per_arm: u32,
        trace: Option<&TracePlan>,
        on_event: &mut dyn FnMut(RunEvent),
        keep: &mut Keep<'_>,
    ) -> Result<bool> {
        let order = schedule(self.experiment.arms.len(), guests_per_arm);
        for (index, &arm) in order.iter().enumerate() {
            let arm = &self.experiment.arms[arm];
            let (number, of, traced) = (index + 1, order.len(), trace.is_some());
            on_event(RunEvent::Guest { number, of, arm: arm.name.clone(), traced });
            match self.one(index, arm, trace) {
                Ok((guest, samples)) => {
                    if let Some(reason) = keep(index, guest, samples) {
                        on_event(RunEvent::Failed { number, reason });
                    }
                }
                Err(LabError::Interrupted) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn one(&self, index: usize, arm: &Arm, trace: Option<&TracePlan>) -> Result<(GuestRecord, GuestSamples)> {
        let prefix = if trace.is_some() { "trace-" } else { "" };
        let directory = format!("guests/{prefix}{index:03}-{}", arm.name);
        let dir = self.dir.join(&directory);
        fs::create_dir_all(&dir).context("create", &dir)?;
        let kernel = &self.kernels[&arm.kernel];
        let cmdline = kernel_cmdline(&self.experiment.guest, self.accelerator, &arm.cmdline);
        let launch = Launch {
            qemu: self.qemu,
            spec: &self.experiment.guest,
            accelerator: self.accelerator,
            kernel: &kernel.image,
            initramfs: self.initramfs,
            cmdline: cmdline.clone(),
            console_file: Some(dir.join("console.log")),
        };
        let mut record = GuestRecord {
            index,
            arm: arm.name.clone(),
            directory,
            cmdline,
            kernel: kernel.info.key.clone(),
            ..GuestRecord::default()
        };
        let mut output = JobOutput::default();
        let start = Instant::now();
        let ended = match Guest::boot(&launch, self.stop)? {
            Err(ended) => *ended,
            Ok(mut guest) => {
                record.boot_seconds = Some(start.elapsed().as_secs_f64());
                record.hello = guest.hello.clone();
                let job = Instant::now();
                let outcome = guest.run(&self.job(arm, trace), &mut output)?;
                record.job_seconds = Some(job.elapsed().as_secs_f64());
                match outcome {
                    Ok(()) => guest.end(SHUTDOWN_GRACE),
                    Err(failure) => guest.end_with(Some(failure)),
                }
            }
        };
        leave(&dir, &ended, &output)?;
        record.settings = output.settings;
        record.vmstat = output.vmstat;
        record.samples = output.samples.len();
        record.splats = ended.splats;
        record.failure = ended.failure;
        Ok((record, GuestSamples { arm: arm.name.clone(), samples: output.samples }))
    }

    fn job(&self, arm: &Arm, trace: Option<&TracePlan>) -> Job {
        let workload = match trace {
            Some(plan) => plan.workload(&self.experiment.workload),
            None => self.experiment.workload.clone(),
        };
        Job {
            workload: workload.with_args(&arm.args),
            sysctl: arm.sysctl.clone(),
            collect: self.experiment.collect.clone(),
            trace: trace.map(TracePlan::tracing),
            timeout_s: self.experiment.design.job_timeout_s,
        }
    }
}

/// Writes a guest's files; its console is there already.
fn leave(dir: &Path, ended: &Ended, output: &JobOutput) -> Result<()> {
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
    Ok(())
}
