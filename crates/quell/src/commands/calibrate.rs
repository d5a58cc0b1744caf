//! `quell calibrate`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail};
use quell_llc::layout::Layout;
use quell_llc::scan::calibration::{Advice, CalibrationReport};
use quell_llc::session::Session;
use quell_llc::{Calibration, Spill};
use quell_report::{Bins, Column, Histogram, Table, Unit, estimate, svg};

use super::monitor_args::MonitorArgs;
use crate::terminal::{self, wrapped};

/// Shows how cache hits and misses are told apart on this machine, and recommends a window for the load it
/// sees (about 6 s).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    monitor: MonitorArgs,

    /// Write the latency histogram to this file as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print the result as JSON (schema quell.calibrate/1)
    #[arg(long)]
    json: bool,
}

/// Periods to watch before recommending a window.
const PERIODS: usize = 5;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let settings = args.monitor.settings()?;
    if let Some(path) = &args.svg {
        check_folder(path)?;
    }
    let (topology, targets) = args.monitor.targets()?;
    let stop = terminal::stop_flag()?;
    let target = targets.into_iter().next().context("there is no cache to calibrate")?;
    let mut session =
        Session::open(target, args.monitor.seed()).context("cannot set up the measuring CPU")?;
    let mut periods = Vec::new();
    if let Ok(mut monitor) = session.monitor(settings) {
        let bar = terminal::progress(PERIODS as u64, "watching the load");
        while periods.len() < PERIODS && !stop.load(Ordering::Relaxed) {
            periods.push(
                session.period(&mut monitor, quell_llc::Plan::Adaptive, || !stop.load(Ordering::Relaxed)),
            );
            bar.inc(1);
        }
        bar.finish_and_clear();
    }
    let calibration = &session.calibration;
    let advice = Advice::of(&periods, settings);
    let histogram = histogram(calibration)?;
    if let Some(path) = &args.svg {
        let drawn = svg::latency_histogram("Latency of single loads", "ticks", &histogram)
            .context("cannot draw the histogram")?;
        fs::write(path, drawn)
            .with_context(|| format!("cannot write the histogram to {}", path.display()))?;
    }
    if args.json {
        terminal::print_json(&CalibrationReport::new(&topology, &session.target, calibration, advice))?;
    } else {
        terminal::print(&human(calibration, &advice, &histogram))?;
    }
    Ok(if calibration.discriminator.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

/// Refuses a file that cannot be written before the time is spent to measure what goes into it.
fn check_folder(path: &Path) -> Result<()> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        bail!(
            "--svg {} cannot be written: there is no folder {}; create it or choose another",
            path.display(),
            folder.display()
        );
    }
    if path.is_dir() {
        bail!("--svg {} cannot be written: it is a folder; give the name of a file in it", path.display());
    }
    Ok(())
}

fn histogram(calibration: &Calibration) -> Result<Histogram> {
    let all = || calibration.classes.iter().flat_map(|class| class.single_ticks.iter().copied());
    let (lo, hi) = (all().fold(f64::INFINITY, f64::min), all().fold(1.0, f64::max));
    let bins = Bins::log(lo.max(1.0).min(hi), hi * 1.01 + 1.0, 24).context("cannot lay out the histogram")?;
    let mut histogram = Histogram::new(bins);
    for class in &calibration.classes {
        histogram.add(class.name, class.single_ticks.iter().copied());
    }
    if let Ok(limits) = &calibration.discriminator {
        histogram.mark("hit/miss limit", f64::from(limits.miss_above));
    }
    Ok(histogram)
}

fn human(calibration: &Calibration, advice: &Advice, histogram: &Histogram) -> String {
    let timer = calibration.timer;
    let mut text = wrapped(&format!(
        "Time-stamp counter: {:.3} GHz, step {:.1} ticks ({:.1} ns){}",
        timer.ticks_per_ms / 1e6,
        timer.step_ticks,
        timer.step_ns(),
        if timer.monotonic { "" } else { "; it was seen to run backwards" }
    ));
    text.push('\n');
    let mut table = Table::new([
        Column::text("line in"),
        Column::number("single load, median"),
        Column::number("90 %"),
        Column::number("chained load"),
        Column::number("ns"),
    ]);
    for class in &calibration.classes {
        let at = |p| {
            quell_core::stats::quantile(&class.single_ticks, p)
                .map_or_else(|| "-".into(), |t| format!("{t:.0}"))
        };
        table.row([
            class.name.into(),
            at(0.5).into(),
            at(0.9).into(),
            format!("{:.1}", class.chain_ticks).into(),
            format!("{:.1}", class.chain_ticks / timer.ticks_per_ms * 1e6).into(),
        ]);
    }
    text += &table.render(terminal::look());
    text.push('\n');
    text += &histogram.render("ticks", terminal::look());
    text.push('\n');
    text += &wrapped(&match &calibration.discriminator {
        Ok(limits) => format!(
            "A load above {} ticks is a miss; above {} it was interrupted and does not count.",
            limits.miss_above, limits.interrupted_above
        ),
        Err(reason) => format!("Hits and misses: unknown: {reason}."),
    });
    if !calibration.single_loads_tell_l2_from_llc {
        text += &wrapped("Single loads do not tell the L2 from the LLC here; the chained figures do.");
    }
    let kind = match calibration.spill {
        Spill::Congruent { .. } => "lines at the canary's page offsets",
        Spill::Full { .. } => "lines of whole pages",
    };
    text += &wrapped(&format!(
        "{} {kind} push {:.0} % of the canary out of the L2; a window touches {}.",
        calibration.spill.lines(),
        calibration.spilled_share * 100.0,
        Layout::footprint(calibration.spill)
    ));
    let [interrupted, migrated] = calibration.discarded;
    text += &wrapped(&format!("Thrown away: {interrupted} interrupted and {migrated} migrated loads."));
    text.push('\n');
    text += &wrapped(&format!(
        "Half-life of a line under the load just seen: {}.",
        estimate(&advice.half_life_ms, Unit::Milliseconds)
    ));
    text += &wrapped(&advice.sentence());
    text
}
