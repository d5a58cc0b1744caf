//! Probes many pairs of vCPUs over the same time and compares what it sees with what the kernel says.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quell_core::{CpuId, Estimate};
use serde::Serialize;

use crate::pingpong::Helper;
use crate::{Error, NearFar, PlacementSeries, PlacementSummary, Topology, Verdict, yardstick};

/// Up to this many CPUs every pair is probed (120 pairs).
const ALL_PAIRS_CPUS: usize = 16;
/// Pairs probed on larger machines.
const MAX_PAIRS: usize = 400;
/// Rounds used to fit the limit between near and far, over all pairs.
const FIT_ROUNDS: usize = 4_096;
/// Longest sleep before looking whether to stop.
const SLICE: Duration = Duration::from_millis(20);

/// Which pairs to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The pairs, lower CPU first, each once.
    pub pairs: Vec<(CpuId, CpuId)>,
    /// These are all pairs of the CPUs.
    pub complete: bool,
}

impl Plan {
    /// All pairs of up to 16 CPUs. Of more, at most 400 pairs: CPUs with the first CPU of their LLC, siblings,
    /// first CPUs of LLCs among themselves, each CPU with one half the machine away, and then any.
    #[must_use]
    pub fn new(topology: &Topology, cpus: &[CpuId]) -> Self {
        let mut pairs = BTreeSet::new();
        let possible = cpus.len() * cpus.len().saturating_sub(1) / 2;
        if cpus.len() <= ALL_PAIRS_CPUS {
            for (i, &a) in cpus.iter().enumerate() {
                pairs.extend(cpus[i + 1..].iter().map(|&b| (a.min(b), a.max(b))));
            }
            return Self { pairs: pairs.into_iter().collect(), complete: true };
        }
        let mut add = |a: CpuId, b: CpuId| {
            if a != b && pairs.len() < MAX_PAIRS {
                pairs.insert((a.min(b), a.max(b)));
            }
        };
        let groups: Vec<Vec<CpuId>> = topology
            .llcs
            .iter()
            .map(|llc| llc.cpus.iter().copied().filter(|cpu| cpus.contains(cpu)).collect())
            .filter(|group: &Vec<CpuId>| !group.is_empty())
            .collect();
        // The first three steps add up to some 150 pairs, so that the fourth reaches all of 512 CPUs.
        let each = (100 / groups.len().max(1)).max(1);
        for group in groups.iter().step_by(groups.len().div_ceil(100).max(1)) {
            let others = &group[1..];
            let step = others.len().div_ceil(each).max(1);
            others.iter().step_by(step).for_each(|&cpu| add(group[0], cpu));
        }
        let sibling = |cpu: CpuId| cpus.iter().copied().find(|&other| topology.are_siblings(cpu, other));
        cpus.iter().step_by(cpus.len().div_ceil(16)).for_each(|&cpu| {
            sibling(cpu).into_iter().for_each(|other| add(cpu, other));
        });
        let stride = groups.len().div_ceil(8).max(1);
        let sampled: Vec<CpuId> = groups.iter().step_by(stride).map(|group| group[0]).collect();
        for (i, &a) in sampled.iter().enumerate() {
            sampled[i + 1..].iter().for_each(|&b| add(a, b));
        }
        let (lower, upper) = cpus.split_at(cpus.len() / 2);
        for (i, &cpu) in upper.iter().enumerate() {
            add(lower[i % lower.len()], cpu);
        }
        // Strides that share no factor with the usual group sizes pass through all distances.
        for stride in [37, 61, 101, 1] {
            for (i, &cpu) in cpus.iter().enumerate() {
                add(cpu, cpus[(i + stride) % cpus.len()]);
            }
        }
        Self { complete: pairs.len() == possible, pairs: pairs.into_iter().collect() }
    }
}

/// A pair under observation.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchedPair {
    /// The CPU that pings.
    pub a: CpuId,
    /// The CPU that answers.
    pub b: CpuId,
    /// What was seen so far; time counts from the start of the survey.
    pub series: PlacementSeries,
}

/// Observes pairs of vCPUs; holds one sleeping helper thread per answering CPU.
#[derive(Debug)]
pub struct Survey {
    start: Instant,
    helpers: BTreeMap<CpuId, Helper>,
    pairs: Vec<WatchedPair>,
    memory_ns: Option<f64>,
}

impl Survey {
    /// Prepares the probe of these pairs and measures the latency of memory.
    ///
    /// # Errors
    /// [`Error::Pin`] if a CPU cannot be used, [`Error::NoTsc`] or [`Error::TscRate`] without a usable counter,
    /// [`Error::SameCpu`] for a pair of one CPU, [`Error::Helper`] if no thread can be started.
    pub fn new(plan: &Plan) -> Result<Self, Error> {
        crate::tsc_ticks_per_ms()?;
        let mut helpers = BTreeMap::new();
        for &(a, b) in &plan.pairs {
            if a == b {
                return Err(Error::SameCpu { cpu: a });
            }
            if let Entry::Vacant(free) = helpers.entry(b) {
                free.insert(Helper::on(b)?);
            }
        }
        let pairs =
            plan.pairs.iter().map(|&(a, b)| WatchedPair { a, b, series: PlacementSeries::new() }).collect();
        Ok(Self { start: Instant::now(), helpers, pairs, memory_ns: yardstick::memory_latency_ns() })
    }

    /// Measures every pair in turn, every `spacing` or as fast as it goes, until `duration` from now has
    /// passed or `stop` is set. A pair costs about 0.2 ms of both CPUs each time.
    ///
    /// # Errors
    /// [`Error::Pin`] if a CPU went away meanwhile.
    pub fn run(&mut self, duration: Duration, spacing: Duration, stop: &AtomicBool) -> Result<(), Error> {
        let end = Instant::now() + duration;
        let over = || stop.load(Ordering::Relaxed) || Instant::now() >= end;
        while !over() {
            let next = Instant::now() + spacing;
            for pair in &mut self.pairs {
                if over() {
                    return Ok(());
                }
                let at = self.start.elapsed();
                match self.helpers[&pair.b].measure_from(pair.a)? {
                    Some(round) => pair.series.push(at, round.min_ns),
                    None => pair.series.push_unanswered(at),
                }
            }
            while !over() && Instant::now() < next {
                let rest = next.min(end).saturating_duration_since(Instant::now());
                thread::sleep(rest.min(SLICE));
            }
        }
        Ok(())
    }

    /// Time since the survey was prepared.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The pairs.
    #[must_use]
    pub fn pairs(&self) -> &[WatchedPair] {
        &self.pairs
    }

    /// Latency of memory in nanoseconds, if it could be measured.
    #[must_use]
    pub fn memory_ns(&self) -> Option<f64> {
        self.memory_ns
    }

    /// The limit between near and far, fitted to the latest rounds of all pairs.
    #[must_use]
    pub fn near_far(&self) -> NearFar {
        let each = (FIT_ROUNDS / self.pairs.len().max(1)).max(32);
        let rounds: Vec<f64> = self
            .pairs
            .iter()
            .flat_map(|pair| {
                let rounds = pair.series.rounds();
                rounds[rounds.len().saturating_sub(each)..].iter().map(|(_, ns)| *ns)
            })
            .collect();
        NearFar::fit(&rounds, self.memory_ns)
    }

    /// What was seen of each pair from `since` on, counted from the start of the survey.
    #[must_use]
    pub fn report(&self, topology: &Topology, limit: &NearFar, since: Duration) -> Vec<PairReport> {
        self.pairs
            .iter()
            .map(|pair| PairReport {
                a: pair.a,
                b: pair.b,
                said_shared: topology.share_llc(pair.a, pair.b),
                said_siblings: topology.are_siblings(pair.a, pair.b),
                placement: pair.series.since(since).summary(limit),
            })
            .collect()
    }
}

/// What is said about a pair, and what was seen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairReport {
    /// The CPU that pinged.
    pub a: CpuId,
    /// The CPU that answered.
    pub b: CpuId,
    /// The kernel or CPUID says that they share an LLC; `None` if neither tells.
    pub said_shared: Option<bool>,
    /// The kernel says that they are hyperthreads of one core.
    pub said_siblings: bool,
    /// What the probe saw.
    pub placement: PlacementSummary,
}

impl PairReport {
    /// Whether what was seen is what is said; `None` if one of the two is unknown.
    #[must_use]
    pub fn agrees(&self) -> Option<bool> {
        match (self.said_shared?, self.placement.verdict) {
            (_, Verdict::Unknown) => None,
            (said, seen) => Some(seen == if said { Verdict::Near } else { Verdict::Far }),
        }
    }

    /// The pair in a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let (a, b, rounds) = (self.a, self.b, self.placement.rounds - self.placement.unclear);
        let said = match self.said_shared {
            Some(true) => format!("CPU {a} and {b} are said to share a last-level cache"),
            Some(false) => format!("CPU {a} and {b} are said to have different last-level caches"),
            None => format!("nothing is said about the last-level caches of CPU {a} and {b}"),
        };
        let near = self.placement.near_pct.value().unwrap_or(0.0);
        let seen = match self.placement.verdict {
            Verdict::Near => format!("the probe saw them together in {near:.0} % of {rounds} rounds"),
            Verdict::Far => format!("the probe saw them apart in {:.0} % of {rounds} rounds", 100.0 - near),
            Verdict::Floating => {
                format!(
                    "the probe saw them together in {near:.0} % of {rounds} rounds, so the host moves them"
                )
            }
            Verdict::Unknown => format!(
                "the probe cannot tell: {}",
                self.placement.near_pct.reason().unwrap_or("too few rounds")
            ),
        };
        let joint = match self.agrees() {
            Some(true) => ", and",
            Some(false) => ", but",
            None => ";",
        };
        format!("{said}{joint} {seen}")
    }
}

/// Several pairs taken together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pooled {
    /// Pairs with a known placement among those pooled.
    pub pairs_known: usize,
    /// Mean share of near rounds, in percent.
    ///
    /// The interval is the mean of the pairs' intervals: pairs share CPUs and move together, so more pairs
    /// are not taken for more information.
    pub near_pct: Estimate,
    /// Mean changes between near and far, per second and pair, in the same way.
    pub switches_per_s: Estimate,
}

impl Pooled {
    /// Pools the pairs that `wanted` selects.
    #[must_use]
    pub fn of(pairs: &[PairReport], wanted: impl Fn(&PairReport) -> bool) -> Self {
        let chosen: Vec<&PairReport> = pairs.iter().filter(|pair| wanted(pair)).collect();
        let known = chosen.iter().filter(|pair| pair.placement.near_pct.value().is_some()).count();
        Self {
            pairs_known: known,
            near_pct: mean(chosen.iter().map(|pair| &pair.placement.near_pct)),
            switches_per_s: mean(chosen.iter().map(|pair| &pair.placement.switches_per_s)),
        }
    }
}

fn mean<'a>(estimates: impl Iterator<Item = &'a Estimate>) -> Estimate {
    let (mut value, mut low, mut high, mut count, mut least) = (0.0, 0.0, 0.0, 0.0, usize::MAX);
    let mut reason = None;
    for estimate in estimates {
        match estimate {
            Estimate::Known { value: v, ci95: [l, h], n } => {
                value += v;
                low += l;
                high += h;
                count += 1.0;
                least = least.min(*n);
            }
            Estimate::Unknown { reason: why } => reason = Some(why.clone()),
        }
    }
    if count == 0.0 {
        return Estimate::unknown(reason.unwrap_or_else(|| "no such pair was probed".into()));
    }
    Estimate::known(value / count, [low / count, high / count], least)
}

/// Pairs that answer so much faster than others of the same LLC that they look like hyperthreads of one core,
/// although the kernel does not say so, with their round trip and that of the others, in nanoseconds.
#[must_use]
pub fn hidden_siblings(pairs: &[PairReport]) -> Vec<(CpuId, CpuId, f64, f64)> {
    /// A core's own caches are at least this much faster than the LLC.
    const FASTER: f64 = 1.8;
    let near: Vec<(&PairReport, f64)> = pairs
        .iter()
        .filter(|pair| pair.placement.verdict == Verdict::Near)
        .filter_map(|pair| Some((pair, pair.placement.rtt_ns?)))
        .collect();
    let times: Vec<f64> = near.iter().map(|(_, ns)| *ns).collect();
    let Some(typical) = quell_core::stats::quantile(&times, 0.5) else {
        return Vec::new();
    };
    near.into_iter()
        .filter(|(pair, ns)| !pair.said_siblings && ns * FASTER < typical)
        .map(|(pair, ns)| (pair.a, pair.b, ns, typical))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::allowed;
    use crate::{Cpu, Llc, Source};
    use quell_core::{Bytes, LlcId};

    fn machine(llcs: u32, per_llc: u32) -> Topology {
        let cpus = (0..llcs * per_llc)
            .map(|id| Cpu {
                id: CpuId(id),
                core: None,
                package: None,
                siblings: vec![CpuId(id & !1), CpuId(id | 1)],
                node: None,
                apic_id: None,
                allowed: true,
            })
            .collect();
        let llcs = (0..llcs)
            .map(|id| Llc {
                id: LlcId(id),
                cpus: (id * per_llc..(id + 1) * per_llc).map(CpuId).collect(),
                advertised: Bytes::mib(32),
                ways: Some(16),
                level: 3,
                inclusive: None,
                source: Source::Sysfs,
            })
            .collect();
        Topology { cpus, llcs, ..Topology::default() }
    }

    #[test]
    fn small_machines_are_probed_completely_and_large_ones_within_bounds() {
        let small = machine(1, 4);
        let plan = Plan::new(&small, &small.online());
        assert!(plan.complete && plan.pairs.len() == 6);
        for (llcs, per_llc) in [(3, 8), (24, 8), (64, 8), (2, 128), (1, 17), (170, 3)] {
            let topology = machine(llcs, per_llc);
            let plan = Plan::new(&topology, &topology.online());
            assert!(plan.pairs.len() <= MAX_PAIRS && plan.pairs.iter().all(|(a, b)| a < b));
            let shared = |wanted| {
                plan.pairs.iter().filter(|(a, b)| topology.share_llc(*a, *b) == Some(wanted)).count()
            };
            let touched: BTreeSet<CpuId> = plan.pairs.iter().flat_map(|(a, b)| [*a, *b]).collect();
            assert!(shared(true) >= 16, "{llcs} x {per_llc}");
            assert!(shared(false) >= 30 || llcs == 1, "{llcs} x {per_llc}");
            assert!(plan.pairs.iter().any(|(a, b)| topology.are_siblings(*a, *b)));
            assert!(touched.len() * 10 >= topology.cpus.len() * 9, "{} of {llcs} x {per_llc}", touched.len());
        }
        // No LLC is known: pairs all the same.
        let blind = Topology { llcs: Vec::new(), ..machine(4, 8) };
        assert!(Plan::new(&blind, &blind.online()).pairs.len() > 30);
        assert!(Plan::new(&blind, &blind.online()[..1]).pairs.is_empty());
    }

    fn pair(said: Option<bool>, states: &[f64]) -> PairReport {
        let mut series = PlacementSeries::new();
        for (i, ns) in states.iter().enumerate() {
            series.push(Duration::from_millis(20 * i as u64), *ns);
        }
        PairReport {
            a: CpuId(0),
            b: CpuId(1),
            said_shared: said,
            said_siblings: false,
            placement: series.summary(&NearFar::fit(&[[80.0; 20], [300.0; 20]].concat(), Some(100.0))),
        }
    }

    #[test]
    fn sentences_say_what_agrees_and_what_does_not() {
        let floating = [[80.0; 10], [300.0; 10]].concat();
        for (said, states, agrees, words) in [
            (
                Some(true),
                vec![80.0; 40],
                Some(true),
                "share a last-level cache, and the probe saw them together",
            ),
            (
                Some(true),
                floating,
                Some(false),
                "but the probe saw them together in 50 % of 20 rounds, so the host",
            ),
            (Some(true), vec![300.0; 40], Some(false), "but the probe saw them apart in 100 % of 40"),
            (
                Some(false),
                vec![300.0; 40],
                Some(true),
                "different last-level caches, and the probe saw them apart",
            ),
            (None, vec![80.0; 40], None, "nothing is said"),
            (Some(true), vec![80.0; 2], None, "cannot tell: only 2 rounds"),
        ] {
            let pair = pair(said, &states);
            assert_eq!(pair.agrees(), agrees);
            assert!(pair.sentence().contains(words), "{}", pair.sentence());
        }
    }

    #[test]
    fn pooling_does_not_invent_certainty() {
        let one = pair(Some(true), &[80.0; 40]);
        let pooled = Pooled::of(&[one.clone(), one.clone(), one.clone()], |_| true);
        assert_eq!((pooled.pairs_known, pooled.near_pct), (3, one.placement.near_pct.clone()));
        assert_eq!(Pooled::of(&[one], |pair| pair.said_shared.is_none()).near_pct.value(), None);
    }

    #[test]
    fn much_faster_pairs_look_like_siblings() {
        let mut pairs = vec![pair(Some(true), &[90.0; 20]); 5];
        assert!(hidden_siblings(&pairs).is_empty());
        pairs.push(pair(Some(true), &[25.0; 20]));
        assert_eq!(hidden_siblings(&pairs), [(CpuId(0), CpuId(1), 25.0, 90.0)]);
    }

    #[test]
    fn a_survey_of_this_machine_fills_every_series_and_stops_when_told() {
        let cpus = allowed().unwrap();
        if cpus.len() < 2 {
            println!("skipped: this process may use only one CPU");
            return;
        }
        let plan = Plan::new(&Topology::default(), &cpus[..2]);
        let mut survey = Survey::new(&plan).unwrap();
        let stop = AtomicBool::new(false);
        survey.run(Duration::from_millis(200), Duration::from_millis(5), &stop).unwrap();
        let report = survey.report(&Topology::default(), &survey.near_far(), Duration::ZERO);
        assert_eq!(report.len(), 1);
        assert!(report[0].placement.rounds + report[0].placement.unanswered > 0);
        stop.store(true, Ordering::Relaxed);
        let before = survey.pairs().to_vec();
        survey.run(Duration::from_secs(3600), Duration::ZERO, &stop).unwrap();
        assert_eq!(survey.pairs(), before);
        drop(survey);
        assert_eq!(allowed().unwrap(), cpus);
        assert!(matches!(
            Survey::new(&Plan { pairs: vec![(cpus[0], cpus[0])], complete: true }),
            Err(Error::SameCpu { .. })
        ));
    }
}
