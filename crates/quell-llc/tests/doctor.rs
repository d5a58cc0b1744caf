//! The doctor on simulated machines, each with an ailment that it must recognize, and on healthy ones.

use quell_cachesim::{Burst, Config, Pause, Placement as Moves, Sim};
use quell_core::memory::OwnLoad;
use quell_core::{Bytes, CpuId, Line, LlcId, Memory, Sample, Ticks};
use quell_llc::capacity::Usable;
use quell_llc::doctor::{Cache, Facts, Finding, Machine, Placement, Readings, Severity, diagnose};
use quell_llc::session::Target;
use quell_llc::truth::l2_bytes;
use quell_llc::{Layout, Monitor, Plan, Settings, calibrate};
use quell_topology::TscFacts;

/// Calibrates, monitors for five periods and diagnoses. `ail` spoils the memory after calibration.
fn examine<M: Memory>(
    memory: &mut M,
    l2: Bytes,
    settings: Settings,
    ail: impl FnOnce(&mut M),
) -> Vec<Finding> {
    let layout = Layout::new(l2, 5);
    let calibration = calibrate(memory, l2, &layout);
    ail(memory);
    let measured = calibration.discriminator.clone().map(|limits| {
        let mut monitor = Monitor::new(settings, calibration.canary(layout), limits, 1);
        monitor.period(memory, Plan::Sweep, |_| true);
        let periods: Vec<_> = (0..5).map(|_| monitor.period(memory, Plan::Adaptive, |_| true)).collect();
        Readings::of(&periods, settings.tiers, Usable::Range { lo: 25 << 20, hi: 31 << 20 })
    });
    let cpus = vec![CpuId(0), CpuId(1)];
    let target = Target { llc: LlcId(0), cpus: cpus.clone(), advertised: Bytes::mib(32), l2, l2_ways: None };
    diagnose(&Facts {
        clock: TscFacts { invariant: Some(true), rdtscp: Some(true), ..TscFacts::default() },
        machine: Machine { online: 2, measured: cpus, cache_folders: true, ..Machine::default() },
        placement: Placement::default(),
        caches: vec![Cache::new(&target, settings.window_ms, Some(calibration), measured, None)],
    })
}

fn simulated(config: Config, settings: Settings) -> Vec<Finding> {
    let l2 = l2_bytes(&config);
    let mut sim = Sim::new(config, 4).unwrap();
    let mut memory = sim.memory(Layout::pages(l2)).unwrap();
    examine(&mut memory, l2, settings, |_| ())
}

/// The machine without moves and interruptions of note, whose neighbors insert at this multiple of the usual rate.
fn steady(mut config: Config, factor: f64) -> Config {
    config.neighbors.truncate(1);
    config.placement = None;
    config.pauses.truncate(1);
    config.scale_neighbors(factor)
}

fn severity(findings: &[Finding], id: &str) -> Option<Severity> {
    findings.iter().find(|finding| finding.id == id).map(|finding| finding.severity)
}

fn problems(findings: &[Finding]) -> Vec<&Finding> {
    findings.iter().filter(|finding| finding.severity == Severity::Problem).collect()
}

#[test]
fn a_healthy_machine_has_no_problem() {
    for config in [Config::milan(), Config::skylake_sp()] {
        let findings = simulated(steady(config, 1.0), Settings::default());
        assert_eq!(severity(&findings, "nothing-wrong"), Some(Severity::Ok), "{findings:#?}");
    }
}

#[test]
fn a_quiet_cache_is_really_quiet() {
    let findings = simulated(steady(Config::milan(), 0.01), Settings::default());
    assert_eq!(severity(&findings, "rate-stuck-at-0"), Some(Severity::Note), "{findings:#?}");
    assert!(problems(&findings).is_empty(), "{findings:#?}");
}

#[test]
fn a_saturated_cache_is_really_saturated() {
    let mut config = steady(Config::milan(), 25.0);
    config.neighbors[0].burst = Burst::Constant;
    let findings = simulated(config, Settings::default());
    assert_eq!(severity(&findings, "rate-stuck-at-100"), Some(Severity::Warning), "{findings:#?}");
    assert!(problems(&findings).is_empty(), "{findings:#?}");
}

#[test]
fn a_window_that_does_not_suit_gets_a_better_one() {
    let settings = Settings { window_ms: 30.0, ..Settings::default() };
    let findings = simulated(steady(Config::milan(), 2.0), settings);
    assert_eq!(severity(&findings, "window-unfit"), Some(Severity::Note), "{findings:#?}");
}

#[test]
fn a_vcpu_that_is_moved_is_noticed() {
    let mut config = Config::milan().scale_neighbors(0.5);
    for neighbor in &mut config.neighbors {
        neighbor.burst = Burst::Constant;
    }
    config.placement = Some(Moves { dwell_ms: 25.0, calmer_running: 8.0 });
    let findings = simulated(config, Settings::default());
    assert_eq!(severity(&findings, "vcpu-moves"), Some(Severity::Warning), "{findings:#?}");
}

#[test]
fn a_starved_probe_is_noticed_and_who_starves_it() {
    for (involuntary, id) in [(1.0, "probe-preempted"), (0.0, "probe-paused")] {
        let mut config = steady(Config::milan(), 1.0);
        config.pauses.push(Pause { per_ms: 12.0, median_ms: 1.5, log_sd: 0.3, involuntary });
        let findings = simulated(config, Settings::default());
        let found = severity(&findings, id);
        assert!(found.is_some_and(|severity| severity <= Severity::Warning), "{findings:#?}");
    }
}

/// A memory in which flushed lines come back by themselves, as an eager prefetcher brings them.
struct Prefetching<M> {
    memory: M,
    on: bool,
}

impl<M: Memory> Memory for Prefetching<M> {
    fn pages(&self) -> u32 {
        self.memory.pages()
    }
    fn ticks_per_ms(&self) -> f64 {
        self.memory.ticks_per_ms()
    }
    fn now(&mut self) -> Ticks {
        self.memory.now()
    }
    fn load(&mut self, lines: &[Line]) {
        self.memory.load(lines);
    }
    fn chase(&mut self, lines: &[Line]) -> Ticks {
        self.memory.chase(lines)
    }
    fn flush(&mut self, lines: &[Line]) {
        self.memory.flush(lines);
        if self.on {
            let back: Vec<Line> = lines.iter().copied().step_by(3).collect();
            self.memory.load(&back);
        }
    }
    fn time(&mut self, lines: &[Line], out: &mut Vec<Sample>) {
        self.memory.time(lines, out);
    }
    fn sleep_until(&mut self, deadline: Ticks) {
        self.memory.sleep_until(deadline);
    }
    fn spin_until(&mut self, deadline: Ticks) -> Ticks {
        self.memory.spin_until(deadline)
    }
    fn cpu_ms(&mut self) -> f64 {
        self.memory.cpu_ms()
    }
    fn involuntary_switches(&mut self) -> u64 {
        self.memory.involuntary_switches()
    }
    fn own_load(&mut self) -> Option<OwnLoad> {
        self.memory.own_load()
    }
}

#[test]
fn a_prefetcher_that_hides_misses_is_noticed_whenever_it_begins() {
    let config = steady(Config::milan(), 1.0);
    let l2 = l2_bytes(&config);
    for (from_the_start, id) in [(true, "hits-and-misses-alike"), (false, "flush-control-failed")] {
        let mut sim = Sim::new(config.clone(), 4).unwrap();
        let memory = sim.memory(Layout::pages(l2)).unwrap();
        let mut memory = Prefetching { memory, on: from_the_start };
        let findings = examine(&mut memory, l2, Settings::default(), |memory| memory.on = true);
        assert_eq!(severity(&findings, id), Some(Severity::Problem), "{findings:#?}");
        assert_eq!(problems(&findings).len(), 1, "{findings:#?}");
    }
}

/// An LLC as slow as memory looks like one that loses everything at once, and levels that are all alike leave
/// nothing to tell apart; either way nothing is measured.
#[test]
fn memory_that_answers_like_the_caches_is_a_problem() {
    for (latency, id, remedy) in [
        ([3.0, 9.0, 36.0, 36.0], "canary-not-held", "emulator"),
        ([30.0; 4], "hits-and-misses-alike", "CLFLUSH"),
    ] {
        let mut config = steady(Config::milan(), 1.0);
        config.timing.latency = latency;
        config.timing.step = 1.0;
        let findings = simulated(config, Settings::default());
        let found = problems(&findings);
        assert_eq!(found.len(), 1, "{findings:#?}");
        assert!(found[0].id == id && found[0].remedy.contains(remedy), "{found:#?}");
    }
}
