//! `quell evsets`.

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail};
use quell_core::memory::LINES_PER_PAGE;
use quell_llc::evset::llc::report::{EvsetsReport, crew_for, shape_of};
use quell_llc::evset::llc::{BuildSettings, Stage, construct};
use quell_llc::scan::targets;
use quell_report::{Column, Table};
use quell_topology::format_cpu_list;

use super::monitor_args::{random_seed, read_topology};
use super::values::cpu_list;
use crate::terminal::{self, wrapped};

/// Builds eviction sets of the last-level cache and verifies each: whether it evicts what it should, and nothing
/// else. Where that is impossible the evidence is printed, and the exit code is 2.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// CPUs to work on, for example `0,2-3` [default: all of the first LLC that this process may use]
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,

    /// Sets for each page color and page offset
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    per_color: u32,

    /// Page offsets
    #[arg(long, default_value_t = LINES_PER_PAGE, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    offsets: u32,

    /// Seed for targets and orders [default: different each time]
    #[arg(long)]
    seed: Option<u64>,

    /// Print the result as JSON (schema quell.evsets/1)
    #[arg(long)]
    json: bool,
}

/// No construction takes longer than this, in ms.
const TOTAL_MS: f64 = 60_000.0;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let topology = read_topology()?;
    let cpus = args.cpus.as_deref().map(cpu_list).transpose()?;
    let target =
        targets(&topology, cpus.as_deref())?.into_iter().next().context("nothing is known of any cache")?;
    let shape = shape_of(&topology, &target)?;
    let seed = args.seed.unwrap_or_else(random_seed);
    let settings = BuildSettings {
        per_color: args.per_color as usize,
        slots: (0..args.offsets).collect(),
        total_ms: TOTAL_MS,
        ..BuildSettings::new(shape.llc_ways as usize, seed)
    };
    let stop = terminal::stop_flag()?;
    let mut crew = crew_for(&topology, &target, shape)?;
    let bar = terminal::progress(1, "calibrating");
    let outcome = construct(&mut crew, shape, &settings, &|stage| {
        match stage {
            Stage::Calibrating => {}
            Stage::Coloring => bar.set_message("learning page colors"),
            Stage::Filtering => bar.set_message("sorting candidates"),
            Stage::Building(sets) => {
                bar.set_message("building sets");
                bar.set_length(settings.wanted(shape.l2.expected_colors() as usize) as u64);
                bar.set_position(sets as u64);
            }
        }
        !stop.load(Ordering::Relaxed)
    });
    bar.finish_and_clear();
    if stop.load(Ordering::Relaxed) {
        bail!("interrupted before the sets were built");
    }
    let report = EvsetsReport::new(&topology, &target, &crew, shape, &outcome);
    if args.json {
        terminal::print_json(&report)?;
    } else {
        terminal::print(&human(&report))?;
    }
    Ok(if report.reason.is_none() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

fn human(report: &EvsetsReport) -> String {
    let stations: Vec<String> = report.stations.iter().map(|cpus| format_cpu_list(cpus)).collect();
    let mut text = wrapped(&format!(
        "{} ({}), LLC {}, working on CPU {}.",
        report.machine.cpu.as_deref().unwrap_or("unnamed CPU"),
        report.machine.cpu_id,
        report.llc,
        stations.join(" and ")
    ));
    text.push('\n');
    text += &facts(report).render(terminal::look());
    text.push('\n');
    if !report.failures.is_empty() {
        let mut table = Table::new([Column::text("failed tries"), Column::number("")]);
        for failure in &report.failures {
            table.row([failure.reason.as_str().into(), failure.tries.to_string().into()]);
        }
        text += &table.render(terminal::look());
        text.push('\n');
    }
    match (&report.reason, report.ways) {
        (Some(reason), _) => text += &wrapped(&format!("No usable eviction sets: {reason}.")),
        (None, Some(ways)) if report.way_limited == Some(true) => {
            text += &wrapped(&format!(
                "A set has {ways} lines, though the LLC is said to have {} ways: this machine may use {ways} of them (way \
                 limits, such as Intel CAT).",
                report.advertised_ways
            ));
        }
        _ => {
            text += &wrapped(
                "Every set evicts its target, does not with a line less, and spares other sets' targets.",
            );
        }
    }
    text
}

fn facts(report: &EvsetsReport) -> Table {
    let or_unknown = |value: Option<String>| value.unwrap_or_else(|| "unknown".into());
    let mut table = Table::new([Column::text("eviction sets"), Column::text("")]);
    let mut row = |name: &str, value: String| {
        table.row([name.into(), value.into()]);
    };
    row(
        "verified, of those wanted",
        format!("{} of {} ({:.2} %)", report.sets, report.wanted, report.coverage_pct),
    );
    row(
        "lines of a set",
        format!(
            "{}; the LLC is said to have {} ways",
            or_unknown(report.ways.map(|ways| ways.to_string())),
            report.advertised_ways
        ),
    );
    let sizes =
        report.sizes.iter().map(|size| format!("{} of {}", size.sets, size.lines)).collect::<Vec<_>>();
    row("sizes at the first offset", if sizes.is_empty() { "none found".into() } else { sizes.join(", ") });
    row("page colors", or_unknown(report.colors.map(|colors| colors.to_string())));
    row(
        "LLC sets per color and offset",
        or_unknown(report.llc_sets_per_color.map(|sets| format!("about {sets:.0}, over all slices"))),
    );
    row("candidate pages", report.candidates.to_string());
    row("lines loaded", format!("{} ({} trials void)", report.accesses, report.void_trials));
    let ms = report.duration_ms;
    row(
        "time",
        format!(
            "{:.0} ms for colors, {:.0} for candidates, {:.0} for sets",
            ms.coloring, ms.filtering, ms.building
        ),
    );
    table
}
