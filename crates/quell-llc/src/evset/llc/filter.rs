//! Candidates by color: a line can only share an LLC set with lines of its own page color.

use quell_core::Crew;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::color::Classification;
use crate::evset::l2::{PageTest, batch};
use crate::evset::test::{Outcome, Rule};

/// Pages of one job.
const CHUNK: usize = 256;
/// One clear trial is enough.
const FILTER: Rule = Rule { least: 1, most: 6, lead: 0.8 };

/// Sorts `pages` by the colors of a small pool, all vCPUs in parallel. Pages that no color claims are left out.
/// Unlike the sorting of the pool itself, the first color that evicts a page has it: a wrong color costs a
/// candidate that never counts, but no wrong set. `l2_ways` are the ways of the L2; `seed` draws orders.
pub fn sort_by_color(
    crew: &mut impl Crew,
    known: &Classification,
    pages: &[u32],
    l2_ways: u32,
    seed: u64,
) -> Vec<Vec<u32>> {
    let colors = known.colors();
    let size = batch(colors as u32, l2_ways);
    let jobs: Vec<(u64, &[u32])> =
        pages.chunks(CHUNK).enumerate().map(|(i, chunk)| (i as u64, chunk)).collect();
    let sorted = crew.run(jobs, &|memory, (number, chunk)| {
        let seed = seed.wrapping_add(number);
        let mut test = PageTest::new(known.ticks, known.residue, seed);
        let mut order: Vec<usize> = (0..colors).collect();
        order.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(seed));
        let mut open = chunk.to_vec();
        let mut claimed = Vec::new();
        for color in order {
            let evictors = &known.evictors[color].0[0];
            let outcomes = test.sort(memory, &open, evictors, size, FILTER);
            let mut outcomes = outcomes.into_iter();
            open.retain(|&page| {
                let evicted = outcomes.next().is_some_and(|(outcome, _)| outcome == Outcome::Evicts);
                if evicted {
                    claimed.push((color, page));
                }
                !evicted
            });
        }
        claimed
    });
    let mut by_color = vec![Vec::new(); colors];
    for (color, page) in sorted.into_iter().flatten() {
        by_color[color].push(page);
    }
    by_color
}
