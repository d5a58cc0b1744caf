//! Experiment files: TOML, one per experiment, checked before anything is built.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::target::Target;
use super::trace::TracePlan;
use crate::error::{IoContext, LabError, Result, nearest};
use crate::guest::GuestSpec;
use crate::kernel::Flavor;
use crate::protocol::Workload;

/// An experiment as its file describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Name of the file without `.toml`.
    #[serde(skip)]
    pub name: String,
    /// One line for lists and reports.
    pub title: String,
    /// What is compared and why.
    #[serde(default)]
    pub description: String,
    /// Mermaid text of the path that is measured, for the report.
    #[serde(default)]
    pub diagram: Option<String>,
    /// The guests, the same for all arms.
    #[serde(default)]
    pub guest: GuestSpec,
    /// The arms; the first is the baseline that the others are compared with.
    #[serde(rename = "arm")]
    pub arms: Vec<Arm>,
    /// How many guests.
    pub design: Design,
    /// The form for continuous integration.
    #[serde(default)]
    pub short: Option<Short>,
    /// What each guest does.
    pub workload: Workload,
    /// Files to fetch from each guest after its job.
    #[serde(default)]
    pub collect: Vec<String>,
    /// What has to be reached.
    #[serde(default, rename = "target")]
    pub targets: Vec<Target>,
    /// What traced guests record, for `--trace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TracePlan>,
}

/// One arm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// Its name.
    pub name: String,
    /// Which kernel it boots.
    #[serde(default)]
    pub kernel: Flavor,
    /// Words that it adds to the kernel's command line.
    #[serde(default)]
    pub cmdline: String,
    /// Values for `/proc/sys`, by name.
    #[serde(default)]
    pub sysctl: BTreeMap<String, String>,
    /// Words that it adds to the arguments of a `quell` or `program` workload.
    #[serde(default)]
    pub args: Vec<String>,
    /// A negative control: pages that it fails to move are what it is for, and no warning.
    #[serde(default)]
    pub control: bool,
}

/// How much is measured; fixed before the first guest boots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Design {
    /// Fresh guests of each arm.
    pub guests_per_arm: u32,
    /// Most seconds that one guest's job may take.
    #[serde(default = "default_timeout")]
    pub job_timeout_s: u64,
}

impl Design {
    fn validate(&self) -> Result<(), String> {
        if self.job_timeout_s == 0 {
            return Err(String::from("`job_timeout_s` is 0: no job ends in no time"));
        }
        Ok(())
    }
}

/// What `--short` changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Short {
    /// Fresh guests of each arm.
    pub guests_per_arm: u32,
    /// Samples of each case in each guest.
    #[serde(default)]
    pub samples: Option<u32>,
    /// Words that are added to the arguments of a `quell` or `program` workload.
    #[serde(default)]
    pub args: Vec<String>,
}

const fn default_timeout() -> u64 {
    900
}

impl Experiment {
    /// Reads the experiment of this name from a directory.
    ///
    /// # Errors
    /// [`LabError::UnknownName`] with the nearest name, or what is wrong in the file.
    pub fn load(dir: &Path, name: &str) -> Result<Self> {
        let known = list(dir)?;
        if !known.iter().any(|known| known == name) {
            let nearest = nearest(name, known.iter().map(String::as_str));
            return Err(LabError::UnknownName { kind: "experiment", name: name.to_owned(), nearest, known });
        }
        let path = dir.join(format!("{name}.toml"));
        let text = fs::read_to_string(&path).context("read", &path)?;
        Self::parse(&path, name, &text)
    }

    /// Reads an experiment from text; `path` is for messages only.
    ///
    /// # Errors
    /// [`LabError::BadExperiment`].
    pub fn parse(path: &Path, name: &str, text: &str) -> Result<Self> {
        let bad = |reason: String| LabError::BadExperiment { path: path.to_owned(), reason };
        let mut experiment: Self = toml::from_str(text).map_err(|error| bad(explain(text, &error)))?;
        name.clone_into(&mut experiment.name);
        experiment.validate().map_err(bad)?;
        Ok(experiment)
    }

    /// The experiment with the arms named, in the file's order; all for an empty list.
    ///
    /// # Errors
    /// [`LabError::UnknownName`] for an arm that does not exist.
    pub fn with_arms(mut self, names: &[String]) -> Result<Self> {
        let known: Vec<String> = self.arms.iter().map(|arm| arm.name.clone()).collect();
        if let Some(name) = names.iter().find(|name| !known.contains(name)) {
            let nearest = nearest(name, known.iter().map(String::as_str));
            return Err(LabError::UnknownName { kind: "arm", name: name.clone(), nearest, known });
        }
        if !names.is_empty() {
            self.arms.retain(|arm| names.contains(&arm.name));
        }
        Ok(self)
    }

    /// The short form, if the file has one.
    #[must_use]
    pub fn shortened(mut self) -> Self {
        if let Some(short) = &self.short {
            self.workload = self.workload.with_args(&short.args);
            self.design.guests_per_arm = short.guests_per_arm;
            if let (Some(samples), Workload::Migrate(plan)) = (short.samples, &mut self.workload) {
                plan.samples = samples;
            }
        }
        self
    }

    fn validate(&self) -> Result<(), String> {
        self.guest.validate()?;
        if self.arms.is_empty() {
            return Err(String::from("it has no [[arm]]"));
        }
        let names: BTreeSet<&str> = self.arms.iter().map(|arm| arm.name.as_str()).collect();
        if names.len() != self.arms.len() {
            return Err(String::from("two arms have the same name"));
        }
        let compared: Vec<&str> = self.arms.iter().map(|arm| arm.name.as_str()).collect();
        self.targets.iter().try_for_each(|target| target.validate(&compared))?;
        let plain = |name: &str| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        if let Some(name) = names.iter().find(|name| !plain(name)) {
            return Err(format!("the arm {name:?} is not a plain word"));
        }
        let guests =
            [Some(self.design.guests_per_arm), self.short.as_ref().map(|short| short.guests_per_arm)];
        if guests.into_iter().flatten().any(|count| !(1..=1000).contains(&count)) {
            return Err(String::from("`guests_per_arm` must be 1 to 1000"));
        }
        if let Some(trace) = &self.trace {
            trace.validate()?;
        }
        if let Workload::Migrate(plan) = &self.workload {
            plan.validate().map_err(|error| error.to_string())?;
            if let Some(arm) = self.arms.iter().find(|arm| !arm.args.is_empty()) {
                return Err(format!(
                    "the arm {:?} has `args`, which a `migrate` workload does not take",
                    arm.name
                ));
            }
        }
        self.design.validate()
    }
}

/// Names of the experiments in a directory, sorted.
///
/// # Errors
/// If it cannot be listed.
pub fn list(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).context("list", dir)? {
        let path: PathBuf = entry.context("list", dir)?.path();
        if path.extension().is_some_and(|ext| ext == "toml") {
            names.extend(path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned));
        }
    }
    names.sort();
    Ok(names)
}

/// The parser's message with the line, and for an unknown key the one that was probably meant.
fn explain(text: &str, error: &toml::de::Error) -> String {
    let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
    let message = error.message();
    // serde: unknown field `x`, expected one of `a`, `b`
    let mut quoted = message.split('`').skip(1).step_by(2);
    let meant = (message.starts_with("unknown field") || message.starts_with("unknown variant"))
        .then(|| quoted.next().and_then(|unknown| nearest(unknown, quoted)))
        .flatten();
    match meant {
        Some(meant) => format!("{place}{message}: did you mean `{meant}`?"),
        None => format!("{place}{message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
title = "t"
[guest]
nodes = [{ memory = "512M", cpus = "0-1" }, { memory = "256M" }]
[[arm]]
name = "global"
sysctl = { "vm.migrate_drain" = "global" }
[[arm]]
name = "stock"
kernel = "stock"
[design]
guests_per_arm = 6
[short]
guests_per_arm = 4
samples = 7
[workload]
kind = "migrate"
samples = 600
cases = [{ call = "move", pages = 16, touched_by = "other" }]
"#;

    fn parse(text: &str) -> Result<Experiment> {
        Experiment::parse(Path::new("x.toml"), "x", text)
    }

    fn reason(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from));
        parse(&GOOD.replace(from, to)).unwrap_err().to_string()
    }

    #[test]
    fn a_file_is_read() {
        let experiment = parse(GOOD).unwrap();
        assert_eq!(experiment.guest.boot_memory().to_string(), "768M");
        assert_eq!(experiment.arms[1].kernel, Flavor::Stock);
        let short = experiment.shortened();
        assert_eq!(short.design.guests_per_arm, 4);
        assert!(matches!(short.workload, Workload::Migrate(plan) if plan.samples == 7));
    }

    #[test]
    fn wrong_keys_are_named_with_what_was_meant_and_their_line() {
        let text = reason("guests_per_arm = 6", "guest_per_arm = 6");
        assert!(text.contains("line 12") && text.contains("did you mean `guests_per_arm`"), "{text}");
        assert!(reason("kernel = \"stock\"", "kernel = \"stok\"").contains("did you mean `stock`"));
        assert!(reason("samples = 600", "sample = 600").contains("did you mean `samples`"));
        assert!(reason("512M", "lots").contains("not an amount of memory"));
        assert!(reason("name = \"stock\"", "name = \"global\"").contains("same name"));
        assert!(reason("guests_per_arm = 4", "guests_per_arm = 0").contains("1 to 1000"));
        assert!(reason("pages = 16", "pages = 0").contains("0 pages"));
        assert!(reason("[[arm]]", "[[arm").contains("line"));
    }

    #[test]
    fn unknown_names_come_with_the_nearest() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("migrate-batch.toml"), GOOD).unwrap();
        let error = Experiment::load(dir.path(), "migrate-bach").unwrap_err().to_string();
        assert!(error.contains("did you mean \"migrate-batch\""), "{error}");
        let experiment = Experiment::load(dir.path(), "migrate-batch").unwrap();
        assert_eq!(experiment.name, "migrate-batch");
        let error = experiment.clone().with_arms(&[String::from("globl")]).unwrap_err().to_string();
        assert!(error.contains("No arm is called \"globl\": did you mean \"global\""), "{error}");
        assert_eq!(experiment.with_arms(&[String::from("stock")]).unwrap().arms.len(), 1);
    }

    #[test]
    fn the_experiments_of_this_repository_are_valid() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        for name in list(&dir).unwrap() {
            Experiment::load(&dir, &name).unwrap();
        }
    }
}
