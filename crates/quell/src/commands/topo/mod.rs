//! `quell topo`: what the machine says about its caches, and what a probe of the vCPUs sees.

mod text;
mod watch;

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quell_core::CpuId;
use quell_topology::{NearFar, PairReport, Plan, Pooled, Survey, Topology, format_cpu_list, hidden_siblings};
use serde::Serialize;

use super::values::{cpu_list, positive_time};
use crate::terminal;

/// How long the vCPUs are probed without `--watch`.
const PROBE_TIME: Duration = Duration::from_millis(1_400);
/// Time between two measurements of a pair; hosts were seen to move vCPUs every 50-160 ms.
const SPACING: Duration = Duration::from_millis(15);

/// Shows CPUs, caches and NUMA nodes, and which vCPUs really share a cache.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Probe only these CPUs, for example `0,2-3` [default: all that this process may use]
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,

    /// Only read what the kernel and CPUID say; measure nothing
    #[arg(long, conflicts_with = "watch")]
    no_probe: bool,

    /// Print JSON (schema quell.topo/1; with --watch one object a line)
    #[arg(long)]
    json: bool,

    /// Keep probing and print what changed, until Ctrl-C
    #[arg(long)]
    watch: bool,

    /// Time between two lines of --watch
    #[arg(long, value_name = "TIME", default_value = "1s", requires = "watch", value_parser = positive_time)]
    interval: Duration,

    /// End --watch after this time [default: run until Ctrl-C]
    #[arg(long, value_name = "TIME", requires = "watch", value_parser = positive_time)]
    duration: Option<Duration>,
}

/// What the probe saw.
#[derive(Debug, Serialize)]
struct Placement {
    /// All pairs together.
    #[serde(flatten)]
    all: Pooled,
    limit: NearFar,
    memory_ns: Option<f64>,
    /// Every pair of the CPUs was probed.
    complete: bool,
    pairs: Vec<PairReport>,
}

/// The answer of `quell topo`.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    #[serde(flatten)]
    topology: Topology,
    placement: Option<Placement>,
    /// Why there is no `placement`.
    not_probed: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let topology = Topology::read(Path::new("/"))?;
    let cpus = chosen_cpus(args, &topology)?;
    let probe = match reason_not_to_probe(args, &topology, &cpus) {
        Some(reason) => Err(reason),
        None => Ok(Plan::new(&topology, &cpus)),
    };
    if args.watch {
        let plan = match probe {
            Ok(plan) => plan,
            Err(reason) => bail!("cannot watch the placement: {reason}"),
        };
        watch::run(&watch::Options {
            topology: &topology,
            plan: &plan,
            interval: args.interval,
            duration: args.duration,
            json: args.json,
            stop: &*terminal::stop_flag()?,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let (placement, not_probed) = match probe {
        // Without a clock the rest of the answer is still worth printing.
        Ok(plan) => match probe_once(&topology, &plan) {
            Ok(placement) => (Some(placement), None),
            Err(error) => (None, Some(format!("{error:#}"))),
        },
        Err(reason) => (None, Some(reason)),
    };
    let report = Report { schema: "quell.topo/1", topology, placement, not_probed };
    if args.json {
        terminal::print_json(&report)?;
    } else {
        let mut text = Vec::new();
        text::write(&mut text, &report).context("cannot format the answer")?;
        terminal::print(&String::from_utf8_lossy(&text))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The CPUs to probe: those that the process may use, or those of `--cpus`.
fn chosen_cpus(args: &Args, topology: &Topology) -> Result<Vec<CpuId>> {
    let Some(list) = &args.cpus else {
        return Ok(topology.allowed.clone());
    };
    let cpus = cpu_list(list)?;
    let missing: Vec<CpuId> = cpus.iter().copied().filter(|cpu| !topology.allowed.contains(cpu)).collect();
    if !missing.is_empty() {
        bail!(
            "--cpus names CPU {}, which this process cannot use; available are {}",
            format_cpu_list(&missing),
            format_cpu_list(&topology.allowed)
        );
    }
    Ok(cpus)
}

/// Why the vCPUs are not probed, if so.
fn reason_not_to_probe(args: &Args, topology: &Topology, cpus: &[CpuId]) -> Option<String> {
    if args.no_probe {
        return Some("switched off with --no-probe".into());
    }
    if cpus.len() > 1 {
        return None;
    }
    let only = format_cpu_list(cpus);
    Some(match (args.cpus.is_some(), topology.restriction()) {
        (true, _) => format!("--cpus names only CPU {only}, and a round trip needs two"),
        (false, Some(restriction)) => {
            format!("a round trip needs two CPUs, and {restriction}")
        }
        (false, None) => format!("this machine has only CPU {only} online, and a round trip needs two"),
    })
}

fn probe_once(topology: &Topology, plan: &Plan) -> Result<Placement> {
    let mut survey = Survey::new(plan).context("cannot probe the vCPUs")?;
    survey.run(PROBE_TIME, SPACING, &AtomicBool::new(false)).context("cannot probe the vCPUs")?;
    Ok(placement(topology, plan, &survey, Duration::ZERO))
}

/// What the survey saw from `since` on.
fn placement(topology: &Topology, plan: &Plan, survey: &Survey, since: Duration) -> Placement {
    let limit = survey.near_far();
    let pairs = survey.report(topology, &limit, since);
    Placement {
        all: Pooled::of(&pairs, |_| true),
        limit,
        memory_ns: survey.memory_ns(),
        complete: plan.complete,
        pairs,
    }
}

/// What the probe found, in sentences, the contradictions first.
fn findings(placement: &Placement) -> Vec<String> {
    /// Pairs that get a sentence each; more are summed up.
    const SPELLED_OUT: usize = 6;
    let pairs = &placement.pairs;
    let mut sentences = Vec::new();
    if pairs.len() <= SPELLED_OUT {
        let mut order: Vec<&PairReport> = pairs.iter().collect();
        order.sort_by_key(|pair| pair.agrees() != Some(false));
        sentences.extend(order.into_iter().map(PairReport::sentence));
    } else {
        for (agrees, words) in [
            (Some(false), "contradict what is said about their caches"),
            (Some(true), "are placed as is said"),
            (None, "cannot be compared, because what is said or what was seen is unknown"),
        ] {
            let of_kind: Vec<&PairReport> = pairs.iter().filter(|pair| pair.agrees() == agrees).collect();
            if !of_kind.is_empty() {
                sentences.push(format!("{} of {} pairs {words}", of_kind.len(), pairs.len()));
            }
            if agrees == Some(false) {
                sentences.extend(of_kind.iter().take(SPELLED_OUT).map(|pair| pair.sentence()));
            }
        }
    }
    for (a, b, ns, typical) in hidden_siblings(pairs) {
        sentences.push(format!(
            "CPU {a} and {b} answer in {ns:.0} ns, others of one cache in {typical:.0} ns: probably two threads of one core"
        ));
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Cli::try_parse_from(line.split_whitespace()).map(|cli| cli.args)
    }

    #[test]
    fn flags_that_make_no_sense_are_refused() {
        for line in [
            "topo --watch --duration 0s",
            "topo --watch --interval 0ms",
            "topo --watch --interval soon",
            "topo --duration 3s",
            "topo --no-probe --watch",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        let args = parse("topo --watch --interval 250ms --duration 2m").unwrap();
        assert_eq!(
            (args.interval, args.duration),
            (Duration::from_millis(250), Some(Duration::from_secs(120)))
        );
    }

    #[test]
    fn cpus_that_cannot_be_used_are_named_with_those_that_can() {
        let topology = Topology { allowed: vec![CpuId(0), CpuId(1)], ..Topology::default() };
        for (list, words) in [("99", "CPU 99"), ("0,7-9", "CPU 7-9")] {
            let mut args = parse("topo").unwrap();
            args.cpus = Some(list.into());
            let message = chosen_cpus(&args, &topology).unwrap_err().to_string();
            assert!(message.contains(words) && message.contains("available are 0-1"), "{message}");
        }
    }

    #[test]
    fn one_cpu_is_a_reason_in_words() {
        let topology = Topology::default();
        let args = parse("topo").unwrap();
        assert!(reason_not_to_probe(&args, &topology, &[CpuId(3)]).unwrap().contains("only CPU 3"));
        assert_eq!(reason_not_to_probe(&args, &topology, &[CpuId(3), CpuId(4)]), None);
    }
}
