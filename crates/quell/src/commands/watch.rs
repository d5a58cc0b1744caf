//! `quell watch`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use quell_core::Estimate;
use quell_llc::watch::{Engine, Event, Feed, Record, SetWatch, WatchSettings, watch, watch_sets};

use super::monitor_args::{MonitorArgs, whole_periods};
use super::values::{positive_time, time};
use crate::terminal;

/// Keeps measuring: one line per period and cache until stopped.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    monitor: MonitorArgs,

    /// What to measure with
    #[arg(long, value_enum, default_value_t = EngineArg::Auto)]
    engine: EngineArg,

    /// With `--engine evset`: build all sets anew after this time, and on SIGHUP
    #[arg(long, value_parser = positive_time, value_name = "TIME", default_value = "1h")]
    rebuild: Duration,

    /// Stop after this time [default: run until Ctrl-C]
    #[arg(long, value_parser = time, value_name = "TIME")]
    duration: Option<Duration>,

    /// Print one JSON object per line (schema quell.watch/1)
    #[arg(long)]
    json: bool,

    /// Also serve the JSON lines to everybody who connects to this Unix socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// The engines to choose from.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum EngineArg {
    /// The best that verifies itself on this machine
    Auto,
    /// A few hundred lines anywhere in the cache
    Canary,
    /// Lines of every page color: tells which part of the cache is contended
    Color,
    /// Minimal eviction sets, tested again in every period; ends with exit code 2 where none can be verified
    Evset,
}

impl From<EngineArg> for Engine {
    fn from(engine: EngineArg) -> Self {
        match engine {
            EngineArg::Auto => Self::Auto,
            EngineArg::Canary => Self::Canary,
            EngineArg::Color => Self::Color,
            EngineArg::Evset => Self::Evset,
        }
    }
}

/// The column heads are repeated after so many lines.
const LINES_PER_HEAD: u64 = 30;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let settings = args.monitor.settings()?;
    let periods = args.duration.map(|duration| whole_periods(duration, settings)).transpose()?.map(u64::from);
    let (topology, targets) = args.monitor.targets()?;
    // First the signals, so that the socket's file is removed whenever one comes.
    let evset = matches!(args.engine, EngineArg::Evset);
    let reload = Arc::new(AtomicBool::new(false));
    let stop = if evset { terminal::stop_flag_and_reload(&reload)? } else { terminal::stop_flag()? };
    let mut feed = args.socket.as_deref().map(Feed::bind).transpose()?;
    let settings = WatchSettings {
        monitor: settings,
        periods,
        engine: args.engine.into(),
        priority: args.monitor.priority,
        seed: args.monitor.seed(),
    };
    let mut lines = 0;
    let mut failure = None;
    let mut handle = |event| {
        if failure.is_some() {
            return false; // what was on its way when the first delivery failed
        }
        let outcome = match event {
            Event::Note(note) => {
                terminal::complain(&format!("note: {note}"));
                Ok(())
            }
            Event::Record(record) => deliver(&record, args.json, feed.as_mut(), &mut lines),
        };
        failure = outcome.err();
        failure.is_none()
    };
    let records = if evset {
        let how = SetWatch { topology: &topology, rebuild: args.rebuild, reload: &reload };
        let [target] = &targets[..] else {
            bail!("--engine evset watches one LLC; choose CPUs of one with --cpus");
        };
        watch_sets(target, settings, how, &stop, &mut handle).map_err(anyhow::Error::msg)?
    } else {
        watch(&targets, settings, &stop, handle)
    };
    if let Some(failure) = failure {
        return Err(failure);
    }
    if records == 0 && !stop.load(Ordering::Relaxed) {
        bail!("no cache could be watched; the notes above say why");
    }
    Ok(ExitCode::SUCCESS)
}

fn deliver(record: &Record, json: bool, feed: Option<&mut Feed>, lines: &mut u64) -> Result<()> {
    let line = serde_json::to_string(record).context("cannot put a record into JSON")?;
    if let Some(feed) = feed {
        feed.publish(&line);
    }
    if json {
        return terminal::print(&(line + "\n"));
    }
    if lines.is_multiple_of(LINES_PER_HEAD) {
        terminal::print(&head())?;
    }
    *lines += 1;
    terminal::print(&row(record))
}

fn head() -> String {
    format!(
        "{:>8} {:>3} {:<9} {:>14} {:>10} {:>8} {:>7} {:>8} {:<8} {:>6} {:>7} {:>7}\n",
        "UTC",
        "LLC",
        "tier",
        "half-life ms",
        "hazard/ms",
        "%/ms",
        "ewma",
        "window",
        "source",
        "near%",
        "windows",
        "cpu ms"
    )
}

fn row(record: &Record) -> String {
    let or_dash =
        |value: Option<f64>, digits: usize| value.map_or_else(|| "-".into(), |v| format!("{v:.digits$}"));
    let half_life = match &record.half_life_ms {
        Estimate::Known { value, ci95, .. } => format!("{value:.1} ±{:.1}", (ci95[1] - ci95[0]) / 2.0),
        Estimate::Unknown { .. } => "unknown".into(),
    };
    let kept = record.windows - record.discarded_windows.total().min(record.windows);
    let seconds = record.time_s as u64 % 86_400;
    format!(
        "{:02}:{:02}:{:02} {:>3} {:<9} {:>14} {:>10} {:>8} {:>7} {:>8.1} {:<8} {:>6} {:>7} {:>7}\n",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        record.llc,
        record.tier.map_or("unknown", |tier| tier.name()),
        half_life,
        or_dash(record.hazard_per_ms.value(), 3),
        or_dash(record.rate_pct_per_ms.value(), 1),
        or_dash(record.ewma_rate_pct_per_ms, 1),
        record.window_ms,
        record.source.name(),
        or_dash(record.placement.near_pct.value(), 0),
        format!("{kept}/{}", record.windows),
        or_dash(record.cost.cpu_ms_per_s, 1),
    )
}
