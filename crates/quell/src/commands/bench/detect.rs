//! `quell bench detect`.

use std::fmt::Write;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail};
use quell_core::stats::quantile;
use quell_core::{Bytes, CpuId};
use quell_llc::detect::{DUTIES, Detection, DetectionReport, Experiment, Round, Score, detect};
use quell_llc::scan::targets;
use quell_llc::session::{Session, Target};
use quell_report::{Column, Table};
use quell_topology::{Placement, Topology, format_cpu_list};

use crate::commands::monitor_args::{random_seed, read_topology};
use crate::commands::values::cpu_list;
use crate::terminal::{self, wrapped};

/// Lets a thread on another vCPU stream through memory for 0 to 100 % of the time and checks how well the
/// measured hazard follows. Rounds in which the host had the two vCPUs in one LLC (near) and in different
/// ones (far) are scored apart.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The measuring and the polluting CPU, for example `0,1` [default: the first two of the first LLC]
    #[arg(long, value_name = "PROBE,POLLUTER")]
    cpus: Option<String>,

    /// Rounds, all duties together
    #[arg(long, allow_negative_numbers = true, default_value_t = 200, value_parser = clap::value_parser!(u32).range(10..=1200))]
    rounds: u32,

    /// What the polluter streams through, in MiB [default: three quarters of the LLC, 16 to 24 MiB]
    #[arg(long, allow_negative_numbers = true, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1024))]
    working_set: Option<u64>,

    /// Seed for the order of duties and the times of windows [default: different each time]
    #[arg(long, allow_negative_numbers = true)]
    seed: Option<u64>,

    /// Print the result with all samples as JSON (schema quell.detect/1)
    #[arg(long)]
    json: bool,

    /// Print the samples as CSV
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let topology = read_topology()?;
    let (target, polluter_cpu) = choose(args, &topology)?;
    let working_set = args
        .working_set
        .map_or_else(|| Bytes((target.advertised.0 / 4 * 3).clamp(16 << 20, 24 << 20)), Bytes::mib);
    let seed = args.seed.unwrap_or_else(random_seed);
    let stop = terminal::stop_flag()?;
    let probe_cpu = target.probe_cpu();
    let mut session = Session::open(target, seed).context("cannot set up the measuring CPU")?;
    let calibration = session.calibration.clone();
    let bar = terminal::progress(u64::from(args.rounds), "measuring");
    let (memory, layout) = session.parts();
    let layout = layout.clone();
    let experiment = Experiment { polluter_cpu, working_set, rounds: args.rounds as usize, seed };
    let detection = detect(memory, &calibration, &layout, experiment, |done| {
        bar.set_position(done as u64);
        !stop.load(Ordering::Relaxed)
    })?;
    bar.finish_and_clear();
    let report = DetectionReport::new(&topology, [probe_cpu, polluter_cpu], working_set, &detection);
    if args.json {
        terminal::print_json(&report)?;
    } else if args.csv {
        terminal::print(&csv(&detection.rounds))?;
    } else {
        terminal::print(&human(&report, &detection))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The LLC to measure, seen from the probe's CPU alone, and the polluter's CPU.
fn choose(args: &Args, topology: &Topology) -> Result<(Target, CpuId)> {
    let asked = args.cpus.as_deref().map(probe_and_polluter).transpose()?;
    let mut targets = targets(topology, asked.as_ref().map(<[CpuId; 2]>::as_slice))?;
    let allowed = format_cpu_list(&topology.allowed);
    let [probe, polluter] = match asked {
        Some(asked) => asked,
        None if topology.allowed.len() < 2 => bail!(
            "this needs two CPUs, one to measure and one to pollute, and this process may use only CPU {allowed}"
        ),
        None => targets.iter().find_map(|target| target.cpus.first_chunk().copied()).with_context(|| {
            format!("no two of CPU {allowed} are said to share an LLC; name two with --cpus")
        })?,
    };
    targets.retain(|target| target.cpus.contains(&probe));
    let mut target = targets.into_iter().next().context("nothing is known of that CPU's cache")?;
    target.cpus = vec![probe];
    Ok((target, polluter))
}

/// Two different CPUs in the order given.
fn probe_and_polluter(text: &str) -> Result<[CpuId; 2]> {
    let cpus: Vec<CpuId> =
        text.split(',').map(cpu_list).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    match cpus[..] {
        [probe, polluter] if probe != polluter => Ok([probe, polluter]),
        _ => bail!("--cpus {text} cannot be used: it takes two different CPUs, for example 0,1"),
    }
}

fn human(report: &DetectionReport, detection: &Detection) -> String {
    let mut text = wrapped(&format!(
        "{} rounds; polluter on CPU {}, sequential over {}; windows around {:.1} ms; {:.1} ms of probe CPU time a round.",
        detection.rounds.len(),
        report.cpus[1],
        Bytes(report.working_set_bytes),
        detection.window_ms,
        detection.probe_cpu_ms,
    ));
    text += &wrapped(&format!(
        "Near is a round trip below {}; {} rounds are neither near nor far.",
        detection.limit.near_max_ns.map_or_else(|| "an unknown limit".into(), |ns| format!("{ns:.0} ns")),
        detection.rounds.len() - report.near.n - report.far.n,
    ));
    text.push('\n');
    text += &score_table(report).render(terminal::look());
    text.push('\n');
    text += &duty_table(&detection.rounds).render(terminal::look());
    text
}

fn csv(rounds: &[Round]) -> String {
    let number =
        |value: Option<f64>, digits: usize| value.map_or_else(String::new, |v| format!("{v:.digits$}"));
    let mut text = String::from("at_ms,duty_pct,hazard_per_ms,placement,windows,rtt_ns,polluter_gb_per_s\n");
    for round in rounds {
        let placement = match round.placement {
            Placement::Near => "near",
            Placement::Far => "far",
            Placement::Unknown => "unknown",
        };
        let _ = writeln!(
            text,
            "{:.0},{},{},{placement},{},{},{:.1}",
            round.at_ms,
            round.duty_pct,
            number(round.hazard_per_ms, 4),
            round.windows,
            number(round.rtt_ns, 0),
            round.polluter_gb_per_s
        );
    }
    text
}

fn score_table(report: &DetectionReport) -> Table {
    let mut table = Table::new([
        Column::text("rounds"),
        Column::number("n"),
        Column::number("Spearman"),
        Column::number("AUC 0/50"),
        Column::number("AUC 0/100"),
        Column::number("rounds to detect"),
    ]);
    let number = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:.2}"));
    for (name, score) in [("all", &report.all), ("near", &report.near), ("far", &report.far)] {
        let Score { n, spearman, auc50, auc100, rounds_to_detect } = score;
        table.row([
            name.into(),
            n.to_string().into(),
            number(*spearman).into(),
            number(*auc50).into(),
            number(*auc100).into(),
            rounds_to_detect.map_or_else(|| "-".into(), |m| m.to_string()).into(),
        ]);
    }
    table
}

fn duty_table(rounds: &[Round]) -> Table {
    let mut table = Table::new([
        Column::number("duty"),
        Column::number("rounds"),
        Column::number("hazard/ms q10"),
        Column::number("median"),
        Column::number("q90"),
        Column::number("polluter GB/s"),
    ]);
    for duty in DUTIES {
        let group: Vec<&Round> = rounds.iter().filter(|round| round.duty_pct == duty).collect();
        let hazards: Vec<f64> = group.iter().filter_map(|round| round.hazard_per_ms).collect();
        let speed: Vec<f64> = group.iter().map(|round| round.polluter_gb_per_s).collect();
        let at = |data: &[f64], p| quantile(data, p).map_or_else(|| "-".into(), |v| format!("{v:.3}"));
        table.row([
            format!("{duty} %").into(),
            group.len().to_string().into(),
            at(&hazards, 0.1).into(),
            at(&hazards, 0.5).into(),
            at(&hazards, 0.9).into(),
            quantile(&speed, 0.5).map_or_else(|| "-".into(), |v| format!("{v:.1}")).into(),
        ]);
    }
    table
}
