//! `quell scan`.

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::ValueEnum;
use quell_core::{Bytes, Estimate};
use quell_llc::capacity::Usable;
use quell_llc::scan::report::{LlcReport, ScanReport};
use quell_llc::scan::{ScanSettings, scan};
use quell_llc::{Source, Tier};
use quell_report::{Cell, Column, Table, Tone, Unit, estimate, value};
use quell_topology::format_cpu_list;

use super::monitor_args::{MonitorArgs, whole_periods};
use super::values::time;
use crate::terminal::{self, wrapped};

/// Measures how contended the last-level cache of this machine is.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    monitor: MonitorArgs,

    /// How long to watch, rounded to whole periods
    #[arg(long, value_parser = time, default_value = "10s", value_name = "TIME")]
    duration: Duration,

    /// Do not measure how much of the cache is usable (that fills the cache for half a second)
    #[arg(long)]
    no_capacity: bool,

    /// Exit with code 1 if any cache is at least this contended
    #[arg(long, value_enum, value_name = "TIER")]
    fail_on: Option<FailOn>,

    /// Print the result as JSON (schema quell.scan/1)
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FailOn {
    Moderate,
    Heavy,
    Saturated,
}

impl FailOn {
    fn tier(self) -> Tier {
        match self {
            Self::Moderate => Tier::Moderate,
            Self::Heavy => Tier::Heavy,
            Self::Saturated => Tier::Saturated,
        }
    }
}

/// No scan takes longer than this; `quell watch` does.
const LONGEST: Duration = Duration::from_secs(3600);

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let settings = args.monitor.settings()?;
    let periods = whole_periods(args.duration, settings)?;
    if args.duration > LONGEST {
        bail!(
            "--duration {} is too long: a scan may take an hour; use `quell watch` to keep measuring",
            humantime::format_duration(args.duration)
        );
    }
    let (topology, targets) = args.monitor.targets()?;
    let stop = terminal::stop_flag()?;
    let bar = terminal::progress(1, "measuring");
    let start = Instant::now();
    let scans = scan(
        &targets,
        ScanSettings {
            monitor: settings,
            periods,
            capacity: !args.no_capacity,
            priority: args.monitor.priority,
            seed: args.monitor.seed(),
        },
        &stop,
        &|progress| {
            bar.set_length(progress.total as u64);
            bar.set_position(progress.done as u64);
        },
    );
    bar.finish_and_clear();
    let mut notes = Vec::new();
    if stop.load(Ordering::Relaxed) {
        notes.push(format!(
            "interrupted after {:.1} s; the figures are those so far",
            start.elapsed().as_secs_f64()
        ));
    }
    let report = ScanReport::new(&topology, &scans, start.elapsed(), notes);
    if args.json {
        terminal::print_json(&report)?;
    } else {
        terminal::print(&human(&report))?;
    }
    Ok(exit_code(&report, args.fail_on))
}

/// 1 if the contention that the user does not want was found, 2 if it could not be told, else 0.
fn exit_code(report: &ScanReport, fail_on: Option<FailOn>) -> ExitCode {
    let Some(fail_on) = fail_on else { return ExitCode::SUCCESS };
    if report.llcs.iter().any(|llc| llc.tier >= Some(fail_on.tier())) {
        ExitCode::from(1)
    } else if report.llcs.iter().any(|llc| llc.tier.is_none()) {
        ExitCode::from(2)
    } else {
        ExitCode::SUCCESS
    }
}

fn human(report: &ScanReport) -> String {
    let machine = &report.machine;
    let mut text = wrapped(&format!(
        "{} ({}), {}, CPU {}",
        machine.cpu.as_deref().unwrap_or("unnamed CPU"),
        machine.cpu_id,
        machine.hypervisor.as_deref().unwrap_or("no hypervisor seen"),
        format_cpu_list(&machine.cpus)
    ));
    text.push('\n');
    for llc in &report.llcs {
        text += &llc_table(llc).render(terminal::look());
        text.push('\n');
    }
    text += &placement_table(report).render(terminal::look());
    text.push('\n');
    let cost = report.cost;
    let percent = |share: Option<f64>| share.map_or_else(|| "?".into(), |pct| format!("{pct:.2}"));
    text += &wrapped(&format!(
        "Cost: {} ms of CPU time per second; a window touches {} ({} % of the LLC), its canary {} %.",
        cost.cpu_ms_per_s.map_or_else(|| "?".into(), |ms| format!("{ms:.1}")),
        cost.footprint_bytes.map_or_else(|| "?".into(), |bytes| Bytes(bytes).to_string()),
        percent(cost.footprint_pct),
        percent(cost.canary_pct)
    ));
    let discarded = report.discarded_windows;
    text += &wrapped(&format!(
        "Windows: {}; thrown away: {} for placement jumps, {} for gaps, {} for preemption. Took {:.1} s.",
        report.llcs.iter().map(|llc| llc.windows).sum::<usize>(),
        discarded.placement,
        discarded.tsc_gap,
        discarded.preempted,
        report.duration_s
    ));
    text.push('\n');
    for sentence in &report.verdict {
        text += &wrapped(sentence);
    }
    for note in &report.notes {
        text += &wrapped(&format!("Note: {note}"));
    }
    text
}

fn llc_table(llc: &LlcReport) -> Table {
    let size = llc.advertised_bytes.map_or_else(|| "size unknown".into(), |bytes| Bytes(bytes).to_string());
    let title = format!("LLC {} on CPU {}, {size}", llc.id, format_cpu_list(&llc.cpus));
    let mut table = Table::new([Column::text(title), Column::text("")]);
    let (tier, tone) = match llc.tier {
        Some(tier @ Tier::Quiet) => (tier.name(), Tone::Good),
        Some(tier @ Tier::Moderate) => (tier.name(), Tone::Notice),
        Some(tier) => (tier.name(), Tone::Bad),
        None => ("unknown", Tone::Faint),
    };
    table.row(["contention".into(), Cell::toned(tier, tone)]);
    let mut row = |name: &str, estimate_: &Estimate, unit| {
        let tone = if estimate_.value().is_some() { Tone::Plain } else { Tone::Faint };
        table.row([name.into(), Cell::toned(estimate(estimate_, unit), tone)]);
    };
    row("half-life of an untouched line", &llc.half_life_ms, Unit::Milliseconds);
    row("hazard at the half-life", &llc.hazard_per_ms, Unit::Named("/ms"));
    row("eviction rate over 7 ms", &llc.rate_pct_per_ms, Unit::Named("%/ms"));
    let source = match llc.source {
        Source::Unknown => format!("unknown: {}", llc.source_grounds),
        known => format!("{} ({})", known.name(), llc.source_grounds),
    };
    table.row(["evicted by".into(), source.into()]);
    table.row(["usable".into(), usable(&llc.usable_bytes).into()]);
    let controls = match (llc.false_hits_pct, llc.lost_at_once_pct) {
        (Some(false_hits), Some(lost)) => {
            format!("{false_hits:.1} % false hits, {lost:.1} % lost without waiting")
        }
        _ => "unknown".into(),
    };
    table.row(["controls".into(), controls.into()]);
    if let Some(window) = llc.window_ms {
        table.row(["window".into(), value(window, Unit::Milliseconds).into()]);
    }
    table
}

fn usable(usable: &Usable) -> String {
    match usable {
        Usable::Range { lo, hi } => {
            let mib = |bytes: &u64| *bytes as f64 / f64::from(1 << 20);
            format!("{:.1} to {:.1} MiB over {} tries", mib(lo), mib(hi), quell_llc::capacity::REPETITIONS)
        }
        Usable::Unknown { reason, .. } => format!("unknown: {reason}"),
    }
}

fn placement_table(report: &ScanReport) -> Table {
    let mut table = Table::new([
        Column::text("CPUs"),
        Column::text("share a cache"),
        Column::text("moves"),
        Column::number("round trip"),
    ]);
    for pair in &report.placement.pairs {
        let rtt = pair.summary.rtt_ns.map_or_else(|| "unknown".into(), |ns| format!("{ns:.0} ns"));
        table.row([
            format!("{}, {}", pair.cpus[0], pair.cpus[1]).into(),
            estimate(&pair.summary.near_pct, Unit::Named("% of the time")).into(),
            estimate(&pair.summary.switches_per_s, Unit::Named("/s")).into(),
            rtt.into(),
        ]);
    }
    if report.placement.pairs.is_empty() {
        table.row(["none".into(), estimate(&report.placement.near_pct, Unit::Named("%")).into()]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_core::LlcId;
    use quell_llc::scan::LlcScan;
    use quell_llc::session::Target;
    use quell_topology::Topology;

    /// A report on LLCs of these tiers.
    fn report(tiers: &[Option<Tier>]) -> ScanReport {
        let target =
            Target { llc: LlcId(0), cpus: Vec::new(), advertised: Bytes(0), l2: Bytes(0), l2_ways: None };
        let scan = LlcScan {
            target,
            calibration: None,
            companions: Vec::new(),
            measured: Err("not measured".into()),
            notes: Vec::new(),
        };
        let scans = vec![scan; tiers.len()];
        let mut report = ScanReport::new(&Topology::default(), &scans, Duration::ZERO, Vec::new());
        for (llc, tier) in report.llcs.iter_mut().zip(tiers) {
            llc.tier = *tier;
        }
        report
    }

    #[test]
    fn fail_on_names_the_worst_tier_that_is_still_wanted() {
        use Tier::{Heavy, Moderate, Quiet, Saturated};
        let code = |tiers: &[Option<Tier>], fail_on| format!("{:?}", exit_code(&report(tiers), fail_on));
        let is = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(code(&[Some(Saturated), None], None), is(0));
        assert_eq!(code(&[Some(Quiet)], Some(FailOn::Moderate)), is(0));
        assert_eq!(code(&[Some(Moderate)], Some(FailOn::Moderate)), is(1));
        assert_eq!(code(&[Some(Moderate)], Some(FailOn::Heavy)), is(0));
        assert_eq!(code(&[Some(Heavy), Some(Quiet)], Some(FailOn::Saturated)), is(0));
        assert_eq!(code(&[Some(Quiet), Some(Saturated)], Some(FailOn::Saturated)), is(1));
        // What could not be told is neither good nor bad, but something bad elsewhere is.
        assert_eq!(code(&[Some(Quiet), None], Some(FailOn::Heavy)), is(2));
        assert_eq!(code(&[Some(Heavy), None], Some(FailOn::Heavy)), is(1));
    }

    #[test]
    fn the_cost_of_what_was_not_measured_is_unknown() {
        let report = report(&[None]);
        assert_eq!((report.cost.cpu_ms_per_s, report.cost.footprint_bytes), (None, None));
        assert!(human(&report).contains("Cost: ? ms"), "{}", human(&report));
    }
}
