//! `quell bench build`.

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::{Result, bail};
use quell_llc::evset::llc::bench::{BuildReport, BuildResult, cases, run as run_cases};
use quell_report::{Cell, Column, Table, Tone};

use crate::terminal::{self, wrapped};

/// Builds LLC eviction sets on simulated machines whose true sets are known, and counts how many are right and what
/// they cost. Says nothing of the machine it runs on.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this machine
    #[arg(long, value_parser = ["skylake-sp", "ice-lake-sp", "sapphire-rapids", "milan", "genoa"])]
    preset: Option<String>,

    /// Page offsets, four sets per color each
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=64))]
    offsets: u32,

    /// Seed of the machines and of every choice
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Print the result as JSON (schema quell.build/1)
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let cases: Vec<_> = cases()
        .into_iter()
        .filter(|case| args.preset.as_deref().is_none_or(|name| case.name == name))
        .collect();
    let stop = terminal::stop_flag()?;
    let bar = terminal::progress(cases.len() as u64, "simulating");
    let results = run_cases(&cases, args.offsets, args.seed, &stop, &|done| bar.set_position(done as u64))?;
    bar.finish_and_clear();
    if results.is_empty() {
        bail!("interrupted before the first machine was done");
    }
    let report = BuildReport::new(results);
    if args.json {
        terminal::print_json(&report)?;
    } else {
        terminal::print(&human(&report))?;
    }
    if stop.load(Ordering::Relaxed) {
        terminal::complain("note: interrupted; the figures are those of the machines so far");
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn human(report: &BuildReport) -> String {
    let mut table = Table::new([
        Column::text("machine"),
        Column::text("neighbors"),
        Column::number("ways"),
        Column::number("found"),
        Column::number("sets"),
        Column::number("covered"),
        Column::number("right"),
        Column::number("accesses/set"),
        Column::number("baseline"),
        Column::number("simulated s"),
    ]);
    for result in &report.presets {
        table.row(row(result));
    }
    let mut text = table.render(terminal::look());
    text.push('\n');
    text += &wrapped(&format!(
        "Simulated, {} vCPUs in pairs. Baseline: group testing from the same candidates at every page offset, in \
         multiples of the accesses.",
        report.vcpus
    ));
    for result in &report.presets {
        if let Some(reason) = &result.fallback {
            text += &wrapped(&format!("{}: no sets, use the color canary: {reason}.", result.name));
        }
    }
    text
}

fn row(result: &BuildResult) -> Vec<Cell> {
    let percent = |share: Option<f64>| share.map_or_else(|| "-".into(), |pct| format!("{pct:.2} %"));
    let per_set = (result.sets > 0).then(|| result.accesses / result.sets as u64);
    let good = result.valid_pct.is_some_and(|pct| pct >= 99.0);
    vec![
        result.name.into(),
        result.noise.into(),
        result.true_ways.to_string().into(),
        result.ways.map_or_else(|| "-".into(), |ways| ways.to_string()).into(),
        result.sets.to_string().into(),
        percent(Some(result.coverage_pct)).into(),
        Cell::toned(percent(result.valid_pct), if good { Tone::Good } else { Tone::Notice }),
        per_set.map_or_else(|| "-".into(), |n| n.to_string()).into(),
        result.ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.1}×")).into(),
        format!("{:.2}", result.sim_seconds).into(),
    ]
}
