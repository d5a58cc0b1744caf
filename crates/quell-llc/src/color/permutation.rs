//! In which order the pages of a color take its L2 sets.
//!
//! Two pages of one color share L2 sets. Where the index function takes address bits 9 to 11 as they are, the
//! lines at equal offsets collide. Where it hashes the page's address into these bits (AMD Zen), line `i` of one
//! octet collides with line `i XOR p` of the other: `p`, from 0 to 7, is the page's permutation relative to a
//! reference page of the color.

use quell_core::{Line, Memory};

use super::classify::Classification;
use crate::evset::l2::{OCTET, PUSHERS, PageTest, octet, octets};
use crate::evset::test::{Outcome, Rule, Tally};

/// The permutations found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permutations {
    /// The permutation of each page of the pool, relative to the reference page of its color; `None` if unknown.
    pub of_pages: Vec<Option<u8>>,
    /// Pages by permutation, over all colors.
    pub counts: [u32; OCTET as usize],
}

impl Permutations {
    /// Whether pages differ in it: then equal page offsets do not mean equal sets.
    #[must_use]
    pub fn permuted(&self) -> bool {
        let known: u32 = self.counts.iter().sum();
        let plain = self.counts.iter().copied().max().unwrap_or(0);
        f64::from(plain) < ONE_FOR_ALL * f64::from(known)
    }
}

/// With this share of the pages in one permutation, there is only that one.
const ONE_FOR_ALL: f64 = 0.9;

/// Finds the permutation of every page that has a color.
pub fn permutations(memory: &mut impl Memory, sorted: &Classification, seed: u64) -> Permutations {
    let mut of_pages = vec![None; sorted.labels.len()];
    let mut test = PageTest::new(sorted.ticks, sorted.residue, seed);
    for color in 0..sorted.colors() as u32 {
        for (page, permutation) in of_color(memory, &mut test, sorted, color) {
            of_pages[(page - sorted.pool.first) as usize] = Some(permutation);
        }
    }
    let mut counts = [0; OCTET as usize];
    for &permutation in of_pages.iter().flatten() {
        counts[usize::from(permutation)] += 1;
    }
    Permutations { of_pages, counts }
}

/// Masks whose parities give the three bits of a permutation, and one that checks them.
const MASKS: [u32; 4] = [1, 2, 4, 7];
/// How far the number of pages that just do not evict may lie from the associativity.
const SLACK: usize = 3;

/// The permutations of one color's pages.
///
/// A *base* of pages just too few to evict the reference becomes sufficient in those sets alone in which one more
/// page joins. With half of that page's octet, half of the reference's is pushed out: which half tells one parity
/// of the permutation's bits.
fn of_color(
    memory: &mut impl Memory,
    test: &mut PageTest,
    sorted: &Classification,
    color: u32,
) -> Vec<(u32, u8)> {
    let pages: Vec<u32> = sorted.pages_of(color).collect();
    let (Some((&reference, spare)), Some(other)) =
        (pages.split_first(), (0..sorted.colors() as u32).find(|&other| other != color))
    else {
        return Vec::new();
    };
    let pushers: Vec<u32> = sorted.pages_of(other).take(PUSHERS).collect();
    let ways = sorted.l2.ways as usize;
    let enough = (ways.saturating_sub(SLACK)..=ways + 1).find(|&count| {
        spare.len() > count
            && test.evicts(memory, reference, &spare[..count], &pushers, Rule::CAREFUL) == Outcome::Evicts
    });
    let Some(base) = enough.map(|count| count - 1) else { return Vec::new() };
    let mut found = vec![(reference, 0)];
    for (place, &page) in spare.iter().enumerate() {
        // A page of the base is replaced there by one that is not.
        let base: Vec<u32> = if place < base {
            spare[..=base].iter().copied().filter(|&other| other != page).collect()
        } else {
            spare[..base].to_vec()
        };
        found.extend(one(memory, test, reference, page, &base, &pushers).map(|p| (page, p)));
    }
    found
}

/// The permutation of `page` relative to `reference`.
fn one(
    memory: &mut impl Memory,
    test: &mut PageTest,
    reference: u32,
    page: u32,
    base: &[u32],
    pushers: &[u32],
) -> Option<u8> {
    let mut parities = [false; MASKS.len()];
    for (parity, mask) in parities.iter_mut().zip(MASKS) {
        let octet = octet(page, test.residue());
        let half = (0..OCTET).filter(|place| (place & mask).count_ones().is_multiple_of(2));
        let mut lines: Vec<Line> = octets(base, test.residue());
        lines.extend(half.map(|place| octet[place as usize]));
        test.aim_lines(&lines, pushers);
        let mut tally = Tally::default();
        *parity = loop {
            tally.add(test.half(memory, reference, mask));
            match Rule::QUICK.decide(tally) {
                // The half that is pushed out has the parity of the permutation.
                Some(Outcome::Evicts) => break false,
                Some(Outcome::Spares) => break true,
                Some(Outcome::Unsure) => return None,
                None => {}
            }
        };
    }
    let [one, two, four, check] = parities;
    (one ^ two ^ four == check).then_some(u8::from(one) | u8::from(two) << 1 | u8::from(four) << 2)
}
