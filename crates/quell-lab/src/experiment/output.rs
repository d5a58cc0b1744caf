//! What a run leaves behind: `run.json`, `samples.csv`, `report.html`, and the guests' consoles.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use quell_migrate::Settings;
use serde::{Deserialize, Serialize};

use super::analysis::{Comparison, GuestSamples, Summary, Table};
use super::file::Experiment;
use super::target::{TargetResult, judge};
use super::trace::TracedGuest;
use super::{csv, html};
use crate::cache::write_whole;
use crate::error::{IoContext, LabError, Result};
use crate::guest::console::Splat;
use crate::guest::{Accelerator, Failure, Probe};
use crate::kernel::KernelInfo;
use crate::protocol::Hello;

/// Name and version of `run.json`.
pub const SCHEMA: &str = "quell.lab-run/1";
const RUN_FILE: &str = "run.json";
const SAMPLES_FILE: &str = "samples.csv";
const BY_GUEST_FILE: &str = "guests.csv";
const REPORT_FILE: &str = "report.html";

/// The machine that ran the guests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Its kernel's version.
    pub kernel: String,
    /// Its CPU model.
    pub cpu: String,
    /// Its CPUs.
    pub cpus: usize,
    /// Load average over one minute before the first guest.
    pub load: Option<f64>,
}

impl Host {
    /// This machine, read below `root`.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let cpuinfo = text("proc/cpuinfo");
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            kernel: text("proc/sys/kernel/osrelease").trim().to_owned(),
            cpu: model.map(|(_, name)| name.to_owned()).unwrap_or_default(),
            cpus: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            load: text("proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()),
        }
    }
}

/// One guest of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GuestRecord {
    /// Its place in the order, from 0.
    pub index: usize,
    /// Its arm.
    pub arm: String,
    /// Its directory, below that of the run.
    pub directory: String,
    /// The kernel's command line.
    pub cmdline: String,
    /// Key of its kernel in the cache.
    pub kernel: String,
    /// Seconds from the start of QEMU to the agent.
    pub boot_seconds: Option<f64>,
    /// Seconds that its job took.
    pub job_seconds: Option<f64>,
    /// What the agent said of itself.
    pub hello: Hello,
    /// The workload's surroundings in the guest.
    pub settings: Option<Settings>,
    /// Samples that it gave.
    pub samples: usize,
    /// What `/proc/vmstat` counted during the job.
    pub vmstat: BTreeMap<String, i64>,
    /// Reports of kernel bugs.
    pub splats: Vec<Splat>,
    /// Why it failed; its samples are then kept but not compared.
    pub failure: Option<Failure>,
}

/// `run.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunRecord {
    /// [`SCHEMA`].
    pub schema: String,
    /// Name of the experiment.
    pub name: String,
    /// When it began, UTC.
    pub started: String,
    /// The experiment as it was run.
    pub experiment: Experiment,
    /// SHA-256 of the experiment's file.
    pub experiment_sha256: String,
    /// Version of Quell.
    pub quell: String,
    /// Version of QEMU.
    pub qemu: String,
    /// KVM or TCG.
    pub accelerator: Accelerator,
    /// How that was found out.
    pub probe: Probe,
    /// The kernels, by the name of their flavor.
    pub kernels: BTreeMap<String, KernelInfo>,
    /// The machine that ran it.
    pub host: Host,
    /// Which percentile is which, in words.
    pub percentiles: String,
    /// The guests in their order.
    pub guests: Vec<GuestRecord>,
    /// Every arm in every cell.
    pub summaries: Vec<Summary>,
    /// Every arm against the first.
    pub comparisons: Vec<Comparison>,
    /// What the experiment had to reach, and whether it did.
    #[serde(default)]
    pub targets: Vec<TargetResult>,
    /// It was ended by Ctrl-C; the guests until then are here.
    #[serde(default)]
    pub interrupted: bool,
    /// Guests of their own that were traced, with `--trace`.
    #[serde(default)]
    pub traces: Vec<TracedGuest>,
    /// What limits these results.
    pub warnings: Vec<String>,
}

impl RunRecord {
    /// Fills in what follows from the samples.
    pub(super) fn conclude(&mut self, samples: &[(usize, GuestSamples)]) {
        let (arms, table) = (self.arms(), Table::new(&healthy(self, samples)));
        self.summaries = table.summaries(&arms);
        self.comparisons = table.comparisons(&arms);
        self.targets = judge(&self.experiment.targets, &self.comparisons, self.accelerator);
    }

    /// Whether every guest did its job on a healthy kernel, and no page was lost.
    #[must_use]
    pub fn ok(&self) -> bool {
        let traced = self.traces.iter().map(|traced| &traced.guest);
        let healthy = self.guests.iter().chain(traced).all(|guest| guest.failure.is_none());
        healthy && self.lost_pages().next().is_none()
    }

    /// Summaries, what and how many, of pages that were not moved, moved elsewhere or damaged; negative controls
    /// are left out.
    pub fn lost_pages(&self) -> impl Iterator<Item = (&Summary, &'static str, u64)> {
        let control = |name: &str| self.experiment.arms.iter().any(|arm| arm.control && arm.name == name);
        let counted = self.summaries.iter().filter(move |summary| !control(&summary.arm));
        counted
            .flat_map(|summary| {
                let count = |what| summary.counts.get(what).copied().unwrap_or(0);
                ["failed", "misplaced", "corrupt"].map(|what| (summary, what, count(what)))
            })
            .filter(|(_, _, count)| *count > 0)
    }

    /// Names of the arms, the baseline first.
    #[must_use]
    pub fn arms(&self) -> Vec<String> {
        self.experiment.arms.iter().map(|arm| arm.name.clone()).collect()
    }
}

/// Writes all files of a run.
pub(super) fn write(dir: &Path, record: &RunRecord, samples: &[(usize, GuestSamples)]) -> Result<()> {
    let json = serde_json::to_vec_pretty(record).expect("a run is plain data");
    write_whole(&dir.join(RUN_FILE), &json)?;
    write_whole(&dir.join(SAMPLES_FILE), csv::all(samples).as_bytes())?;
    write_derived(dir, record, samples)
}

/// The files that follow from the samples and `run.json`.
fn write_derived(dir: &Path, record: &RunRecord, samples: &[(usize, GuestSamples)]) -> Result<()> {
    write_whole(&dir.join(BY_GUEST_FILE), csv::by_guest(samples).as_bytes())?;
    let good = healthy(record, samples);
    let page = html::page(record, &Table::new(&good))
        .map_err(|error| LabError::BadRun { path: dir.to_owned(), reason: error.to_string() })?;
    write_whole(&dir.join(REPORT_FILE), page.as_bytes())
}

/// The samples of the guests that did not fail.
pub(super) fn healthy(record: &RunRecord, samples: &[(usize, GuestSamples)]) -> Vec<GuestSamples> {
    let failed: BTreeSet<usize> =
        record.guests.iter().filter(|guest| guest.failure.is_some()).map(|guest| guest.index).collect();
    samples.iter().filter(|(index, _)| !failed.contains(index)).map(|(_, samples)| samples.clone()).collect()
}

/// Reads a saved run and its samples.
///
/// # Errors
/// [`LabError::BadRun`] if the directory does not hold one, or holds one of another version.
pub fn load(dir: &Path) -> Result<(RunRecord, Vec<(usize, GuestSamples)>)> {
    let path = dir.join(RUN_FILE);
    let bad = |path: &Path, reason: String| LabError::BadRun { path: path.to_owned(), reason };
    let text = fs::read(&path).context("read", &path)?;
    let record: RunRecord = serde_json::from_slice(&text).map_err(|error| bad(&path, error.to_string()))?;
    if record.schema != SCHEMA {
        return Err(bad(&path, format!("it has the schema {}, this program knows {SCHEMA}", record.schema)));
    }
    let path = dir.join(SAMPLES_FILE);
    let text = fs::read_to_string(&path).context("read", &path)?;
    let samples = csv::parse(&text).map_err(|reason| bad(&path, reason))?;
    Ok((record, samples))
}

/// Makes the report of a saved run anew, from its samples.
///
/// # Errors
/// As [`load`], or if the report cannot be written.
pub fn report(dir: &Path) -> Result<RunRecord> {
    let (mut record, samples) = load(dir)?;
    record.conclude(&samples);
    write_derived(dir, &record, &samples)?;
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_results_is_refused() {
        assert!(matches!(load(Path::new("/nonexistent")), Err(LabError::Io { .. })));
    }

    #[test]
    fn the_host_is_described_without_its_name() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/sys/kernel")).unwrap();
        fs::write(
            root.path().join("proc/cpuinfo"),
            "processor\t: 0\nmodel name\t: Fast CPU\n\nprocessor\t: 1\n",
        )
        .unwrap();
        fs::write(root.path().join("proc/loadavg"), "1.50 1 1 1/1 1\n").unwrap();
        fs::write(root.path().join("proc/sys/kernel/osrelease"), "6.1\n").unwrap();
        let expected =
            Host { kernel: String::from("6.1"), cpu: String::from("Fast CPU"), cpus: 2, load: Some(1.5) };
        assert_eq!(Host::read(root.path()), expected);
        assert_eq!(Host::read(Path::new("/nonexistent")), Host::default());
    }
}
