//! `quell calibrate`.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use quell_core::Bytes;
use quell_llc::layout::Layout;
use quell_llc::scan::calibration::{Advice, CalibrationReport};
use quell_llc::session::Session;
use quell_llc::{Calibration, Spill};
use quell_report::{Bins, Column, Histogram, Table, Unit, estimate, svg};

use super::monitor_args::MonitorArgs;
use crate::terminal;

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
    let mut text = format!(
        "Time-stamp counter: {:.3} GHz, step {:.1} ticks ({:.1} ns){}\n\n",
        timer.ticks_per_ms / 1e6,
        timer.step_ticks,
        timer.step_ns(),
        if timer.monotonic { "" } else { "; it was seen to run backwards" }
    );
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
    let _ = match &calibration.discriminator {
        Ok(limits) => writeln!(
            text,
            "A load above {} ticks is a miss; above {} it was interrupted and does not count.",
            limits.miss_above, limits.interrupted_above
        ),
        Err(reason) => writeln!(text, "Hits and misses: unknown: {reason}."),
    };
    if !calibration.single_loads_tell_l2_from_llc {
        text += "Single loads do not tell the L2 from the LLC here; the chained figures do.\n";
    }
    let kind = match calibration.spill {
        Spill::Congruent { .. } => "lines at the canary's page offsets",
        Spill::Full { .. } => "lines of whole pages",
    };
    let _ = writeln!(
        text,
        "{} {kind} push {:.0} % of the canary out of the L2; a window touches {}.",
        calibration.spill.lines(),
        calibration.spilled_share * 100.0,
        Bytes(Layout::footprint(calibration.spill).0)
    );
    let [interrupted, migrated] = calibration.discarded;
    let _ = writeln!(text, "Thrown away: {interrupted} interrupted and {migrated} migrated loads.");
    let _ = writeln!(
        text,
        "\nHalf-life of a line under the load just seen: {}.",
        estimate(&advice.half_life_ms, Unit::Milliseconds)
    );
    text += &advice.sentence();
    text.push('\n');
    text
}
