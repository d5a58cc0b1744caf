//! `quell migrate`: what `move_pages` costs on this machine.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use quell_migrate::{CaseSummary, Survey, SurveyOptions, survey};
use quell_report::{Column, Look, Table};

use crate::terminal;

/// Measures what moving pages between NUMA nodes costs here, and how much of it is not the copy.
///
/// Times the `move_pages` system call, without privilege: the query form, the move of pages to the node where they
/// already are, and, where a second node has memory, real moves. Exits with 0, or with 2 if it could not measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Longest call you can bear at the 99th percentile (such as 1ms): recommends a batch size for it
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    budget: Option<Duration>,
    /// Pages in one call, each size in turn
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,4,16,64,256",
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pages: Vec<u32>,
    /// Calls of each kind
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    samples: u32,
    /// End after this time with what was measured by then
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = humantime::parse_duration)]
    time_limit: Duration,
    /// Print JSON (quell.migrate/1)
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let options = SurveyOptions {
        pages: args.pages.clone(),
        samples: args.samples,
        time_limit: args.time_limit,
        budget: args.budget,
    };
    let result = survey(&options).context("cannot measure move_pages")?;
    if args.json {
        terminal::print_json(&result)?;
    } else {
        terminal::print(&human(&result, terminal::look()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn human(survey: &Survey, look: Look) -> String {
    let mut text = format!("move_pages on Linux {}, CPU {}, microseconds\n\n", survey.kernel, survey.cpu);
    let number = Column::number;
    let mut table = Table::new([
        Column::text("call"),
        number("pages"),
        number("median"),
        number("P99"),
        number("max"),
        number("samples"),
    ]);
    for case in &survey.cases {
        let micros = |nanos: f64| format!("{:.1}", nanos / 1e3);
        table.row([
            case.case.call.to_string().into(),
            case.case.pages.to_string().into(),
            micros(case.median_ns).into(),
            micros(case.p99_nearest_rank_ns).into(),
            micros(case.max_ns).into(),
            case.samples.to_string().into(),
        ]);
    }
    text += &table.render(look);
    text += "\n";
    text += &terminal::wrapped(
        "query: asks where the pages are. noop: \"moves\" them to where they are, so all that it takes beyond the query \
         is the kernel's preparation. P99 is the nearest rank.",
    );
    text += "\n";
    text += &terminal::wrapped(&survey.verdict);
    for problem in survey.cases.iter().filter_map(problem).chain(survey.warnings.iter().cloned()) {
        text += &terminal::wrapped(&format!("note: {problem}"));
    }
    if let Some(recommendation) = &survey.recommendation {
        let _ = writeln!(text, "batch for this budget: {}", recommendation.text);
    }
    text
}

fn problem(case: &CaseSummary) -> Option<String> {
    let bad = case.failed_pages + case.misplaced_pages + case.corrupt_pages;
    (bad > 0).then(|| {
        format!(
            "{} of {} pages: {} not moved, {} found elsewhere, {} with wrong content",
            case.case.call, case.case.pages, case.failed_pages, case.misplaced_pages, case.corrupt_pages
        )
    })
}
