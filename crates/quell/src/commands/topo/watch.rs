//! `quell topo --watch`: the placement as a time series.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use quell_topology::{Plan, Survey, Topology};
use serde::Serialize;

use super::text::{self, with_interval};
use super::{Placement, SPACING, findings, placement};
use crate::terminal;

/// More pairs than this are watched as groups.
const LISTED_PAIRS: usize = 6;

/// What to watch, and how.
#[derive(Debug)]
pub(super) struct Options<'a> {
    pub topology: &'a Topology,
    pub plan: &'a Plan,
    pub interval: Duration,
    pub duration: Option<Duration>,
    pub json: bool,
    pub stop: &'a AtomicBool,
}

/// One line of `--watch --json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    schema: &'static str,
    /// Seconds since the start, at the end of the interval.
    at_s: f64,
    /// The whole time rather than one interval.
    summary: bool,
    placement: &'a Placement,
}

/// Prints until the time is over or a signal came, then a summary of the whole time.
pub(super) fn run(options: &Options<'_>) -> Result<()> {
    let mut survey = Survey::new(options.plan).context("cannot probe the vCPUs")?;
    if !options.json {
        let mut out = Vec::new();
        writeln!(out, "{:>9}  {:12} {:20} {:20} {:>9}", "time s", "pair", "near %", "switches/s", "RTT ns")?;
        terminal::print(&String::from_utf8_lossy(&out))?;
    }
    let over = |survey: &Survey| {
        options.stop.load(Ordering::Relaxed)
            || options.duration.is_some_and(|duration| survey.elapsed() >= duration)
    };
    while !over(&survey) {
        let since = survey.elapsed();
        let rest = options.duration.map_or(Duration::MAX, |duration| duration.saturating_sub(since));
        survey
            .run(options.interval.min(rest), SPACING, options.stop)
            .context("cannot go on probing the vCPUs")?;
        // The part of an interval that Ctrl-C cut off is only in the summary.
        if !options.stop.load(Ordering::Relaxed) {
            print(options, &survey, since, false)?;
        }
    }
    print(options, &survey, Duration::ZERO, true)
}

fn print(options: &Options<'_>, survey: &Survey, since: Duration, summary: bool) -> Result<()> {
    let seen = placement(options.topology, options.plan, survey, since);
    let at_s = survey.elapsed().as_secs_f64();
    let mut out = Vec::new();
    if options.json {
        let line = Line { schema: "quell.topo.watch/1", at_s, summary, placement: &seen };
        serde_json::to_writer(&mut out, &line)?;
        writeln!(out)?;
    } else if summary {
        writeln!(out, "\nIN ALL: {at_s:.1} s; {}", seen.limit.basis)?;
        text::table(&mut out, &seen)?;
        for finding in findings(&seen) {
            writeln!(out, "- {finding}")?;
        }
    } else if seen.pairs.len() <= LISTED_PAIRS {
        for pair in &seen.pairs {
            let rtt = pair.placement.rtt_ns.map_or_else(|| "unknown".into(), |ns| format!("{ns:.0}"));
            let why = pair.placement.near_pct.reason().map_or_else(String::new, |why| format!("  ({why})"));
            writeln!(
                out,
                "{at_s:9.1}  {:12} {:20} {:20} {rtt:>9}{why}",
                format!("{}-{}", pair.a, pair.b),
                with_interval(&pair.placement.near_pct, 0),
                with_interval(&pair.placement.switches_per_s, 1),
            )?;
        }
    } else {
        for (name, group) in text::groups(&seen.pairs) {
            writeln!(
                out,
                "{at_s:9.1}  {name:12} {:20} {:20} {:>9}",
                with_interval(&group.near_pct, 0),
                with_interval(&group.switches_per_s, 1),
                format!("{} pairs", group.pairs_known),
            )?;
        }
    }
    terminal::print(&String::from_utf8_lossy(&out))
}
