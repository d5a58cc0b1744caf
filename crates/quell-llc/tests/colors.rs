//! Page colors on simulated machines, whose true colors are known.

use quell_cachesim::{Config, Replacement, Sim};
use quell_core::{Bytes, Line};
use quell_llc::calibrate;
use quell_llc::color::partition::{Verdict, partition};
use quell_llc::color::{Agreement, Classification, ClassifyError, L2, Pool, classify, permutations};
use quell_llc::layout::Layout;

const MILAN: L2 = L2 { size: Bytes::kib(512), ways: 8 };
const SKYLAKE: L2 = L2 { size: Bytes::mib(1), ways: 16 };
const POOL: Pool = Pool { first: 16, count: 2048 };

/// Classifies a pool of a new machine and returns the true colors with it.
fn sorted(
    config: Config,
    l2: L2,
    pool: Pool,
    seed: u64,
) -> (Result<Classification, ClassifyError>, Vec<Option<u32>>) {
    let mut sim = Sim::new(config, seed).unwrap();
    let mut memory = sim.memory(pool.first + pool.count).unwrap();
    let found = classify(&mut memory, l2, pool, seed);
    let truth = (pool.first..pool.first + pool.count).map(|page| Some(memory.color(page))).collect();
    (found, truth)
}

fn all_right(config: Config, l2: L2, pool: Pool, seed: u64) -> Classification {
    let colors = config.colors() as usize;
    let (found, truth) = sorted(config, l2, pool, seed);
    let found = found.unwrap();
    assert_eq!(found.colors(), colors, "seed {seed}");
    let agreement = Agreement::of(&found.labels, colors, &truth, colors);
    assert_eq!(agreement.agreeing, agreement.compared, "seed {seed}: {:?}", agreement.table);
    assert!(found.unknown() * 100 < pool.count as usize, "{} unknown", found.unknown());
    found
}

#[test]
fn no_page_gets_a_wrong_color() {
    all_right(Config::milan(), MILAN, POOL, 2);
    all_right(Config::skylake_sp(), SKYLAKE, POOL, 3);
}

/// With everything that disturbs at once: a busy tenant on the same core, neighbors at four times the usual rate.
#[test]
fn noise_makes_pages_unknown_at_worst() {
    let mut config = Config::milan().scale_neighbors(4.0);
    config.sibling.as_mut().unwrap().per_ms *= 4.0;
    let (found, truth) = sorted(config, MILAN, POOL, 7);
    let found = found.unwrap();
    let agreement = Agreement::of(&found.labels, found.colors(), &truth, 16);
    assert_eq!(agreement.agreeing, agreement.compared, "{:?}", agreement.table);
    assert!(found.unknown() * 10 < POOL.count as usize, "{} unknown", found.unknown());
}

#[test]
fn sixty_four_mebibytes_take_less_than_a_second_of_simulated_time() {
    let found = all_right(Config::milan(), MILAN, Pool { count: 16_384, ..POOL }, 1);
    assert!(found.effort.ms < 1000.0, "{} ms", found.effort.ms);
}

#[test]
fn a_small_pool_and_an_l2_of_another_shape_are_refused_with_a_reason() {
    let (found, _) = sorted(Config::milan(), MILAN, Pool { count: 300, ..POOL }, 1);
    assert_eq!(found.unwrap_err(), ClassifyError::TooFewPages { given: 300, least: 384 });
    // Told of an L2 with half the ways, no minimal group can be found.
    let (found, _) = sorted(Config::skylake_sp(), L2 { size: Bytes::kib(512), ways: 8 }, POOL, 1);
    let error = found.unwrap_err();
    assert!(matches!(error, ClassifyError::NoGroup { .. } | ClassifyError::Levels(_)), "{error}");
}

/// A stream of one color, on a machine whose LLC takes the same index bits as its L2, and on one whose LLC has a
/// single color.
#[test]
fn colors_partition_an_llc_that_is_indexed_like_the_l2() {
    for (slice_sets, slices, expected) in [(1024, 4, Verdict::Partitioned), (64, 64, Verdict::Shared)] {
        let mut config = Config { placement: None, ..Config::milan() };
        config.llc.slice.sets = slice_sets;
        config.llc.slices = slices;
        config.llc.slice.replacement = Replacement::Lru;
        config.neighbors.iter_mut().for_each(|neighbor| neighbor.per_ms /= 8.0);
        let llc = Bytes(config.usable_llc_bytes());
        let mut sim = Sim::new(config, 5).unwrap();
        let first = Layout::pages(MILAN.size);
        let mut memory = sim.memory(first + 3500).unwrap();
        let layout = Layout::new(MILAN.size, 5);
        let calibration = calibrate(&mut memory, MILAN.size, &layout);
        let sorted = classify(&mut memory, MILAN, Pool { first, count: 3500 }, 5).unwrap();
        assert_eq!(sorted.still_right(&mut memory, 4, 1), Some(1.0));
        let found = partition(&mut memory, &sorted, &layout, &calibration, llc, 5).unwrap();
        assert_eq!(found.verdict, expected, "{:?}", found.arms);
    }
}

/// Milan permutes address bits 9 to 11 by page, Skylake-SP does not.
#[test]
fn permutations_tell_which_lines_share_a_set() {
    for (config, l2, permuted) in [(Config::milan(), MILAN, true), (Config::skylake_sp(), SKYLAKE, false)] {
        let mut sim = Sim::new(config, 5).unwrap();
        let mut memory = sim.memory(POOL.first + POOL.count).unwrap();
        let sorted = classify(&mut memory, l2, POOL, 5).unwrap();
        let found = permutations(&mut memory, &sorted, 5);
        assert_eq!(found.permuted(), permuted, "{:?}", found.counts);
        let known = found.of_pages.iter().flatten().count();
        assert!(known * 100 > 90 * POOL.count as usize, "{known} known: {:?}", found.counts);
        let mut wrong = 0;
        for color in 0..sorted.colors() as u32 {
            let with = |page: u32| Some((page, found.of_pages[(page - POOL.first) as usize]?));
            let pages: Vec<(u32, u8)> = sorted.pages_of(color).filter_map(with).collect();
            for pair in pages.windows(2) {
                let [(a, p), (b, q)] = [pair[0], pair[1]];
                let place = u32::from(p ^ q);
                let same = memory.l2_set(Line::new(a, 0)) == memory.l2_set(Line::new(b, place * 8));
                wrong += usize::from(!same);
            }
        }
        assert!(wrong * 100 < known, "{wrong} of {known} wrong");
    }
}
