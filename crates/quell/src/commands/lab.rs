//! `quell lab`: builds kernels, boots guests, runs experiments.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use quell_lab::experiment::{self, Experiment, Lab, RunEvent, RunOptions, RunRecord};
use quell_lab::kernel::{Build, Flavor, Progress, Source};
use quell_lab::{Cache, Stop, agent, repo};
use quell_report::{Column, Look, Table};

use super::trace;
use crate::terminal;

/// Builds a kernel, boots it in QEMU, and runs A/B experiments on fresh guests.
///
/// Exits with 0, with 1 if a guest failed, its kernel reported a bug or a page was lost, and with 2 if it could not run or was
/// interrupted.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Checkout of Quell, with kernel/ and experiments/ (default: the one you are in, or that this binary is in)
    #[arg(long, value_name = "DIR", global = true)]
    repo: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The kernel that guests boot
    Kernel {
        #[command(subcommand)]
        command: KernelCommand,
    },
    /// The experiments there are
    List,
    /// Run an experiment on fresh guests
    Run(RunArgs),
    /// Make the report of saved results anew
    Report {
        /// Directory that `quell lab run` made
        dir: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
enum KernelCommand {
    /// Build it, or find it in the cache
    Build {
        /// Without the patches
        #[arg(long)]
        stock: bool,
        /// With the kernel's own checks: KASAN, lockdep and debugging of memory management
        #[arg(long)]
        debug: bool,
        /// A Linux source tree instead of Debian's package
        #[arg(long, value_name = "DIR")]
        source: Option<PathBuf>,
    },
}

#[derive(Debug, clap::Args)]
struct RunArgs {
    /// Its name, as `quell lab list` prints it
    name: String,
    /// Only these arms
    #[arg(long, value_name = "NAME")]
    arm: Vec<String>,
    /// The short form: fewer guests and samples
    #[arg(long)]
    short: bool,
    /// Also run traced guests, apart from the measured ones, and say where the time of their calls went
    #[arg(long)]
    trace: bool,
    /// A Linux source tree instead of Debian's package
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
    /// Where results go
    #[arg(long, value_name = "DIR", default_value = "quell-runs")]
    output: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Stop::from(terminal::stop_flag()?);
    let repo = || repo::find(args.repo.as_deref());
    match &args.command {
        Command::Kernel { command: KernelCommand::Build { stock, debug, source } } => {
            build(&repo()?, &kernel_source(source.as_ref()), Flavor::new(*stock, *debug), &stop)
        }
        Command::List => list(&repo()?.join("experiments")),
        Command::Run(run) => run_experiment(&repo()?, run, &stop),
        Command::Report { dir } => {
            let record = experiment::report(dir)?;
            show(&record, dir)
        }
    }
}

/// The work of one job, in a guest.
pub(crate) fn work() -> ExitCode {
    match agent::run_workload() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::complain(&format!("{:#}", anyhow::Error::from_boxed(error)));
            ExitCode::from(2)
        }
    }
}

fn kernel_source(dir: Option<&PathBuf>) -> Source {
    dir.cloned().map_or_else(Source::default, Source::Dir)
}

fn build(repo: &Path, source: &Source, flavor: Flavor, stop: &Stop) -> Result<ExitCode> {
    let jobs = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let cache = Cache::open()?;
    let mut line = ProgressLine::new();
    let kernel =
        Build { repo, cache: &cache, source, flavor, jobs }.run(stop, &mut |event| line.kernel(event))?;
    line.clear();
    let info = &kernel.info;
    let how = if kernel.cached {
        String::from("from the cache")
    } else {
        format!("built in {:.0} s", info.build_seconds)
    };
    let (release, patches, flavor) = (&info.release, info.patches.len(), info.flavor.name());
    let (source, image) = (&info.source, kernel.image.display());
    terminal::print(&format!("Linux {release} ({source}, {patches} patches, {flavor}), {how}\n{image}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn list(dir: &Path) -> Result<ExitCode> {
    let mut table =
        Table::new([Column::text("experiment"), Column::text("what it compares"), Column::text("arms")]);
    for name in experiment::list(dir)? {
        let experiment = Experiment::load(dir, &name)?;
        let arms: Vec<&str> = experiment.arms.iter().map(|arm| arm.name.as_str()).collect();
        table.row([name.into(), experiment.title.into(), arms.join(", ").into()]);
    }
    terminal::print(&table.render(terminal::look()))?;
    Ok(ExitCode::SUCCESS)
}

fn run_experiment(repo: &Path, args: &RunArgs, stop: &Stop) -> Result<ExitCode> {
    let mut experiment = Experiment::load(&repo.join("experiments"), &args.name)?.with_arms(&args.arm)?;
    if args.short {
        experiment = experiment.shortened();
    }
    let cache = Cache::open()?;
    let agent = std::env::current_exe().context("Cannot find this program's own file")?;
    let source = kernel_source(args.source.as_ref());
    let lab = Lab { repo, cache: &cache, agent: &agent, source: &source };
    let options = RunOptions { output: args.output.clone(), trace: args.trace };
    let mut line = ProgressLine::new();
    let outcome = experiment::run(&lab, &experiment, &options, stop, &mut |event| line.run(event));
    line.clear();
    let (dir, record) = outcome?;
    show(&record, &dir)
}

fn show(record: &RunRecord, dir: &Path) -> Result<ExitCode> {
    let report = dir.join("report.html");
    terminal::print(&format!("{}{}\n", human(record, terminal::look()), report.display()))?;
    Ok(match (record.interrupted, record.ok()) {
        (true, _) => ExitCode::from(2),
        (false, false) => ExitCode::from(1),
        (false, true) => ExitCode::SUCCESS,
    })
}

fn human(record: &RunRecord, look: Look) -> String {
    let mut text = String::new();
    let (name, accelerator, guests) = (&record.name, record.accelerator.name(), record.guests.len());
    let failed = record.guests.iter().filter(|guest| guest.failure.is_some()).count();
    let outcome = if failed == 0 { String::from("all did their job") } else { format!("{failed} FAILED") };
    let _ = writeln!(text, "{name}: {guests} guests, {outcome}; {accelerator}, {}", record.qemu);
    for arm in record.experiment.arms.iter().filter(|arm| arm.control) {
        let mut own = record.guests.iter().filter(|guest| guest.arm == arm.name).peekable();
        if own.peek().is_some() && own.all(|guest| guest.failure.is_none()) {
            let _ = writeln!(text, "The negative control {} failed to move pages, as it must.", arm.name);
        }
    }
    if record.summaries.iter().any(|summary| summary.unit == "ns") {
        let baseline = record.arms().first().cloned().unwrap_or_default();
        let _ = writeln!(
            text,
            "Times in microseconds; P99 is the nearest rank; ratio: {baseline} to the arm of the row, with its 95 % interval over guests."
        );
    }
    text += "\n";
    text += &results(record).render(look);
    if !record.targets.is_empty() {
        text += "\n";
        text += &targets(record).render(look);
        text += "\n";
    }
    text += &traces(record, look);
    for warning in &record.warnings {
        text += &terminal::wrapped(&format!("warning: {warning}"));
    }
    text
}

/// One row per cell and arm; the ratios stand with the arm that is compared with the baseline.
fn results(record: &RunRecord) -> Table {
    let text = Column::text;
    let number = Column::number;
    let mut table = Table::new([
        text("what"),
        text("arm"),
        number("samples"),
        number("median"),
        number("P99"),
        number("max"),
        number("failed"),
        text("median ratio"),
        text("P99 ratio"),
    ]);
    for summary in &record.summaries {
        let ratio = |statistic: &str| {
            let found = record.comparisons.iter().find(|comparison| {
                comparison.statistic == statistic
                    && comparison.arm_b == summary.arm
                    && comparison.dimensions == summary.dimensions
                    && comparison.metric == summary.metric
            });
            found.map_or_else(String::new, |comparison| match comparison.ci95 {
                Some([low, high]) => {
                    format!("{:.2} ({low:.2}-{high:.2}) {}", comparison.ratio, comparison.says())
                }
                None => format!("{:.2} ({})", comparison.ratio, comparison.says()),
            })
        };
        let value = |value: f64| experiment::shown(&summary.unit, value);
        table.row([
            if summary.dimensions.is_empty() { summary.metric.clone() } else { what(&summary.dimensions) }
                .into(),
            summary.arm.clone().into(),
            summary.samples.to_string().into(),
            value(summary.median).into(),
            value(summary.p99_nearest_rank).into(),
            value(summary.max).into(),
            summary.counts.get("failed").copied().unwrap_or(0).to_string().into(),
            ratio("median").into(),
            ratio("p99").into(),
        ]);
    }
    table
}

/// One row per target; the accelerator that did not run says "not measured".
fn targets(record: &RunRecord) -> Table {
    let mut table = Table::new([
        Column::text("target"),
        Column::text("statistic"),
        Column::text("under"),
        Column::number("aim"),
        Column::number("measured"),
        Column::text("outcome"),
    ]);
    for target in &record.targets {
        table.row([
            what(&target.of).into(),
            target.statistic.clone().into(),
            target.accelerator.name().into(),
            target.aim.to_string().into(),
            target.ratio.map_or_else(|| String::from("-"), |ratio| format!("{ratio:.2}x")).into(),
            target.outcome.text().into(),
        ]);
    }
    table
}

/// Where the time went in the traced guests.
fn traces(record: &RunRecord, look: Look) -> String {
    let analyses: Vec<_> = record
        .traces
        .iter()
        .filter_map(|traced| Some((traced.guest.arm.clone(), traced.analysis.as_ref()?)))
        .collect();
    if analyses.is_empty() {
        return String::new();
    }
    format!(
        "\nWhere the time went, in traced guests (the tracer lengthens every call):\n\n{}",
        trace::side_by_side(&analyses, look)
    )
}

fn what(dimensions: &BTreeMap<String, String>) -> String {
    dimensions.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// The line that shows where a long task is; plain lines where standard error is not a terminal.
struct ProgressLine {
    bar: ProgressBar,
    last_plain: usize,
}

impl ProgressLine {
    fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(200));
        let line = Self { bar, last_plain: 0 };
        line.style("{spinner} {elapsed} {msg}");
        line
    }

    fn style(&self, template: &str) {
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
    }

    fn say(&self, text: String) {
        if self.bar.is_hidden() {
            terminal::complain(&text);
        } else {
            self.style("{spinner} {elapsed} {msg}");
            self.bar.set_message(text);
        }
    }

    fn kernel(&mut self, progress: Progress) {
        match progress {
            Progress::Step(text) => self.say(text),
            Progress::Make { done, of, line } => self.make(done, of, line),
        }
    }

    fn make(&mut self, done: usize, of: Option<usize>, line: String) {
        const PLAIN_STEP: usize = 250;
        if self.bar.is_hidden() {
            if done / PLAIN_STEP != self.last_plain {
                self.last_plain = done / PLAIN_STEP;
                let of = of.map(|of| format!(" of {of}")).unwrap_or_default();
                terminal::complain(&format!("  {done}{of} steps"));
            }
            return;
        }
        match of {
            Some(of) => {
                self.style("{bar:30} {pos}/{len} {elapsed} {msg}");
                self.bar.set_length(of as u64);
                self.bar.set_position(done as u64);
                self.bar.set_message(line);
            }
            None => self.bar.set_message(format!("{done} steps, {line}")),
        }
    }

    fn run(&mut self, event: RunEvent) {
        match event {
            RunEvent::Kernel(progress) => self.kernel(progress),
            RunEvent::Probing => self.say(String::from("probing which accelerator boots")),
            RunEvent::Guest { number, of, arm, traced } => {
                let kind = if traced { "traced guest" } else { "guest" };
                self.say(format!("{kind} {number} of {of}: {arm}"));
            }
            RunEvent::Failed { number, reason } => {
                self.bar.suspend(|| terminal::complain(&format!("guest {number} failed: {reason}")));
            }
        }
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
