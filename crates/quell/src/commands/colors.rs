//! `quell colors`.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use quell_core::{Bytes, Estimate};
use quell_llc::color::frames::predict;
use quell_llc::color::partition::{Verdict, partition};
use quell_llc::color::permutations;
use quell_llc::color::report::{CheckReport, ColorsReport, SecondPass};
use quell_llc::scan::targets;
use quell_llc::session::Session;
use quell_report::{Column, Table};
use quell_topology::Topology;

use super::monitor_args::{pool_pages, random_seed, read_topology};
use super::values::{cpu_list, positive_time};
use crate::terminal::{self, wrapped};

/// Sorts pages by color, that is by the cache sets they compete for, and checks the result against a second,
/// independent pass (about 2 s).
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(flatten)]
    pool: PoolArgs,

    /// Also test whether colors partition the last-level cache: does a stream through one color evict others?
    #[arg(long)]
    llc: bool,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Hold the pages, sort them again after a while, and print the share whose color still matches.
    Check(CheckArgs),
}

#[derive(Debug, clap::Args)]
struct CheckArgs {
    #[command(flatten)]
    pool: PoolArgs,

    /// Time to wait between the two, for example `10m`
    #[arg(long, value_parser = positive_time, value_name = "TIME")]
    after: Duration,
}

#[derive(Debug, clap::Args)]
struct PoolArgs {
    /// The CPU to measure on [default: the first that this process may use]
    #[arg(long, value_name = "CPU")]
    cpu: Option<String>,

    /// Memory to sort, in MiB [default: 16, with --llc twice the LLC]
    #[arg(long, allow_negative_numbers = true, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=256))]
    pool: Option<u64>,

    /// Seed for everything random [default: different each time]
    #[arg(long, allow_negative_numbers = true)]
    seed: Option<u64>,

    /// Print the result as JSON (schema quell.colors/1, for a check quell.colors-check/1)
    #[arg(long)]
    json: bool,
}

/// Memory sorted by default.
const POOL: Bytes = Bytes::mib(16);
/// With --llc the pool holds this multiple of the LLC: streams must exceed a color's share of it.
const POOL_OF_LLC: u64 = 2;
/// How often a wait looks for Ctrl-C.
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Some(Command::Check(check)) => run_check(check),
        None => sort(args),
    }
}

fn sort(args: &Args) -> Result<ExitCode> {
    let topology = read_topology()?;
    let mut session = open(&args.pool, args.llc, &topology)?;
    let (cpu, llc) = (session.target.probe_cpu(), session.target.advertised);
    let seed = args.pool.seed.unwrap_or_else(random_seed);
    let sorted = classify(&mut session, seed)?;
    let second = session.classify(seed.wrapping_add(1));
    let calibration = session.calibration.clone();
    let (memory, layout) = session.parts();
    let found = permutations(memory, &sorted, seed);
    let mut report = ColorsReport::new(&topology, cpu, &sorted, &found);
    report.second_pass(&sorted, second);
    match memory.frames() {
        Some(frames) => {
            let of_pool = &frames[sorted.pool.first as usize..];
            report.guest_frames = predict(of_pool, &sorted.labels, sorted.colors(), seed);
        }
        None => report.guest_frames_reason = Some("only root may see guest-physical addresses".into()),
    }
    if args.llc {
        report.llc(partition(memory, &sorted, layout, &calibration, llc, seed));
    }
    if args.pool.json {
        terminal::print_json(&report)?;
    } else {
        terminal::print(&human(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn run_check(args: &CheckArgs) -> Result<ExitCode> {
    let topology = read_topology()?;
    let stop = terminal::stop_flag()?;
    let mut session = open(&args.pool, false, &topology)?;
    let cpu = session.target.probe_cpu();
    let seed = args.pool.seed.unwrap_or_else(random_seed);
    let first = classify(&mut session, seed)?;
    let start = Instant::now();
    if !wait(args.after, &stop) {
        bail!("interrupted before the second classification");
    }
    let after_s = start.elapsed().as_secs_f64();
    let again = classify(&mut session, seed.wrapping_add(1))?;
    let report = CheckReport::new(&topology, cpu, &first, &again, after_s);
    if args.pool.json {
        terminal::print_json(&report)?;
    } else {
        terminal::print(&human_check(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The CPU asked for, with memory for the pool.
fn open(args: &PoolArgs, llc: bool, topology: &Topology) -> Result<Session> {
    let asked = args.cpu.as_deref().map(cpu_list).transpose()?;
    if asked.as_ref().is_some_and(|cpus| cpus.len() != 1) {
        bail!("--cpu takes one CPU, for example 0");
    }
    let mut target =
        targets(topology, asked.as_deref())?.into_iter().next().context("there is no CPU to measure on")?;
    target.cpus.truncate(1);
    let size = match args.pool {
        Some(mib) => Bytes::mib(mib),
        None if llc => Bytes((target.advertised.0 * POOL_OF_LLC).max(POOL.0)),
        None => POOL,
    };
    let seed = args.seed.unwrap_or_else(random_seed);
    Session::with_pool(target, pool_pages(size), seed).context("cannot set up the measuring CPU")
}

fn classify(session: &mut Session, seed: u64) -> Result<quell_llc::color::Classification> {
    session.classify(seed).map_err(|reason| anyhow!("page colors are unknown here: {reason}"))
}

/// Waits, and says whether the whole time has passed.
fn wait(span: Duration, stop: &AtomicBool) -> bool {
    let start = Instant::now();
    while start.elapsed() < span {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::sleep(LOOK_EVERY.min(span.saturating_sub(start.elapsed())));
    }
    true
}

fn human(report: &ColorsReport) -> String {
    let pages: Vec<usize> = report.colors.iter().map(|color| color.pages).collect();
    let mut text = wrapped(&format!(
        "CPU {}: L2 of {} with {} ways; {} of {} pages sorted into {} colors in {:.0} ms, {} to {} pages each; {} without a \
         color. {} searches, {} of them failed and repeated, {} duplicates merged.",
        report.cpu,
        report.l2_bytes,
        report.l2_ways,
        report.pool_pages as usize - report.unknown_pages,
        report.pool_pages,
        report.colors.len(),
        report.effort.ms,
        pages.iter().min().unwrap_or(&0),
        pages.iter().max().unwrap_or(&0),
        report.unknown_pages,
        report.effort.tries,
        report.effort.failed,
        report.effort.merged,
    ));
    text += &wrapped(&match (&report.second_pass, &report.second_pass_reason) {
        (Some(second), _) => format!("Second pass at other page offsets: {}.", compared(second)),
        (None, reason) => format!("Second pass: unknown: {}.", reason.as_deref().unwrap_or("it did not run")),
    });
    text += &wrapped(&permutation_sentence(report));
    text += &wrapped(&match (&report.guest_frames, &report.guest_frames_reason) {
        (Some(found), _) => format!(
            "Guest-physical addresses {} colors: the strongest of {} parities of frame bits has a bias of {:.3}, at random \
             up to {:.3} ({} pairs of pages).",
            if found.predicts { "predict" } else { "do not predict" },
            (1_u32 << found.frame_bits) - 1,
            found.bias,
            found.bias_by_chance,
            found.pairs
        ),
        (None, reason) => {
            format!(
                "Guest-physical addresses: unknown: {}.",
                reason.as_deref().unwrap_or("no two pages of one color")
            )
        }
    });
    text.push('\n');
    text += &color_table(report).render(terminal::look());
    text += &llc_section(report);
    text
}

fn compared(second: &SecondPass) -> String {
    format!(
        "{} colors, {} pages without one; of {} pages with a color in both {} agree ({})",
        second.colors,
        second.unknown_pages,
        second.compared,
        second.agreeing,
        second.agreeing_pct.map_or_else(|| "unknown".into(), |pct| format!("{pct:.1} %"))
    )
}

fn permutation_sentence(report: &ColorsReport) -> String {
    let known: u32 = report.permutation_pages.iter().sum();
    let share = |n: &u32| format!("{:.0}", 100.0 * f64::from(*n) / f64::from(known.max(1)));
    let shares = report.permutation_pages.iter().map(share).collect::<Vec<_>>().join(", ");
    if known == 0 {
        "Permutation of address bits 9 to 11: unknown: no page could be compared with others of its color."
            .into()
    } else if report.permuted {
        format!("Address bits 9 to 11 are permuted by page: {shares} % of {known} pages in the eight ways.")
    } else {
        format!("Address bits 9 to 11 are not permuted: {shares} % of {known} pages in the eight ways.")
    }
}

fn color_table(report: &ColorsReport) -> Table {
    let mut table = Table::new([
        Column::number("color"),
        Column::number("pages"),
        Column::number("in second pass"),
        Column::number("agreeing"),
    ]);
    for color in &report.colors {
        let number = |value: Option<u32>| value.map_or_else(|| "-".into(), |n| n.to_string());
        table.row([
            color.color.to_string().into(),
            color.pages.to_string().into(),
            number(color.compared).into(),
            number(color.agreeing).into(),
        ]);
    }
    table
}

fn llc_section(report: &ColorsReport) -> String {
    let Some(llc) = &report.llc else {
        let reason = report.llc_reason.as_ref();
        return reason.map_or_else(String::new, |reason| {
            format!("\n{}", wrapped(&format!("Colors and the LLC: unknown: {reason}.")))
        });
    };
    let verdict = match &llc.verdict {
        Verdict::Partitioned => "Colors partition the LLC".to_owned(),
        Verdict::Shared => "Colors do not partition the LLC".to_owned(),
        Verdict::Unknown(reason) => format!("Colors and the LLC: unknown: {reason}"),
    };
    let mut text = wrapped(&format!(
        "{verdict}. A canary of {} lines of one color, then a stream of {} by this CPU:",
        llc.canary_lines, llc.stream_bytes
    ));
    let mut table = Table::new([
        Column::text("stream"),
        Column::number("canary lost %"),
        Column::number("95 %"),
        Column::number("mostly lost"),
        Column::number("rounds"),
    ]);
    for arm in &llc.arms {
        let (value, interval) = match &arm.lost_pct {
            Estimate::Known { value, ci95: [lo, hi], .. } => {
                (format!("{value:.1}"), format!("{:.1}-{:.1}", lo.max(0.0), hi.min(100.0)))
            }
            Estimate::Unknown { .. } => ("unknown".into(), "-".into()),
        };
        let name = match arm.stream.name() {
            "same" => "same color",
            "other" => "another color",
            "random" => "random colors",
            other => other,
        };
        table.row([
            name.into(),
            value.into(),
            interval.into(),
            arm.mostly_lost.to_string().into(),
            arm.rounds.to_string().into(),
        ]);
    }
    text += &table.render(terminal::look());
    format!("\n{text}")
}

fn human_check(report: &CheckReport) -> String {
    wrapped(&format!(
        "CPU {}: {} colors, {} of {} pages without one. Sorted again after {}: {}.",
        report.cpu,
        report.colors,
        report.unknown_pages,
        report.pool_pages,
        humantime::format_duration(Duration::from_secs(report.after_s.round() as u64)),
        compared(&report.again)
    ))
}
