//! What a run leaves behind: `run.json`, `samples.csv`, `report.html`, and the guests' consoles.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use quell_migrate::Settings;
use serde::{Deserialize, Serialize};

use super::analysis::{Comparison, GuestSamples, Summary, Table};
use super::file::Experiment;
use super::html;
use super::trace::TracedGuest;
use crate::cache::write_whole;
use crate::error::{IoContext, LabError, Result};
use crate::guest::console::Splat;
use crate::guest::{Accelerator, Failure, Probe};
use crate::kernel::KernelInfo;
use crate::protocol::{Hello, Measurement};

/// Name and version of `run.json`.
pub const SCHEMA: &str = "quell.lab-run/1";
const RUN_FILE: &str = "run.json";
const SAMPLES_FILE: &str = "samples.csv";
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
    /// Guests of their own that were traced, with `--trace`.
    #[serde(default)]
    pub traces: Vec<TracedGuest>,
    /// What limits these results.
    pub warnings: Vec<String>,
}

impl RunRecord {
    /// Whether every guest did its job on a healthy kernel.
    #[must_use]
    pub fn ok(&self) -> bool {
        let traced = self.traces.iter().map(|traced| &traced.guest);
        self.guests.iter().chain(traced).all(|guest| guest.failure.is_none())
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
    write_whole(&dir.join(SAMPLES_FILE), csv(samples).as_bytes())?;
    write_report(dir, record, samples)
}

fn write_report(dir: &Path, record: &RunRecord, samples: &[(usize, GuestSamples)]) -> Result<()> {
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
    let samples = parse_csv(&text).map_err(|reason| bad(&path, reason))?;
    Ok((record, samples))
}

/// Makes the report of a saved run anew, from its samples.
///
/// # Errors
/// As [`load`], or if the report cannot be written.
pub fn report(dir: &Path) -> Result<RunRecord> {
    let (mut record, samples) = load(dir)?;
    let table = Table::new(&healthy(&record, &samples));
    record.summaries = table.summaries(&record.arms());
    record.comparisons = table.comparisons(&record.arms());
    write_report(dir, &record, &samples)?;
    Ok(record)
}

const FIXED: [&str; 6] = ["guest", "arm", "sample", "metric", "value", "unit"];

/// All samples, one a line; a column `dim.X` for each dimension and `count.X` for each count.
fn csv(samples: &[(usize, GuestSamples)]) -> String {
    let all = || samples.iter().flat_map(|(_, guest)| &guest.samples);
    let dimensions: BTreeSet<&String> = all().flat_map(|sample| sample.dimensions.keys()).collect();
    let counts: BTreeSet<&String> = all().flat_map(|sample| sample.counts.keys()).collect();
    let mut text = FIXED.join(",");
    for name in &dimensions {
        let _ = write!(text, ",dim.{name}");
    }
    for name in &counts {
        let _ = write!(text, ",count.{name}");
    }
    text.push('\n');
    for (index, guest) in samples {
        for (number, sample) in guest.samples.iter().enumerate() {
            let (metric, value, unit) = (&sample.metric, sample.value, &sample.unit);
            let _ = write!(text, "{index},{},{number},{metric},{value},{unit}", guest.arm);
            for name in &dimensions {
                let _ = write!(text, ",{}", sample.dimensions.get(*name).map_or("", String::as_str));
            }
            for name in &counts {
                let _ = write!(text, ",{}", sample.counts.get(*name).map(u64::to_string).unwrap_or_default());
            }
            text.push('\n');
        }
    }
    text
}

fn parse_csv(text: &str) -> Result<Vec<(usize, GuestSamples)>, String> {
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().ok_or("it is empty")?.split(',').collect();
    if header.get(..FIXED.len()) != Some(&FIXED[..]) {
        return Err(format!("its header does not begin with {}", FIXED.join(",")));
    }
    let mut guests: BTreeMap<usize, GuestSamples> = BTreeMap::new();
    for (number, line) in lines.enumerate() {
        let bad = |what: &str| format!("line {}: {what}", number + 2);
        let fields: Vec<&str> = line.split(',').collect();
        if fields.len() != header.len() {
            return Err(bad(&format!("{} fields instead of {}", fields.len(), header.len())));
        }
        let mut sample = Measurement {
            metric: fields[3].to_owned(),
            dimensions: BTreeMap::new(),
            value: fields[4].parse().map_err(|_| bad("its value is not a number"))?,
            unit: fields[5].to_owned(),
            counts: BTreeMap::new(),
        };
        for (name, field) in
            header.iter().zip(&fields).skip(FIXED.len()).filter(|(_, field)| !field.is_empty())
        {
            if let Some(name) = name.strip_prefix("dim.") {
                sample.dimensions.insert(name.to_owned(), (*field).to_owned());
            } else if let Some(name) = name.strip_prefix("count.") {
                let count = field.parse().map_err(|_| bad("a count is not a number"))?;
                sample.counts.insert(name.to_owned(), count);
            }
        }
        let index = fields[0].parse().map_err(|_| bad("its guest is not a number"))?;
        let guest = guests
            .entry(index)
            .or_insert_with(|| GuestSamples { arm: fields[1].to_owned(), samples: Vec::new() });
        guest.samples.push(sample);
    }
    Ok(guests.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(pages: &str, value: f64) -> Measurement {
        Measurement {
            metric: String::from("move_pages"),
            dimensions: BTreeMap::from([(String::from("pages"), pages.to_owned())]),
            value,
            unit: String::from("ns"),
            counts: BTreeMap::from([(String::from("failed"), 0)]),
        }
    }

    #[test]
    fn samples_survive_the_file() {
        let mut other = sample("16", 1e9);
        other.dimensions = BTreeMap::from([(String::from("call"), String::from("noop"))]);
        other.counts = BTreeMap::new();
        let guests = vec![
            (0, GuestSamples { arm: String::from("a"), samples: vec![sample("1", 12.5), other] }),
            (3, GuestSamples { arm: String::from("b"), samples: vec![sample("1", 0.1)] }),
        ];
        let text = csv(&guests);
        assert!(text.starts_with("guest,arm,sample,metric,value,unit,dim.call,dim.pages,count.failed\n"));
        let read = parse_csv(&text).unwrap();
        assert_eq!(read.len(), 2);
        for ((index, guest), (read_index, read_guest)) in guests.iter().zip(&read) {
            assert_eq!(
                (index, &guest.arm, &guest.samples),
                (read_index, &read_guest.arm, &read_guest.samples)
            );
        }
    }

    #[test]
    fn broken_files_are_refused_with_their_line() {
        assert!(parse_csv("").unwrap_err().contains("empty"));
        assert!(parse_csv("a,b\n").unwrap_err().contains("header"));
        let head = FIXED.join(",");
        assert!(parse_csv(&format!("{head}\n0,a,0,m,1\n")).unwrap_err().contains("line 2: 5 fields"));
        assert!(parse_csv(&format!("{head}\n0,a,0,m,x,ns\n")).unwrap_err().contains("not a number"));
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
