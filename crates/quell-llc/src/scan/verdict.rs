//! The scan's result in plain words.

use quell_core::Bytes;
use quell_topology::{Verdict as Sharing, format_cpu_list};

use super::report::{Cost, LlcReport, PairReport, PlacementReport};
use crate::attribution::Source;
use crate::capacity::Usable;
use crate::tier::Tier;

/// One sentence for each thing a user wants to know.
pub(super) fn verdict(llcs: &[LlcReport], placement: &PlacementReport, cost: Cost) -> Vec<String> {
    let mut sentences: Vec<String> = llcs.iter().flat_map(llc).collect();
    sentences.extend(placement.pairs.iter().filter_map(pair));
    if let Some(cpu_ms_per_s) = cost.cpu_ms_per_s.filter(|ms| *ms > 10.0 * llcs.len() as f64) {
        sentences.push(format!(
            "The measurement itself took {cpu_ms_per_s:.1} ms of CPU time per second, more than it should: this machine \
             is slow or overloaded.",
        ));
    }
    sentences
}

fn llc(llc: &LlcReport) -> Vec<String> {
    let name = format!("LLC {} (CPU {})", llc.id, format_cpu_list(&llc.cpus));
    let Some(tier) = llc.tier else {
        let reason = llc.tier_reason.as_deref().unwrap_or("no reason given");
        return vec![format!("{name}: contention unknown: {reason}.")];
    };
    let mut sentences = vec![format!("{name}: {}{}", contention(tier), survival(llc))];
    if tier > Tier::Quiet {
        sentences.push(source(llc.source, &llc.source_grounds).to_owned());
    }
    if let (Usable::Range { lo, hi }, Some(advertised)) = (&llc.usable_bytes, llc.advertised_bytes) {
        sentences.push(capacity(*lo, *hi, advertised));
    }
    sentences
}

fn contention(tier: Tier) -> &'static str {
    match tier {
        Tier::Quiet => "quiet; what you keep in it stays there.",
        Tier::Moderate => "moderately contended.",
        Tier::Heavy => "heavily contended.",
        Tier::Saturated => "saturated; hardly anything you put there survives.",
    }
}

fn survival(llc: &LlcReport) -> String {
    match (llc.half_life_ms.value(), llc.half_life_ms.ci95()) {
        (Some(value), Some([lo, hi])) => format!(
            " Half of the lines that nobody touches are evicted within {value:.1} ms (between {lo:.1} and {hi:.1})."
        ),
        _ => String::new(),
    }
}

fn source(source: Source, grounds: &str) -> String {
    match source {
        Source::Outside => format!("The evictions come from outside of this VM: {grounds}."),
        Source::Own => format!("The evictions are this VM's own doing: {grounds}."),
        Source::Mixed => format!("Both this VM and others evict: {grounds}."),
        Source::Unknown => format!("Whether this VM or others evict could not be told: {grounds}."),
    }
}

fn capacity(lo: u64, hi: u64, advertised: u64) -> String {
    let [lo, hi] = [lo, hi].map(|bytes| bytes as f64 / f64::from(1 << 20));
    format!("Of {} advertised, {lo:.0} to {hi:.0} MiB can be held at the moment.", Bytes(advertised))
}

/// An interval wider than this, in percent points, says nothing about how much of the time.
const VAGUE_PCT: f64 = 50.0;

fn pair(pair: &PairReport) -> Option<String> {
    let [a, b] = pair.cpus;
    let (near, [lo, hi]) = pair.summary.near_pct.value().zip(pair.summary.near_pct.ci95())?;
    match pair.summary.verdict {
        Sharing::Floating if hi - lo > VAGUE_PCT => Some(format!(
            "The host was seen to move the vCPUs: CPU {a} and {b} shared a cache at times only. How much of the time \
             cannot be said from so few moves; `quell topo --watch` can.",
        )),
        Sharing::Floating => Some(format!(
            "The host moves the vCPUs: CPU {a} and {b} shared a cache {near:.0} % of the time ({lo:.0} to {hi:.0}). What one of them \
             brings into the cache is often not there for the other.",
        )),
        Sharing::Far => Some(format!(
            "The kernel says that CPU {a} and {b} share this cache, but they were never seen to."
        )),
        Sharing::Near | Sharing::Unknown => None,
    }
}
