//! Time, tenants and ground truth of whole machines.

use quell_cachesim::{Burst, Config, Place, Placement, Polluter, Sim, SimMemory, truth};
use quell_core::{Line, Memory, Sample, Ticks};

fn still() -> Config {
    Config { placement: None, ..Config::milan() }
}

fn canary(lines: u32) -> Vec<Line> {
    (0..lines).map(|page| Line::new(page, page * 37 % 64)).collect()
}

/// Touch and spill through L2, four times.
fn prime(memory: &mut SimMemory, lines: &[Line]) {
    let spill: Vec<Line> = (0..12_288).map(|i| Line::new(2048 + i / 64, i % 64)).collect();
    for _ in 0..4 {
        memory.load(lines);
        memory.load(&spill);
    }
}

fn sleep(memory: &mut SimMemory, ms: f64) {
    let deadline = memory.now() + Ticks((ms * memory.ticks_per_ms()) as u64);
    memory.sleep_until(deadline);
}

fn samples(seed: u64) -> Vec<Sample> {
    let mut sim = Sim::new(Config::milan(), seed).unwrap();
    let mut memory = sim.memory(4096).unwrap();
    let lines = canary(512);
    let mut out = Vec::new();
    for _ in 0..3 {
        prime(&mut memory, &lines);
        sleep(&mut memory, 4.0);
        memory.time(&lines, &mut out);
    }
    out
}

#[test]
fn a_seed_gives_one_run_and_another_seed_another() {
    assert_eq!(samples(11), samples(11));
    assert_ne!(samples(11), samples(12));
}

/// Any change of a result is a change for every test that relies on a seed: make it on purpose.
#[test]
fn the_run_of_a_seed_is_the_same_on_every_machine() {
    let sum = samples(11).iter().fold(0u64, |sum, s| sum.wrapping_mul(31).wrapping_add(u64::from(s.ticks)));
    assert_eq!(sum, GOLDEN, "golden sum of seed 11");
}
const GOLDEN: u64 = 15_019_608_957_377_005_611;

#[test]
fn durations_are_multiples_of_the_timer_step() {
    let step = Config::milan().timing.step;
    for sample in samples(1) {
        let steps = (f64::from(sample.ticks) / step).round();
        assert!((f64::from(sample.ticks) - steps * step).abs() <= 1.0, "{} ticks", sample.ticks);
    }
    let mut sim = Sim::new(still(), 1).unwrap();
    let mut memory = sim.memory(1).unwrap();
    let now = memory.now().0 as f64;
    assert!(now % step < 1.0 || step - now % step < 1.0);
}

#[test]
fn the_levels_can_be_told_apart() {
    let mut sim = Sim::new(Config { sibling: None, ..still() }, 2).unwrap();
    let mut memory = sim.memory(4096).unwrap();
    let lines = canary(256);
    let mean = |memory: &mut SimMemory| {
        let mut out = Vec::new();
        memory.time(&lines, &mut out);
        out.iter().map(|sample| f64::from(sample.ticks.min(1000))).sum::<f64>() / 256.0
    };
    let memory_ticks = mean(&mut memory);
    let l2_ticks = mean(&mut memory);
    prime(&mut memory, &lines);
    let llc_ticks = mean(&mut memory);
    assert!((70.0..85.0).contains(&l2_ticks), "L2 {l2_ticks}");
    assert!((98.0..150.0).contains(&llc_ticks), "LLC {llc_ticks}");
    assert!(memory_ticks > 220.0, "memory {memory_ticks}");
    assert!(memory.chase(&lines).0 > 256);
}

#[test]
fn sleeping_costs_no_cpu_time_and_spinning_does() {
    let mut config = still();
    config.pauses.clear();
    let mut sim = Sim::new(config, 3).unwrap();
    let mut memory = sim.memory(1).unwrap();
    sleep(&mut memory, 10.0);
    assert!(memory.now_ms() >= 10.0 && memory.cpu_ms() < 0.001);
    let deadline = memory.now() + Ticks(2_445_000 * 5);
    let gap = memory.spin_until(deadline);
    assert!(memory.now() >= deadline && gap.0 <= 25);
    assert!((memory.cpu_ms() - 5.0).abs() < 0.01);
}

#[test]
fn pauses_are_seen_by_a_spinning_vcpu_and_recorded() {
    let mut sim = Sim::new(still(), 4).unwrap();
    let mut memory = sim.memory(1).unwrap();
    let mut longest = 0.0f64;
    for _ in 0..500 {
        let deadline = memory.now() + Ticks(2 * 2_445_000);
        longest = longest.max(memory.spin_until(deadline).0 as f64 / 2_445_000.0);
    }
    let recorded = memory.history().pauses().iter().map(|p| p.1).fold(0.0, f64::max);
    assert!((longest - recorded).abs() < 0.001 && longest > 1.0, "{longest}, recorded {recorded}");
    assert!(memory.involuntary_switches() > 0);
    assert_eq!(memory.history().pauses_in(0.0..f64::MAX), memory.history().pauses().len());
}

/// Survival in the simulated cache and the event-driven ground truth are two implementations of one law.
#[test]
fn the_truth_agrees_with_the_simulated_cache_over_a_range_of_fifty() {
    for factor in [0.2, 1.0, 10.0] {
        let mut config = Config { sibling: None, ..still() }.scale_neighbors(factor);
        config.neighbors[0].burst = Burst::Constant;
        config.pauses.clear();
        config.oversleep_ms = [0.0, 0.0];
        let truth = truth::half_life_ms(&config, 5, 20_000).unwrap();
        assert!((truth.ci95_ms[1] - truth.ci95_ms[0]) / truth.median_ms < 0.02);
        let mut sim = Sim::new(config, 5).unwrap();
        let mut memory = sim.memory(4096).unwrap();
        let lines = canary(2048);
        let (mut gone, mut total) = (0, 0);
        for _ in 0..8 {
            prime(&mut memory, &lines);
            let held: Vec<Line> =
                lines.iter().copied().filter(|&line| memory.place(line) == Place::Llc(0)).collect();
            sleep(&mut memory, truth.median_ms);
            gone += held.iter().filter(|&&line| memory.place(line) == Place::Memory).count();
            total += held.len();
            sleep(&mut memory, 20.0 * truth.median_ms);
        }
        let share = gone as f64 / total as f64;
        // The spill's own lines crowd the sets a little, so the two agree within some points.
        assert!((share - 0.5).abs() < 0.07, "factor {factor}: {share} of {total} gone at the half-life");
    }
}

#[test]
fn the_half_life_falls_as_the_rate_rises() {
    let at = |factor: f64| {
        let mut config = still().scale_neighbors(factor);
        config.neighbors[0].burst = Burst::Constant;
        truth::half_life_ms(&config, 6, 10_000).unwrap().median_ms
    };
    let base = at(1.0);
    for factor in [0.2, 5.0, 10.0] {
        let product = at(factor) * factor / base;
        assert!((product - 1.0).abs() < 0.04, "factor {factor}: {product}");
    }
    let silent = truth::half_life_ms(&still().scale_neighbors(0.0), 6, 100).unwrap();
    assert!(silent.median_ms.is_infinite() && silent.evicted(7.0) == 0.0);
}

#[test]
fn the_truth_knows_our_own_share() {
    let polluter = Polluter {
        per_ms: 145_000.0,
        period_ms: 1000.0,
        duty: 0.5,
        start_ms: 0.0,
        llc: 0,
        color: Some(3),
        reuse: 0.5,
    };
    let config = Config { polluter: Some(polluter), ..still() };
    let ask = |start_ms, color| {
        let question = truth::Question { llc: 0, start_ms, color, lines: 4000 };
        truth::survival(&config, 7, &question).unwrap()
    };
    let (hit, spared) = (ask(0.0..490.0, Some(3)), ask(0.0..490.0, Some(4)));
    assert!(hit.own_share > 0.9 && hit.median_ms < 1.0, "{} {}", hit.own_share, hit.median_ms);
    assert_eq!(spared.own_share, 0.0);
    assert_eq!(ask(510.0..900.0, Some(3)).own_share, 0.0);
    assert!(ask(0.0..490.0, None).surviving(1.0) < spared.surviving(1.0));
}

#[test]
fn our_own_load_shows_in_steps() {
    let polluter =
        Polluter { per_ms: 1.0, period_ms: 100.0, duty: 0.5, start_ms: 0.0, llc: 0, color: None, reuse: 0.0 };
    let mut sim = Sim::new(Config { polluter: Some(polluter), ..still() }, 8).unwrap();
    let mut memory = sim.memory(1).unwrap();
    assert!(memory.shares_llc_with_polluter());
    sleep(&mut memory, 1025.0);
    let load = memory.own_load().unwrap();
    assert_eq!((load.busy_ms, load.step_ms), (520.0, 10.0));
}

/// After a move nothing of ours is at hand: neither what was in L2 nor what was in the LLC that was left.
#[test]
fn a_move_to_another_llc_loses_everything() {
    let mut config = Config::milan();
    config.placement = Some(Placement { dwell_ms: 30.0, calmer_running: 1e6 });
    config.pauses.clear();
    let mut sim = Sim::new(config, 9).unwrap();
    let mut memory = sim.memory(4096).unwrap();
    let lines = canary(512);
    let (mut moved, mut stayed) = (Vec::new(), Vec::new());
    for _ in 0..150 {
        prime(&mut memory, &lines);
        let (start, home) = (memory.now_ms(), memory.llc());
        sleep(&mut memory, 1.0);
        let (end, llc) = (memory.now_ms(), memory.llc());
        let mut out = Vec::new();
        memory.time(&lines, &mut out);
        let lost = out.iter().filter(|sample| sample.ticks > 200).count() as f64 / 512.0;
        let moves = memory.history().moves_in(start..end);
        assert_eq!(memory.history().llc_at(end), llc);
        if moves == 0 {
            stayed.push(lost);
        } else if llc != home {
            moved.push(lost);
        }
    }
    assert!(moved.len() >= 2 && moved.iter().all(|&lost| lost > 0.97), "{moved:?}");
    assert!(stayed.iter().sum::<f64>() / (stayed.len() as f64) < 0.1);
}

#[test]
fn a_bad_configuration_is_refused_with_a_reason() {
    let mut config = Config::milan();
    config.l2.sets = 1000;
    let error = Sim::new(config, 1).unwrap_err();
    assert!(error.to_string().contains("the number of sets must be a power of two"), "{error}");
    let mut config = Config::milan();
    config.neighbors[0].by_color = vec![1.0; 3];
    assert!(Sim::new(config, 1).is_err());
    let mut sim = Sim::new(Config::milan(), 1).unwrap();
    assert!(sim.memory(u32::MAX).is_err());
    let nobody = truth::Question { llc: 5, start_ms: 0.0..1.0, color: None, lines: 1 };
    assert!(truth::survival(&Config::milan(), 1, &nobody).is_err());
}
