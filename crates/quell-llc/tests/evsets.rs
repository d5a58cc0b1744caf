//! Eviction sets of the LLC on simulated machines, whose true sets are known. The whole grid is
//! `quell bench build`.

use quell_cachesim::{Backing, Config, Level, Sim, SimCrew};
use quell_llc::Settings;
use quell_llc::evset::llc::bench::shape;
use quell_llc::evset::llc::monitor::Rebuild;
use quell_llc::evset::llc::search::Method;
use quell_llc::evset::llc::{BuildSettings, Construction, EvictionSet, EvsetError, EvsetMonitor, construct};

const GO_ON: fn(quell_llc::evset::llc::Stage) -> bool = |_| true;

/// A sixteenth of a preset: four colors, four slices of 512 sets, the same pressure on each set.
fn small(preset: Config) -> Config {
    let mut config = preset;
    let sets = config.llc_sets();
    config.l2 = Level { sets: 256, ..config.l2 };
    config.llc.slice = Level { sets: 512, ..config.llc.slice };
    config.llc.slices = 4;
    config.placement = None;
    config.neighbors.truncate(1);
    let factor = f64::from(config.llc_sets()) / f64::from(sets);
    config.scale_neighbors(factor)
}

fn settings(config: &Config, slots: u32) -> BuildSettings {
    let slots = (0..slots).map(|i| (i * 19 + 5) % 64).collect();
    BuildSettings { slots, ..BuildSettings::new(config.llc.slice.ways as usize, 1) }
}

/// Sets whose lines, as many as there are usable ways, lie in the target's LLC set.
fn right(crew: &mut SimCrew<'_>, config: &Config, sets: &[EvictionSet]) -> usize {
    let memory = crew.member(0);
    let ways = config.llc.our_ways.count_ones() as usize;
    let good = |set: &&EvictionSet| {
        let home = memory.llc_set(set.target);
        set.lines.len() == ways
            && !set.lines.contains(&set.target)
            && set.lines.iter().all(|&line| memory.llc_set(line) == home)
    };
    sets.iter().filter(good).count()
}

fn built(config: &Config, settings: &BuildSettings) -> (Construction, usize) {
    let shape = shape(config);
    let mut sim = Sim::with_vcpus(config.clone(), 3, 4).unwrap();
    let mut crew = sim.crew(shape.pages(), true).unwrap();
    let found = construct(&mut crew, shape, settings, &GO_ON).unwrap();
    let right = right(&mut crew, config, &found.built.sets);
    (found, right)
}

#[test]
fn every_set_is_right_and_none_is_missing() {
    for (preset, name) in [(Config::skylake_sp(), "skylake-sp"), (Config::ice_lake_sp(), "ice-lake-sp")] {
        let config = small(preset);
        let (found, right) = built(&config, &settings(&config, 8));
        let built = &found.built;
        assert_eq!((found.pages.len(), built.wanted), (4, 4 * 4 * 8), "{name}");
        assert_eq!(
            (built.sets.len(), right),
            (built.wanted, built.wanted),
            "{name}: {:?} {:?}",
            built.failures,
            found.limits
        );
        assert_eq!(built.ways, Some(config.llc.slice.ways as usize), "{name}");
        assert_eq!(found.way_limited(), Some(false), "{name}");
        // 512 sets of a slice are two for each color and page offset, in four slices.
        let sets = built.sets_per_color.unwrap();
        assert!((sets - 8.0).abs() < 1.5, "{name}: {sets} LLC sets per color and page offset");
    }
}

#[test]
fn slices_that_are_no_power_of_two_are_no_obstacle() {
    let mut config = small(Config::skylake_sp());
    config.llc.slices = 5;
    let (found, right) = built(&config, &settings(&config, 6));
    assert_eq!((found.built.sets.len(), right), (found.built.wanted, found.built.wanted));
}

#[test]
fn way_limits_show_as_smaller_sets() {
    for ways in [4, 7] {
        let mut config = small(Config::skylake_sp());
        config.llc.our_ways = (1 << ways) - 1;
        let (found, right) = built(&config, &settings(&config, 2));
        assert_eq!(found.built.ways, Some(ways), "{:?}", found.built.sizes);
        assert_eq!(found.way_limited(), Some(true));
        assert_eq!(right, found.built.sets.len(), "{ways} ways");
        assert!(found.built.coverage_pct() > 95.0, "{ways} ways: {:?}", found.built.failures);
    }
}

#[test]
fn carrying_sets_to_other_offsets_saves_most_of_the_work() {
    let config = small(Config::skylake_sp());
    let ours = settings(&config, 8);
    let baseline = BuildSettings { method: Method::GroupTesting, carry: false, ..ours.clone() };
    let per_set = |settings| {
        let built = built(&config, settings).0.built;
        built.accesses as f64 / built.sets.len() as f64
    };
    let (ours, baseline) = (per_set(&ours), per_set(&baseline));
    assert!(baseline > 1.5 * ours, "{ours} accesses a set, baseline {baseline}");
}

/// The LLC of AMD Zen takes its lines from the L2 only, and lines that share an LLC set rarely share an L2 set.
#[test]
fn a_victim_cache_is_refused_with_the_evidence() {
    let mut config = small(Config::milan());
    config.sibling = None;
    let shape = shape(&config);
    let mut sim = Sim::with_vcpus(config.clone(), 3, 4).unwrap();
    let mut crew = sim.crew(shape.pages(), false).unwrap();
    let opened = EvsetMonitor::open(&mut crew, shape, settings(&config, 2), Settings::default(), 1e9, &GO_ON);
    match opened {
        Err(EvsetError::Unverified(reason)) => assert!(reason.contains("did not push"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

fn monitored(config: &Config, crew: &mut SimCrew<'_>, slots: u32) -> EvsetMonitor {
    let build = settings(config, slots);
    let period = Settings { period_ms: 250.0, window_ms: 4.0, ..Settings::default() };
    EvsetMonitor::open(crew, shape(config), build, period, 1e9, &GO_ON).unwrap()
}

#[test]
fn a_hot_color_stands_out() {
    let mut config = small(Config::skylake_sp());
    config.neighbors[0].by_color = vec![1.0, 1.0, 12.0, 1.0];
    let mut sim = Sim::with_vcpus(config.clone(), 5, 4).unwrap();
    let mut crew = sim.crew(shape(&config).pages(), true).unwrap();
    let mut monitor = monitored(&config, &mut crew, 8);
    let periods: Vec<_> = (0..6).map(|_| monitor.period(&mut crew, false, &|| true)).collect();
    let last = periods.last().unwrap();
    assert!(last.period.refusal.is_none(), "{:?}", last.period.refusal);
    assert!(last.coverage_pct > 95.0);
    // Colors have numbers of their own: the hot one is where the pages of true color 2 are.
    let page = monitor.construction().pages.iter().map(|pages| pages[0]).collect::<Vec<_>>();
    let hot = page.iter().position(|&page| crew.member(0).color(page) == 2).unwrap();
    let lost = |color: usize| -> f64 {
        let rate =
            |period: &quell_llc::evset::llc::EvsetPeriod| period.period.colors[color].ewma_rate_pct_per_ms;
        periods.iter().filter_map(rate).next_back().unwrap_or(0.0)
    };
    let others = (0..4).filter(|&color| color != hot).map(lost).fold(0.0, f64::max);
    let saturated = last.period.colors[hot].tier == Some(quell_llc::Tier::Saturated);
    assert!(saturated || lost(hot) > 1.5 * others, "hot {}, others {others}", lost(hot));
}

#[test]
fn sets_broken_by_a_remap_are_named_within_two_periods_and_count_no_more() {
    let config = small(Config::skylake_sp());
    let mut sim = Sim::with_vcpus(config.clone(), 9, 4).unwrap();
    let mut crew = sim.crew(shape(&config).pages(), true).unwrap();
    let mut monitor = monitored(&config, &mut crew, 16);
    monitor.period(&mut crew, false, &|| true);
    let before = monitor.construction().built.sets.clone();
    let pages: Vec<u32> = (0..shape(&config).pages()).step_by(40).collect();
    crew.member(0).remap(&pages);
    // A set is broken if its lines no longer share the target's set.
    let memory = crew.member(0);
    let broken: Vec<&EvictionSet> = before
        .iter()
        .filter(|set| set.lines.iter().any(|&line| memory.llc_set(line) != memory.llc_set(set.target)))
        .collect();
    assert!(broken.len() > 20, "only {} sets are broken", broken.len());
    let two = [(); 2].map(|()| monitor.period(&mut crew, false, &|| true));
    let named: Vec<_> = two.iter().flat_map(|period| &period.broken).map(|broken| broken.target).collect();
    let flagged = broken.iter().filter(|set| named.contains(&set.target)).count();
    // A rebuild before the second period replaces what was not reached.
    let replaced = two[1].rebuilt == Some(Rebuild::Coverage);
    assert!(replaced || flagged * 100 >= 99 * broken.len(), "{flagged} of {} flagged", broken.len());
    let sets = monitor.construction().built.sets.clone();
    assert_eq!(right(&mut crew, &config, &sets), sets.len(), "a broken set is still in use");
    let third = monitor.period(&mut crew, false, &|| true);
    assert!(third.coverage_pct > 90.0, "{} %", third.coverage_pct);
}

#[test]
fn all_sets_are_built_anew_when_asked_and_on_schedule() {
    let mut config = small(Config::skylake_sp());
    config.backing = Backing::Huge;
    let mut sim = Sim::with_vcpus(config.clone(), 2, 4).unwrap();
    let mut crew = sim.crew(shape(&config).pages(), true).unwrap();
    let mut monitor = EvsetMonitor::open(
        &mut crew,
        shape(&config),
        settings(&config, 2),
        Settings { period_ms: 250.0, ..Settings::default() },
        400.0,
        &GO_ON,
    )
    .unwrap();
    let why: Vec<_> =
        [false, true, false, false].map(|asked| monitor.period(&mut crew, asked, &|| true).rebuilt).to_vec();
    assert_eq!(why[..2], [None, Some(Rebuild::Asked)]);
    assert!(why[2..].contains(&Some(Rebuild::Scheduled)), "{why:?}");
}
