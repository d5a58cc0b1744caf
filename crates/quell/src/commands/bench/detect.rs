//! `quell bench detect`.

use std::fmt::Write;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, anyhow, bail};
use quell_core::stats::quantile;
use quell_core::{Bytes, CpuId};
use quell_llc::detect::{
    ColorDetection, ColorExperiment, ColorSample, DUTIES, Detection, DetectionReport, Experiment, Round,
    Score, detect, detect_color,
};
use quell_llc::scan::targets;
use quell_llc::session::{Session, Target};
use quell_report::{Column, Table};
use quell_topology::{Placement, Topology, format_cpu_list};

use crate::commands::monitor_args::{pool_pages, random_seed, read_topology};
use crate::commands::values::{cpu_list, speed};
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

    /// Pollute pages of one color only, and score that color's loss minus the mean of the others
    #[arg(long, conflicts_with = "working_set")]
    color: bool,

    /// Most that the polluter of one color reads, in GB/s [default: its color's share of the LLC twice a window]
    #[arg(long, requires = "color", value_name = "GB/S", value_parser = speed)]
    speed: Option<f64>,

    /// Seed for the order of duties and the times of windows [default: different each time]
    #[arg(long, allow_negative_numbers = true)]
    seed: Option<u64>,

    /// Print the result with all samples as JSON (schema quell.detect/1, with --color quell.detect-color/1)
    #[arg(long)]
    json: bool,

    /// Print the samples as CSV
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let topology = read_topology()?;
    let (target, polluter_cpu) = choose(args, &topology)?;
    if args.color {
        return run_color(args, &topology, target, polluter_cpu);
    }
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

/// The pool holds this multiple of the LLC, so that one color's pages exceed its share by half.
const POOL_OF_LLC: u64 = 2;

fn run_color(args: &Args, topology: &Topology, target: Target, polluter_cpu: CpuId) -> Result<ExitCode> {
    let seed = args.seed.unwrap_or_else(random_seed);
    let stop = terminal::stop_flag()?;
    let pool = pool_pages(Bytes(target.advertised.0 * POOL_OF_LLC));
    let mut session = Session::with_pool(target, pool, seed).context("cannot set up the measuring CPU")?;
    let sorted = session.classify(seed).map_err(|reason| anyhow!("cannot sort pages by color: {reason}"))?;
    let bar = terminal::progress(u64::from(args.rounds), "measuring");
    let experiment =
        ColorExperiment { polluter_cpu, rounds: args.rounds as usize, speed_gb_per_s: args.speed, seed };
    let detection = detect_color(&mut session, &sorted, topology, experiment, |done| {
        bar.set_position(done as u64);
        !stop.load(Ordering::Relaxed)
    })?;
    bar.finish_and_clear();
    if args.json {
        terminal::print_json(&detection)?;
    } else if args.csv {
        terminal::print(&color_csv(&detection.samples))?;
    } else {
        terminal::print(&color_human(&detection))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn color_human(detection: &ColorDetection) -> String {
    let mut text = wrapped(&format!(
        "{} rounds; {} page colors, {} of {} pages have one; polluter on CPU {}, {} of one color at up to {:.1} GB/s; windows of {:.1} ms; \
         {:.1} ms of probe CPU time a round.",
        detection.samples.len(),
        detection.colors,
        detection.labelled_pages,
        detection.pool_pages,
        detection.cpus[1],
        Bytes(detection.working_set_bytes),
        detection.speed_gb_per_s,
        detection.window_ms,
        detection.probe_cpu_ms,
    ));
    text += &wrapped(&format!(
        "Near is a round trip below {}; {} rounds are neither near nor far. The value scored is the polluted color's loss \
         minus the mean of the others; the control scores a color that nobody pollutes.",
        detection.near_max_ns.map_or_else(|| "an unknown limit".into(), |ns| format!("{ns:.0} ns")),
        detection.samples.len() - detection.near.n - detection.far.n,
    ));
    text.push('\n');
    let groups = [
        ("all", &detection.all),
        ("near", &detection.near),
        ("far", &detection.far),
        ("near, control", &detection.near_control),
    ];
    text += &score_table(&groups).render(terminal::look());
    text.push('\n');
    let mut table = Table::new([
        Column::number("duty"),
        Column::number("near rounds"),
        Column::number("excess points q10"),
        Column::number("median"),
        Column::number("q90"),
        Column::number("polluter GB/s"),
    ]);
    for duty in DUTIES {
        let near = |sample: &&ColorSample| sample.duty_pct == duty && sample.placement == Placement::Near;
        let group: Vec<&ColorSample> = detection.samples.iter().filter(near).collect();
        let excess: Vec<f64> = group.iter().filter_map(|sample| sample.excess_pct).collect();
        let speed: Vec<f64> = group.iter().map(|sample| sample.polluter_gb_per_s).collect();
        let at = |data: &[f64], p| quantile(data, p).map_or_else(|| "-".into(), |v| format!("{v:.1}"));
        table.row([
            format!("{duty} %").into(),
            group.len().to_string().into(),
            at(&excess, 0.1).into(),
            at(&excess, 0.5).into(),
            at(&excess, 0.9).into(),
            at(&speed, 0.5).into(),
        ]);
    }
    text += &table.render(terminal::look());
    text
}

fn color_csv(samples: &[ColorSample]) -> String {
    let mut text = String::from(
        "at_ms,duty_pct,excess_pct,control_pct,placement,windows,rtt_ns,polluter_gb_per_s,cpu_ms\n",
    );
    for sample in samples {
        let _ = writeln!(
            text,
            "{:.0},{},{},{},{},{},{},{:.1},{:.2}",
            sample.at_ms,
            sample.duty_pct,
            number(sample.excess_pct, 1),
            number(sample.control_pct, 1),
            place(sample.placement),
            sample.windows,
            number(sample.rtt_ns, 0),
            sample.polluter_gb_per_s,
            sample.cpu_ms
        );
    }
    text
}

/// A number of a CSV file; nothing if there is none.
fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(String::new, |v| format!("{v:.digits$}"))
}

fn place(placement: Placement) -> &'static str {
    match placement {
        Placement::Near => "near",
        Placement::Far => "far",
        Placement::Unknown => "unknown",
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
    let groups = [("all", &report.all), ("near", &report.near), ("far", &report.far)];
    text += &score_table(&groups).render(terminal::look());
    text.push('\n');
    text += &duty_table(&detection.rounds).render(terminal::look());
    text
}

fn csv(rounds: &[Round]) -> String {
    let mut text = String::from("at_ms,duty_pct,hazard_per_ms,placement,windows,rtt_ns,polluter_gb_per_s\n");
    for round in rounds {
        let placement = place(round.placement);
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

fn score_table(groups: &[(&str, &Score)]) -> Table {
    let mut table = Table::new([
        Column::text("rounds"),
        Column::number("n"),
        Column::number("Spearman"),
        Column::number("AUC 0/50"),
        Column::number("AUC 0/100"),
        Column::number("rounds to detect"),
    ]);
    let number = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:.2}"));
    for (name, score) in groups {
        let Score { n, spearman, auc50, auc100, rounds_to_detect } = score;
        table.row([
            (*name).into(),
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
