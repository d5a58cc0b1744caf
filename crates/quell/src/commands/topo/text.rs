//! The answer for people.

use std::io::{self, Write};

use quell_core::{Bytes, Estimate};
use quell_topology::{Cache, CacheKind, Hypervisor, PairReport, Pooled, Source, Topology, format_cpu_list};

use super::{Placement, Report, findings};

/// Pairs that get a line each in the table.
pub(super) const LISTED_PAIRS: usize = 28;

/// Writes the answer.
pub(super) fn write(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let topology = &report.topology;
    machine(out, topology)?;
    llcs(out, topology)?;
    caches(out, topology)?;
    nodes(out, topology)?;
    for note in &topology.notes {
        writeln!(out, "note         {note}")?;
    }
    writeln!(out)?;
    match (&report.placement, &report.not_probed) {
        (Some(placement), _) => probe(out, placement),
        (None, reason) => writeln!(out, "not probed   {}", reason.as_deref().unwrap_or("unknown")),
    }
}

fn or_unknown<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "unknown".into(), |value| value.to_string())
}

fn machine(out: &mut impl Write, topology: &Topology) -> io::Result<()> {
    let model = &topology.model;
    let numbers = [("family", model.family), ("model", model.model), ("stepping", model.stepping)]
        .into_iter()
        .filter_map(|(name, number)| Some(format!(" {name} {}", number?)))
        .collect::<String>();
    writeln!(
        out,
        "CPU          {} ({}{numbers})",
        or_unknown(model.name.as_deref()),
        or_unknown(model.vendor.as_deref())
    )?;
    let online = topology.online();
    let packages: std::collections::BTreeSet<_> =
        topology.cpus.iter().filter_map(|cpu| cpu.package).collect();
    let cores: std::collections::BTreeSet<_> = topology.cpus.iter().map(|cpu| &cpu.siblings).collect();
    write!(
        out,
        "CPUs         {} online ({}), {} cores",
        online.len(),
        format_cpu_list(&online),
        cores.len()
    )?;
    if !packages.is_empty() {
        write!(out, ", {} {}", packages.len(), if packages.len() == 1 { "package" } else { "packages" })?;
    }
    if !topology.offline.is_empty() {
        write!(out, "; offline: {}", format_cpu_list(&topology.offline))?;
    }
    writeln!(out)?;
    if let Some(restriction) = topology.restriction() {
        writeln!(out, "             {restriction}")?;
    }
    writeln!(out, "hypervisor   {}", hypervisor(&topology.hypervisor))?;
    let tsc = &topology.tsc;
    let rate = match tsc.invariant {
        Some(true) => "invariant",
        Some(false) => "not said to be invariant",
        None => "unknown",
    };
    writeln!(out, "TSC          {rate}; the kernel's clock is {}", or_unknown(tsc.clocksource.as_deref()))
}

fn hypervisor(hypervisor: &Hypervisor) -> String {
    let name = match (hypervisor.present, hypervisor.name, &hypervisor.signature) {
        (Some(false), ..) => "none seen".to_owned(),
        (_, Some(name), _) => name.to_owned(),
        (_, None, Some(signature)) => signature.clone(),
        (Some(true), None, None) => "present, does not give its name".to_owned(),
        (None, None, None) => "unknown".to_owned(),
    };
    hypervisor.product.as_ref().map_or_else(|| name.clone(), |product| format!("{name} ({product})"))
}

fn source(source: Source) -> &'static str {
    match source {
        Source::Sysfs => "sysfs",
        Source::Cpuid => "CPUID",
    }
}

fn llcs(out: &mut impl Write, topology: &Topology) -> io::Result<()> {
    if topology.llcs.is_empty() {
        return writeln!(out, "LLCs         unknown");
    }
    for (i, llc) in topology.llcs.iter().enumerate() {
        let label = if i == 0 { "LLCs" } else { "" };
        let ways = llc.ways.map_or_else(String::new, |ways| format!(", {ways} ways"));
        let inclusive = match llc.inclusive {
            Some(true) => ", inclusive",
            Some(false) => ", not inclusive",
            None => "",
        };
        writeln!(
            out,
            "{label:12} LLC {}: L{} {}{ways}{inclusive}, CPU {} ({})",
            llc.id,
            llc.level,
            llc.advertised,
            format_cpu_list(&llc.cpus),
            source(llc.source)
        )?;
    }
    Ok(())
}

/// One line for all instances of a kind that look the same.
fn caches(out: &mut impl Write, topology: &Topology) -> io::Result<()> {
    type Look<'a> = (u32, CacheKind, Option<Bytes>, Option<u32>, Option<u32>, Option<u32>);
    let look = |cache: &Cache| -> Look<'_> {
        (cache.level, cache.kind, cache.size, cache.ways, cache.sets, cache.line_bytes)
    };
    let mut kinds: Vec<(&Cache, usize, usize)> = Vec::new();
    for cache in &topology.caches {
        match kinds.iter_mut().find(|(first, ..)| look(first) == look(cache)) {
            Some((_, count, most)) => {
                *count += 1;
                *most = (*most).max(cache.cpus.len());
            }
            None => kinds.push((cache, 1, cache.cpus.len())),
        }
    }
    for (i, (cache, count, most)) in kinds.into_iter().enumerate() {
        let kind = match cache.kind {
            CacheKind::Data => "data",
            CacheKind::Instruction => "instruction",
            CacheKind::Unified => "unified",
        };
        let label = if i == 0 { "caches" } else { "" };
        let number = |n: Option<u32>| n.map_or_else(|| "?".into(), |n| n.to_string());
        let sharing = if most == 0 {
            "sharing unknown".into()
        } else {
            format!("{count:3} x for {most} {}", if most == 1 { "CPU" } else { "CPUs" })
        };
        writeln!(
            out,
            "{label:12} L{} {kind:11} {:>8} {:>3} ways {:>6} sets {:>3} B lines  {sharing}",
            cache.level,
            or_unknown(cache.size),
            number(cache.ways),
            number(cache.sets),
            number(cache.line_bytes),
        )?;
    }
    Ok(())
}

fn nodes(out: &mut impl Write, topology: &Topology) -> io::Result<()> {
    if topology.nodes.is_empty() {
        return writeln!(out, "NUMA         no information");
    }
    for (i, node) in topology.nodes.iter().enumerate() {
        let label = if i == 0 { "NUMA" } else { "" };
        let cpus = if node.cpus.is_empty() {
            "no CPU".into()
        } else {
            format!("CPU {}", format_cpu_list(&node.cpus))
        };
        write!(out, "{label:12} node {}: {cpus}, {}", node.id, or_unknown(node.memory))?;
        if topology.nodes.len() > 1 {
            let distances: Vec<String> = node.distances.iter().map(u32::to_string).collect();
            write!(out, ", distances {}", distances.join(" "))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn probe(out: &mut impl Write, placement: &Placement) -> io::Result<()> {
    let coverage = if placement.complete { "which is all" } else { "a sample of all" };
    let count = placement.pairs.len();
    let pairs = if count == 1 { "pair" } else { "pairs" };
    writeln!(out, "PROBE: which vCPUs shared a cache just now ({count} {pairs}, {coverage})")?;
    writeln!(out, "limit        {}", placement.limit.basis)?;
    table(out, placement)?;
    for finding in findings(placement) {
        writeln!(out, "- {finding}")?;
    }
    Ok(())
}

/// The pairs, or the groups of pairs if they are many.
pub(super) fn table(out: &mut impl Write, placement: &Placement) -> io::Result<()> {
    writeln!(
        out,
        "{:12} {:20} {:20} {:>9}  {:>9} {:>9}",
        "pair", "near %", "switches/s", "RTT ns", "near ms", "far ms"
    )?;
    if placement.pairs.len() <= LISTED_PAIRS {
        for pair in &placement.pairs {
            let seen = &pair.placement;
            writeln!(
                out,
                "{:12} {:20} {:20} {:>9}  {:>9} {:>9}",
                format!("{}-{}", pair.a, pair.b),
                with_interval(&seen.near_pct, 0),
                with_interval(&seen.switches_per_s, 1),
                seen.rtt_ns.map_or_else(|| "unknown".into(), |ns| format!("{ns:.0}")),
                alone(&seen.near_dwell_ms),
                alone(&seen.far_dwell_ms),
            )?;
        }
        return Ok(());
    }
    for (name, group) in groups(&placement.pairs) {
        writeln!(
            out,
            "{name:12} {:20} {:20} {:>9}",
            with_interval(&group.near_pct, 0),
            with_interval(&group.switches_per_s, 1),
            format!("{} pairs", group.pairs_known),
        )?;
    }
    Ok(())
}

/// Pairs by what is said about them; groups without pairs are left out.
pub(super) fn groups(pairs: &[PairReport]) -> Vec<(&'static str, Pooled)> {
    [("said shared", Some(true)), ("said apart", Some(false)), ("unsaid", None)]
        .into_iter()
        .filter(|(_, said)| pairs.iter().any(|pair| pair.said_shared == *said))
        .map(|(name, said)| (name, Pooled::of(pairs, |pair| pair.said_shared == said)))
        .collect()
}

/// `72 [60, 81]`.
pub(super) fn with_interval(estimate: &Estimate, digits: usize) -> String {
    match estimate {
        Estimate::Known { value, ci95: [low, high], .. } => {
            format!("{value:.digits$} [{low:.digits$}, {high:.digits$}]")
        }
        Estimate::Unknown { .. } => "unknown".into(),
    }
}

fn alone(estimate: &Estimate) -> String {
    estimate.value().map_or_else(|| "-".into(), |value| format!("{value:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_core::{CpuId, LlcId, NodeId};
    use quell_topology::{Cpu, Llc, NearFar, Node, PlacementSeries};
    use std::time::Duration;

    fn report(placement: Option<Placement>) -> String {
        let topology = Topology {
            cpus: (0..2)
                .map(|id| Cpu {
                    id: CpuId(id),
                    core: Some(id),
                    package: Some(0),
                    siblings: vec![CpuId(id)],
                    node: Some(NodeId(0)),
                    apic_id: None,
                    allowed: id == 0,
                })
                .collect(),
            offline: vec![CpuId(2)],
            allowed: vec![CpuId(0)],
            llcs: vec![Llc {
                id: LlcId(0),
                cpus: vec![CpuId(0), CpuId(1)],
                advertised: Bytes::mib(32),
                ways: None,
                level: 3,
                inclusive: Some(false),
                source: Source::Cpuid,
            }],
            nodes: vec![Node { id: NodeId(0), cpus: Vec::new(), memory: None, distances: vec![10] }],
            notes: vec!["something odd".into()],
            ..Topology::default()
        };
        let not_probed = placement.is_none().then(|| "no reason".into());
        let mut out = Vec::new();
        write(&mut out, &Report { schema: "quell.topo/1", topology, placement, not_probed }).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_unknown_is_said() {
        let expected = "\
CPU          unknown (unknown)
CPUs         2 online (0-1), 2 cores, 1 package; offline: 2
             this process may not use CPU 1: its CPU affinity (taskset, systemd, container) forbids it
hypervisor   unknown
TSC          unknown; the kernel's clock is unknown
LLCs         LLC 0: L3 32 MiB, not inclusive, CPU 0-1 (CPUID)
NUMA         node 0: no CPU, unknown
note         something odd

not probed   no reason
";
        assert_eq!(report(None), expected);
    }

    fn placement(states: &[f64], pairs: usize) -> Placement {
        let limit = NearFar::fit(&[[80.0; 20], [300.0; 20]].concat(), Some(100.0));
        let mut series = PlacementSeries::new();
        for (i, ns) in states.iter().enumerate() {
            series.push(Duration::from_millis(20 * i as u64), *ns);
        }
        let pair = PairReport {
            a: CpuId(0),
            b: CpuId(1),
            said_shared: Some(true),
            said_siblings: false,
            placement: series.summary(&limit),
        };
        let pairs = vec![pair; pairs];
        Placement { all: Pooled::of(&pairs, |_| true), limit, memory_ns: Some(100.0), complete: true, pairs }
    }

    #[test]
    fn a_moved_pair_is_told_in_numbers_and_words() {
        let text = report(Some(placement(&[[80.0; 10], [300.0; 10]].concat(), 1)));
        assert!(text.contains("(1 pair, which is all)"), "{text}");
        assert!(text.contains("\n0-1          50 ["), "{text}");
        assert!(
            text.contains("but the probe saw them together in 50 % of 20 rounds, so the host moves them"),
            "{text}"
        );
    }

    #[test]
    fn many_pairs_become_groups_and_counts() {
        let text = report(Some(placement(&[80.0; 40], 100)));
        assert!(text.contains("said shared  100 [") && text.contains("100 pairs"), "{text}");
        assert!(text.contains("- 100 of 100 pairs are placed as is said"), "{text}");
        assert!(text.lines().count() < 20, "{text}");
    }
}
