//! The cache levels together, on machines small enough to work out by hand.

use proptest::prelude::*;
use quell_cachesim::{Config, Inclusion, L1, Level, Place, Prefetch, Replacement, Sim, SimMemory};
use quell_core::{Line, Memory};

/// A machine without other tenants: L1 of one line, one set each of L2 (2 ways) and LLC (4 ways).
fn tiny(inclusion: Inclusion) -> Config {
    let mut config = Config::milan();
    config.l1 = L1 { sets: 1, ways: 1 };
    config.l2 = Level { sets: 1, ways: 2, replacement: Replacement::Lru };
    config.llc.slice = Level { sets: 1, ways: 4, replacement: Replacement::Lru };
    config.llc.slices = 1;
    config.llc.inclusion = inclusion;
    config.llc.our_ways = 0xf;
    config.llc.their_ways = 0xf;
    config.prefetch = Prefetch::default();
    config.neighbors.truncate(1);
    config.neighbors[0].per_ms = 0.0;
    config.sibling = None;
    config.placement = None;
    config.pauses.clear();
    config
}

/// Line `i` of an arena, in a page of its own.
fn line(i: u32) -> Line {
    Line::new(i, 0)
}

fn load(memory: &mut SimMemory, lines: &[u32]) {
    memory.load(&lines.iter().map(|&i| line(i)).collect::<Vec<_>>());
}

fn places(memory: &mut SimMemory, n: u32) -> Vec<Place> {
    (0..n).map(|i| memory.place(line(i))).collect()
}

const LLC: Place = Place::Llc(0);

#[test]
fn a_victim_cache_takes_what_l2_evicts_and_gives_it_back() {
    let mut sim = Sim::new(tiny(Inclusion::Exclusive), 1).unwrap();
    let mut memory = sim.memory(16).unwrap();
    load(&mut memory, &[0, 1, 2]);
    assert_eq!(places(&mut memory, 3), [LLC, Place::L2, Place::L1]);
    // The hit moves line 0 up and pushes line 1 out: a swap.
    load(&mut memory, &[0]);
    assert_eq!(places(&mut memory, 3), [Place::L1, LLC, Place::L2]);
    // Two ways and four ways hold six lines, not more.
    load(&mut memory, &[3, 4, 5, 6]);
    assert_eq!(places(&mut memory, 7), [LLC, Place::Memory, LLC, LLC, LLC, Place::L2, Place::L1]);
}

#[test]
fn an_inclusive_cache_holds_copies_and_its_evictions_reach_l1() {
    let mut sim = Sim::new(tiny(Inclusion::Inclusive), 1).unwrap();
    let mut memory = sim.memory(16).unwrap();
    load(&mut memory, &[0, 1, 2]);
    assert_eq!(places(&mut memory, 3), [LLC, Place::L2, Place::L1]);
    assert_eq!([0, 1, 2].map(|i| memory.copies(line(i))), [1, 2, 2]);
    // Line 1 stays in L2 by hits that the LLC does not see, until the LLC evicts it.
    load(&mut memory, &[3, 1]);
    assert_eq!(places(&mut memory, 4), [LLC, Place::L1, LLC, Place::L2]);
    load(&mut memory, &[4, 1, 5, 1]);
    assert_eq!(memory.place(line(0)), Place::Memory);
    load(&mut memory, &[6, 7]);
    assert_eq!((memory.place(line(1)), memory.copies(line(1))), (Place::Memory, 0));
}

#[test]
fn a_non_inclusive_cache_keeps_its_copy_after_a_hit() {
    let mut sim = Sim::new(tiny(Inclusion::NonInclusive), 1).unwrap();
    let mut memory = sim.memory(16).unwrap();
    load(&mut memory, &[0, 1, 2]);
    assert_eq!([0, 1, 2].map(|i| memory.copies(line(i))), [1, 1, 1]);
    load(&mut memory, &[0]);
    assert_eq!((memory.place(line(0)), memory.copies(line(0))), (Place::L1, 2));
}

#[test]
fn a_way_mask_limits_what_we_hold_to_the_line() {
    for mask in [0b0001u32, 0b0110, 0b1111] {
        let mut config = tiny(Inclusion::Exclusive);
        config.llc.our_ways = mask;
        assert_eq!(config.usable_llc_bytes(), u64::from(mask.count_ones()) * 64);
        let mut sim = Sim::new(config, 1).unwrap();
        let mut memory = sim.memory(64).unwrap();
        load(&mut memory, &(0..64).collect::<Vec<_>>());
        let held = places(&mut memory, 64).iter().filter(|&&place| place == LLC).count();
        assert_eq!(held, mask.count_ones() as usize);
    }
    assert_eq!(Config::milan().usable_llc_bytes(), 32 << 20);
    assert_eq!(Config::skylake_sp().usable_llc_bytes(), 27 << 20 | 512 << 10);
}

#[test]
fn disjoint_way_masks_isolate_us_from_the_neighbors() {
    let mut config = tiny(Inclusion::Exclusive);
    config.neighbors[0].per_ms = 1000.0;
    (config.llc.our_ways, config.llc.their_ways) = (0b0011, 0b1100);
    let mut sim = Sim::new(config, 1).unwrap();
    let mut memory = sim.memory(16).unwrap();
    load(&mut memory, &[0, 1, 2, 3]);
    let later = memory.now() + quell_core::Ticks(50_000_000);
    memory.sleep_until(later);
    assert_eq!(places(&mut memory, 4)[..2], [LLC, LLC]);
    assert_eq!(memory.evictions().outside, 0);
}

#[test]
fn a_flushed_line_is_nowhere() {
    let mut sim = Sim::new(Config { placement: None, ..Config::milan() }, 1).unwrap();
    let mut memory = sim.memory(256).unwrap();
    let lines: Vec<Line> = (0..256).map(line).collect();
    memory.load(&lines);
    memory.flush(&lines);
    assert!(lines.iter().all(|&line| memory.place(line) == Place::Memory));
    assert!(lines.iter().all(|&line| memory.copies(line) == 0));
}

#[test]
fn prefetchers_fetch_the_buddy_the_next_lines_and_the_stride() {
    let quiet = |prefetch| {
        let mut config = Config { prefetch, placement: None, sibling: None, ..Config::milan() };
        config.pauses.clear();
        Sim::new(config.scale_neighbors(0.0), 1).unwrap()
    };
    let cached = |memory: &mut SimMemory, slots: [u32; 4]| {
        slots.map(|slot| memory.place(Line::new(0, slot)) != Place::Memory)
    };
    let mut sim = quiet(Prefetch { buddy: true, next: 0, stride: false });
    let mut memory = sim.memory(1).unwrap();
    memory.load(&[Line::new(0, 7)]);
    assert_eq!(cached(&mut memory, [5, 6, 7, 8]), [false, true, true, false]);
    let mut sim = quiet(Prefetch { buddy: false, next: 2, stride: false });
    let mut memory = sim.memory(1).unwrap();
    memory.load(&[Line::new(0, 7)]);
    assert_eq!(cached(&mut memory, [6, 8, 9, 10]), [false, true, true, false]);
    let mut sim = quiet(Prefetch { buddy: false, next: 0, stride: true });
    let mut memory = sim.memory(1).unwrap();
    memory.load(&[0, 8, 16].map(|slot| Line::new(0, slot)));
    assert_eq!(cached(&mut memory, [16, 24, 32, 17]), [true, true, false, false]);
}

proptest! {
    /// Whatever is accessed: in an exclusive hierarchy a line is in one place at most, in an inclusive one
    /// nothing is in L2 that is not in the LLC, and no level exceeds its capacity.
    #[test]
    fn lines_are_conserved(
        accesses in prop::collection::vec((0u32..24, 0u8..8), 1..200),
        kind in 0usize..3,
        neighbors in prop::bool::ANY,
    ) {
        let inclusion = [Inclusion::Exclusive, Inclusion::Inclusive, Inclusion::NonInclusive][kind];
        let mut config = tiny(inclusion);
        config.neighbors[0].per_ms = if neighbors { 2000.0 } else { 0.0 };
        let mut sim = Sim::new(config, 3).unwrap();
        let mut memory = sim.memory(24).unwrap();
        let mut samples = Vec::new();
        for (i, how) in accesses {
            match how {
                0 => memory.flush(&[line(i)]),
                1 => memory.time(&[line(i)], &mut samples),
                _ => memory.load(&[line(i)]),
            }
            let places = places(&mut memory, 24);
            let private = places.iter().filter(|p| matches!(p, Place::L1 | Place::L2)).count();
            prop_assert!(private <= 2);
            let copies: Vec<usize> = (0..24).map(|i| memory.copies(line(i))).collect();
            for (place, &copies) in places.iter().zip(&copies) {
                match (inclusion, place) {
                    (_, Place::Memory) => prop_assert_eq!(copies, 0),
                    (Inclusion::Inclusive, Place::L1 | Place::L2) => prop_assert_eq!(copies, 2),
                    (Inclusion::NonInclusive, Place::L1 | Place::L2) => prop_assert!(copies <= 2),
                    _ => prop_assert_eq!(copies, 1),
                }
            }
            let in_llc = copies.iter().sum::<usize>() - private;
            prop_assert!(in_llc <= 4, "{in_llc} of our lines in an LLC of 4");
        }
    }
}
