//! Capacity, calibration and repeatability on simulated machines.

use quell_cachesim::{Config, Sim, SimMemory};
use quell_core::{Bytes, Memory};
use quell_llc::capacity::{self, Usable};
use quell_llc::truth::l2_bytes;
use quell_llc::{Calibration, Layout, Monitor, Plan, Settings, Spill, Summary, calibrate};

/// A small sibling of a preset: a fourth of the LLC, so that filling it is quick; nobody disturbs.
fn calm(mut config: Config, slices: u32) -> Config {
    config.llc.slices = slices;
    for neighbor in &mut config.neighbors {
        neighbor.per_ms = 0.0;
    }
    config.neighbors.truncate(1);
    config.placement = None;
    config.sibling = None;
    config
}

fn calibrated(memory: &mut SimMemory<'_>, l2: Bytes) -> (Calibration, Layout) {
    let layout = Layout::new(l2, 5);
    (calibrate(memory, l2, &layout), layout)
}

fn usable(config: &Config) -> (u64, u64) {
    let l2 = l2_bytes(config);
    let advertised = Bytes(u64::from(config.llc_sets()) * u64::from(config.llc.slice.ways) * 64);
    let mut sim = Sim::new(config.clone(), 3).unwrap();
    let pages = capacity::pages(advertised).max(Layout::pages(l2));
    let mut memory = sim.memory(pages).unwrap();
    let (calibration, _) = calibrated(&mut memory, l2);
    let limits = calibration.discriminator.unwrap();
    match capacity::usable(&mut memory, limits, advertised, l2, 7, || true) {
        Usable::Range { lo, hi } => (lo, hi),
        Usable::Unknown { reason, .. } => panic!("{reason}"),
    }
}

#[test]
fn the_usable_range_holds_the_truth_way_masks_included() {
    for (name, preset, slices) in [("skylake-sp", Config::skylake_sp(), 4), ("milan", Config::milan(), 2)] {
        for mask in [u32::MAX, 0b1111] {
            let mut config = calm(preset.clone(), slices);
            config.llc.our_ways &= mask;
            let truth = config.usable_llc_bytes();
            let (lo, hi) = usable(&config);
            assert!((lo..=hi).contains(&truth), "{name}, ways {mask:#x}: {truth} is not in {lo} to {hi}");
            assert!(hi - lo < truth / 2, "{name}, ways {mask:#x}: {lo} to {hi} says nothing about {truth}");
        }
    }
}

#[test]
fn calibration_finds_limit_step_and_spill() {
    for config in [Config::skylake_sp(), Config::milan()] {
        let l2 = l2_bytes(&config);
        let mut sim = Sim::new(config.clone(), 1).unwrap();
        let mut memory = sim.memory(Layout::pages(l2)).unwrap();
        let (calibration, _) = calibrated(&mut memory, l2);
        let timing = &config.timing;
        let limits = calibration.discriminator.as_ref().unwrap();
        let (llc, memory_) = (timing.latency[2] + timing.overhead, timing.latency[3] + timing.overhead);
        let limit = f64::from(limits.miss_above);
        assert!(limit > llc && limit < memory_, "{limit} does not lie between {llc} and {memory_}");
        assert!((calibration.timer.step_ticks / timing.step - 1.0).abs() < 0.1, "{:?}", calibration.timer);
        assert!(matches!(calibration.spill, Spill::Congruent { .. }), "{:?}", calibration.spill);
        assert!(calibration.spilled_share > 0.9, "{}", calibration.spilled_share);
    }
}

#[test]
fn classes_that_do_not_separate_are_unknown_with_the_reason() {
    let mut config = Config::milan();
    config.timing.latency[3] = config.timing.latency[2];
    let l2 = l2_bytes(&config);
    let mut sim = Sim::new(config, 1).unwrap();
    let mut memory = sim.memory(Layout::pages(l2)).unwrap();
    let (calibration, _) = calibrated(&mut memory, l2);
    assert!(calibration.discriminator.unwrap_err().contains('%'));
}

#[test]
fn two_scans_in_a_row_agree() {
    for config in [Config::skylake_sp(), Config::milan()] {
        let l2 = l2_bytes(&config);
        let mut sim = Sim::new(config, 11).unwrap();
        let mut memory = sim.memory(Layout::pages(l2)).unwrap();
        let (calibration, layout) = calibrated(&mut memory, l2);
        let limits = calibration.discriminator.clone().unwrap();
        let mut scan = |seed| {
            let mut monitor =
                Monitor::new(Settings::default(), calibration.canary(layout.clone()), limits, seed);
            let periods: Vec<_> =
                (0..10).map(|_| monitor.period(&mut memory, Plan::Adaptive, |_| true)).collect();
            Summary::of(&periods, Settings::default().tiers)
        };
        let (first, second) = (scan(1), scan(2));
        let ([lo1, hi1], [lo2, hi2]) =
            (first.half_life_ms.ci95().unwrap(), second.half_life_ms.ci95().unwrap());
        assert!(lo1 <= hi2 && lo2 <= hi1, "{lo1} to {hi1} and {lo2} to {hi2} do not overlap");
        assert_eq!(first.tier, second.tier);
        assert!(first.cpu_ms_per_s < 10.0, "{} ms/s", first.cpu_ms_per_s);
    }
}

#[test]
fn from_either_end_the_windows_find_the_half_life_again() {
    let config = Config::milan();
    let l2 = l2_bytes(&config);
    let mut centers = Vec::new();
    for window_ms in [0.5, 32.0] {
        let mut sim = Sim::new(config.clone(), 2).unwrap();
        let mut memory = sim.memory(Layout::pages(l2)).unwrap();
        let (calibration, layout) = calibrated(&mut memory, l2);
        let limits = calibration.discriminator.clone().unwrap();
        let settings = Settings { window_ms, ..Settings::default() };
        let mut monitor = Monitor::new(settings, calibration.canary(layout), limits, 1);
        let last = (0..5).map(|_| monitor.period(&mut memory, Plan::Adaptive, |_| true)).last().unwrap();
        assert!(last.half_life_ms.value().is_some(), "{:?}", last.half_life_ms);
        centers.push(last.window_ms);
    }
    assert!(centers[0] / centers[1] < 2.5 && centers[1] / centers[0] < 2.5, "{centers:?}");
}

#[test]
fn a_stopped_period_is_cut_short() {
    let config = Config::milan();
    let l2 = l2_bytes(&config);
    let mut sim = Sim::new(config, 2).unwrap();
    let mut memory = sim.memory(Layout::pages(l2)).unwrap();
    let (calibration, layout) = calibrated(&mut memory, l2);
    let limits = calibration.discriminator.clone().unwrap();
    let mut monitor = Monitor::new(Settings::default(), calibration.canary(layout), limits, 1);
    let start = memory.now();
    let mut pauses = 0;
    let period = monitor.period(&mut memory, Plan::Adaptive, |_| {
        pauses += 1;
        pauses < 3
    });
    assert_eq!(period.windows, 2);
    assert!(memory.now().since(start).0 as f64 / memory.ticks_per_ms() < 500.0);
}
