//! `quell bench truth`.

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::{Result, bail};
use quell_core::stats::quantile;
use quell_llc::truth::{CellResult, Disturbance, Preset, TruthReport, grid, run as run_grid};
use quell_report::{Cell, Column, Table, Tone};

use crate::terminal;

/// Runs the monitor on simulated machines whose truth is known, over a grid of neighbors, and counts how often
/// its confidence intervals hold the truth. Says nothing of the machine it runs on.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Simulated scans per cell of the grid (the whole grid has 62 cells)
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Only this machine
    #[arg(long, value_parser = Preset::ALL.map(Preset::name))]
    preset: Option<String>,

    /// Only this disturbance
    #[arg(long, value_parser = Disturbance::ALL.map(Disturbance::name))]
    disturbance: Option<String>,

    /// Print the result with every round as JSON (schema quell.truth/1)
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let cells: Vec<_> = grid()
        .into_iter()
        .filter(|cell| args.preset.as_deref().is_none_or(|name| cell.preset.name() == name))
        .filter(|cell| args.disturbance.as_deref().is_none_or(|name| cell.disturbance.name() == name))
        .collect();
    let stop = terminal::stop_flag()?;
    let bar = terminal::progress(cells.len() as u64 * u64::from(args.rounds), "simulating");
    let results = run_grid(&cells, args.rounds as usize, &stop, &|done| bar.set_position(done as u64))?;
    bar.finish_and_clear();
    let report = TruthReport::new(results);
    if report.rounds == 0 {
        bail!("interrupted before the first simulated scan ended");
    }
    if args.json {
        terminal::print_json(&report)?;
    } else {
        terminal::print(&human(&report))?;
    }
    if stop.load(Ordering::Relaxed) {
        terminal::complain("note: interrupted; the figures are those of the rounds so far");
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn human(report: &TruthReport) -> String {
    let mut table = Table::new([
        Column::text("machine"),
        Column::text("neighbors"),
        Column::number("half-life ms"),
        Column::number("covered"),
        Column::number("of"),
        Column::number("unknown"),
        Column::number("estimate/truth"),
        Column::number("hi/lo"),
        Column::number("source right"),
        Column::number("of"),
        Column::number("cpu ms/s"),
    ]);
    for cell in &report.cells {
        table.row(row(cell));
    }
    let share = |share: Option<f64>| share.map_or_else(|| "-".into(), |s| format!("{:.1} %", s * 100.0));
    format!(
        "{}\nSimulated, {} scans: intervals that hold the truth {} of {} (aim: 93 %); sources named right {} of {} (aim: 95 %); \
         saturated or quiet caches reported as a number: {}.\n",
        table.render(terminal::look()),
        report.rounds,
        share(report.coverage),
        report.known,
        share(report.sources_right),
        report.sources,
        report.false_numbers
    )
}

fn row(result: &CellResult) -> Vec<Cell> {
    let median = |values: Vec<f64>| quantile(&values, 0.5).map_or_else(|| "-".into(), |v| format!("{v:.2}"));
    let rounds = &result.rounds;
    let known = rounds.iter().filter(|round| round.covered.is_some()).count();
    let covered = rounds.iter().filter(|round| round.covered == Some(true)).count();
    let estimates = || rounds.iter().filter_map(|round| Some((round.estimate_ms?, round.true_half_life_ms?)));
    let sources = rounds.iter().fold([0, 0], |sum, r| [sum[0] + r.sources[0], sum[1] + r.sources[1]]);
    let tone = if covered * 100 >= known * 85 { Tone::Plain } else { Tone::Notice };
    vec![
        result.cell.preset.name().into(),
        result.cell.disturbance.name().into(),
        median(rounds.iter().filter_map(|round| round.true_half_life_ms).collect()).into(),
        Cell::toned(covered.to_string(), tone),
        known.to_string().into(),
        (rounds.len() - known).to_string().into(),
        median(estimates().map(|(estimate, truth)| estimate[1] / truth).collect()).into(),
        median(estimates().map(|(estimate, _)| estimate[2] / estimate[0]).collect()).into(),
        sources[0].to_string().into(),
        sources[1].to_string().into(),
        median(rounds.iter().map(|round| round.cpu_ms_per_s).collect()).into(),
    ]
}
