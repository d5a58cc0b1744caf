//! Several vCPUs: snooping, the snoop filter, clocks side by side, and pages that move.

use proptest::prelude::*;
use quell_cachesim::{Config, Inclusion, L1, Level, Place, Prefetch, Replacement, Sim, SnoopFilter};
use quell_core::{Crew, Line, Memory, Ticks};

/// A non-inclusive machine without other tenants: L1 of one line, one set each of L2 (2 ways), LLC (4 ways)
/// and snoop filter (3 ways).
fn tiny() -> Config {
    let mut config = Config::skylake_sp();
    config.l1 = L1 { sets: 1, ways: 1 };
    config.l2 = Level { sets: 1, ways: 2, replacement: Replacement::Lru };
    config.llc.slice = Level { sets: 1, ways: 4, replacement: Replacement::Lru };
    config.llc.slices = 1;
    config.llc.inclusion = Inclusion::NonInclusive;
    config.llc.snoop_filter = Some(SnoopFilter { ways: 3, replacement: Replacement::Lru, pressure: 1.0 });
    config.llc.our_ways = 0xf;
    config.llc.their_ways = 0xf;
    config.prefetch = Prefetch::default();
    config.neighbors[0].per_ms = 0.0;
    config.pauses.clear();
    config
}

fn line(i: u32) -> Line {
    Line::new(i, 0)
}

#[test]
fn a_line_of_two_cores_is_kept_in_the_llc_and_leaves_both_with_it() {
    let mut sim = Sim::with_vcpus(tiny(), 1, 2).unwrap();
    let mut crew = sim.crew(16, true).unwrap();
    let mut memory = crew.member(0);
    memory.load(&[line(0)]);
    assert_eq!((memory.copies(line(0)), memory.place(line(0))), (1, Place::L1));
    memory.load_shared(&[line(1)]);
    assert_eq!(memory.copies(line(1)), 3, "both L2s and the LLC");
    // Four more shared lines fill the LLC; the first goes, also from the L2s (which hold two lines each).
    memory.load_shared(&[2, 3, 4, 5].map(line));
    assert_eq!(memory.copies(line(1)), 0);
    assert_eq!(memory.copies(line(5)), 3);
}

#[test]
fn the_llc_gives_a_line_back_to_a_single_core() {
    let mut sim = Sim::with_vcpus(tiny(), 1, 2).unwrap();
    let mut crew = sim.crew(16, true).unwrap();
    let mut memory = crew.member(0);
    memory.load(&[0, 1, 2].map(line));
    assert_eq!(memory.place(line(0)), Place::Llc(0));
    memory.load(&[line(0)]);
    assert_eq!((memory.place(line(0)), memory.copies(line(0))), (Place::L1, 1));
}

/// Two cores hold four lines, the filter three: one must go.
#[test]
fn a_full_snoop_filter_recalls_lines_from_l2() {
    let mut sim = Sim::with_vcpus(tiny(), 1, 2).unwrap();
    let mut crew = sim.crew(16, false).unwrap();
    crew.member(0).load(&[0, 1].map(line));
    crew.member(1).load(&[2, 3].map(line));
    let mut first = crew.member(0);
    let places = [0, 1].map(|i| first.place(line(i)));
    assert_eq!(places, [Place::Llc(0), Place::L1]);
}

#[test]
fn neighbors_push_lines_out_of_l2_through_the_filter() {
    let mut config = tiny();
    config.neighbors[0].per_ms = 100.0;
    let mut sim = Sim::new(config, 1).unwrap();
    let mut memory = sim.memory(16).unwrap();
    memory.load(&[line(0)]);
    let later = memory.now() + Ticks((10.0 * memory.ticks_per_ms()) as u64);
    memory.spin_until(later);
    assert_eq!(memory.place(line(0)), Place::Llc(0));
}

/// Jobs are done side by side: four of a millisecond on two members take two.
#[test]
fn members_work_at_the_same_time() {
    let mut sim = Sim::with_vcpus(Config::skylake_sp(), 1, 4).unwrap();
    let mut crew = sim.crew(64, true).unwrap();
    assert_eq!(crew.members(), 2);
    let ends = crew.run(vec![1u64; 4], &|memory, ms| {
        assert!(memory.has_helper());
        let until = memory.now() + Ticks(ms * 2_000_000);
        memory.spin_until(until);
        memory.load_shared(&[line(3)]);
        memory.now()
    });
    assert_eq!(ends.len(), 4);
    let now = crew.member(0).now_ms();
    assert!((2.0..2.2).contains(&now), "{now}");
    assert!(Sim::with_vcpus(Config::skylake_sp(), 1, 17).is_err());
}

#[test]
fn a_remapped_page_is_cached_nowhere_and_lies_elsewhere() {
    let mut sim = Sim::with_vcpus(Config::skylake_sp(), 1, 2).unwrap();
    let mut crew = sim.crew(512, true).unwrap();
    let mut memory = crew.member(0);
    let pages: Vec<u32> = (0..512).collect();
    let lines: Vec<Line> = pages.iter().map(|&page| line(page)).collect();
    memory.load_shared(&lines);
    let before: Vec<usize> = lines.iter().map(|&line| memory.llc_set(line)).collect();
    memory.remap(&pages[..256]);
    assert!(lines[..256].iter().all(|&line| memory.copies(line) == 0));
    let moved = lines.iter().zip(before).filter(|&(&line, before)| memory.llc_set(line) != before).count();
    assert!((250..=256).contains(&moved), "{moved} of 256 pages have other sets");
}

#[test]
fn every_preset_runs_with_ten_vcpus() {
    for config in [
        Config::skylake_sp(),
        Config::ice_lake_sp(),
        Config::sapphire_rapids(),
        Config::milan(),
        Config::genoa(),
    ] {
        let mut sim = Sim::with_vcpus(config, 1, 10).unwrap();
        let mut crew = sim.crew(256, true).unwrap();
        let ends = crew.run((0..10).collect(), &|memory, _: u32| {
            let lines: Vec<Line> = (0..256).map(line).collect();
            memory.load_shared(&lines);
            let mut samples = Vec::new();
            memory.time(&lines, &mut samples);
            samples.len()
        });
        assert_eq!(ends, [256; 10]);
    }
}

proptest! {
    /// Whatever two cores access: no level exceeds its capacity, and a line has at most a copy in each.
    #[test]
    fn capacities_hold_with_two_cores(
        accesses in prop::collection::vec((0u32..24, 0u8..8), 1..200),
        neighbors in prop::bool::ANY,
        filter in prop::bool::ANY,
    ) {
        let mut config = tiny();
        config.neighbors[0].per_ms = if neighbors { 2000.0 } else { 0.0 };
        if !filter {
            config.llc.snoop_filter = None;
        }
        let mut sim = Sim::with_vcpus(config, 3, 2).unwrap();
        let mut crew = sim.crew(24, false).unwrap();
        for (i, how) in accesses {
            let mut memory = crew.member(usize::from(how) % 2);
            match how {
                0 | 1 => memory.flush(&[line(i)]),
                _ => memory.load(&[line(i)]),
            }
            let copies: Vec<usize> = (0..24).map(|i| memory.copies(line(i))).collect();
            prop_assert!(copies.iter().all(|&n| n <= 3));
            let mut private = 0;
            for member in 0..2 {
                let mut memory = crew.member(member);
                let held = (0..24).filter(|&i| matches!(memory.place(line(i)), Place::L1 | Place::L2)).count();
                prop_assert!(held <= 2);
                private += held;
            }
            let in_all: usize = (0..24).map(|i| crew.member(0).copies(line(i))).sum();
            prop_assert!(in_all <= private + 4, "{in_all} copies, {private} of them in L2");
        }
    }
}
