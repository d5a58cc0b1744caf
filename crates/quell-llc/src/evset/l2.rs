//! Groups of pages that share the sets of the private L2.
//!
//! Page offsets that are equal modulo 512 bytes give eight lines a page. On every CPU known to us those eight
//! lines of one page lie in eight different L2 sets, and two pages share either all of these sets or none:
//! where the index takes address bits 9 to 11 as they are, line by line, and where it hashes them per page
//! (AMD Zen), in some permuted order. So groups are built of whole pages, and the permutation does not matter.

use quell_core::memory::LINES_PER_PAGE;
use quell_core::{Line, Memory};
use rand::RngExt;
use rand::seq::SliceRandom;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::test::{EvictionTest, Outcome, Rule, Tally};

/// Lines of a page whose offsets are equal modulo 512 bytes.
pub const OCTET: u32 = 8;
/// Distance between two of them, in lines.
const STRIDE: u32 = LINES_PER_PAGE / OCTET;
/// With fewer candidate pages than this, they might all stay in L1, and pushers are needed.
const FITS_L1_PAGES: usize = 16;
/// Pages of pushers.
const PUSHER_PAGES: usize = 8;
/// How far beyond the associativity a search may go before it counts as failed.
const SLACK: usize = 4;
/// How often a search may widen its range again after a wrong answer.
const BACKTRACKS: u32 = 8;

/// The eight lines of a page at offsets that leave `residue` (0 to 7, in lines) modulo 512 bytes.
#[must_use]
pub fn octet(page: u32, residue: u32) -> [Line; OCTET as usize] {
    std::array::from_fn(|place| Line::new(page, place as u32 * STRIDE + residue % STRIDE))
}

/// The octets of several pages, one after the other.
#[must_use]
pub fn octets(pages: &[u32], residue: u32) -> Vec<Line> {
    pages.iter().flat_map(|&page| octet(page, residue)).collect()
}

/// Pages that push a target's line out of the L2 together and, as far as the search could tell, not with one
/// of them missing: as many as the L2 has ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The page that they evict.
    pub target: u32,
    /// The pages.
    pub pages: Vec<u32>,
}

/// Why a search found no group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SearchError {
    /// All pages together do not evict the target.
    #[error("{0} pages together do not push a line out of the L2; more pages are needed")]
    TooFewPages(usize),
    /// The answers contradict one another.
    #[error("the search got contradicting answers; something else disturbs this core's L2")]
    Contradiction,
    /// The pages found do not evict the target by themselves.
    #[error("more than {0} pages were found for one L2 set; the L2 does not behave like one of that associativity")]
    TooManyWays(usize),
}

/// Searches groups with one eviction test, on one residue of page offsets.
#[derive(Debug)]
pub struct Searcher {
    /// The test of the L2.
    pub test: EvictionTest,
    /// Offset of the lines used, modulo 512 bytes, in lines.
    pub residue: u32,
    ways: usize,
    rng: Xoshiro256PlusPlus,
}

impl Searcher {
    /// A searcher for an L2 with `ways` ways.
    #[must_use]
    pub fn new(test: EvictionTest, ways: u32, residue: u32, rng: Xoshiro256PlusPlus) -> Self {
        Self { test, residue: residue % STRIDE, ways: ways as usize, rng }
    }

    /// Ways that groups are expected to fill.
    #[must_use]
    pub fn ways(&self) -> usize {
        self.ways
    }

    /// Random numbers for whoever drives the search.
    pub fn rng(&mut self) -> &mut Xoshiro256PlusPlus {
        &mut self.rng
    }

    /// A random one of the page's lines that the search uses.
    pub fn any_line(&mut self, page: u32) -> Line {
        octet(page, self.residue)[self.rng.random_range(0..OCTET as usize)]
    }

    /// A minimal group of `pool`'s pages that evicts `target`, which must not be among them.
    ///
    /// The shortest evicting prefix of the pool ends with a page of the group; moved to the front, it makes the
    /// next prefix shorter (the binary search of Zhao et al., "Last-Level Cache Side-Channel Attacks Are
    /// Feasible in the Modern Public Cloud", ASPLOS 2024).
    ///
    /// # Errors
    /// [`SearchError`]; another try with other pages may succeed.
    pub fn find(&mut self, memory: &mut impl Memory, target: u32, pool: &[u32]) -> Result<Group, SearchError> {
        let mut pages = pool.to_vec();
        pages.shuffle(&mut self.rng);
        let line = self.any_line(target);
        let mut found = 0;
        let mut upper = pages.len();
        if self.prefix(memory, line, &pages, upper) != Outcome::Evicts {
            return Err(SearchError::TooFewPages(pages.len()));
        }
        let mut backtracks = 0;
        loop {
            let end = self.shortest(memory, line, &pages, found, upper);
            if end == upper && self.prefix(memory, line, &pages, upper) != Outcome::Evicts {
                backtracks += 1;
                if backtracks > BACKTRACKS {
                    return Err(SearchError::Contradiction);
                }
                upper = (upper + upper / 2).min(pages.len());
                continue;
            }
            pages.swap(found, end - 1);
            found += 1;
            upper = end.max(found);
            if found + 1 >= self.ways && self.prefix(memory, line, &pages, found) == Outcome::Evicts {
                pages.truncate(found);
                return Ok(Group { target, pages });
            }
            if found >= self.ways + SLACK {
                return Err(SearchError::TooManyWays(found));
            }
        }
    }

    /// The length of the shortest prefix of `pages` that evicts, above `lo` and at most `hi`.
    fn shortest(&mut self, memory: &mut impl Memory, line: Line, pages: &[u32], lo: usize, hi: usize) -> usize {
        let (mut lo, mut hi) = (lo, hi);
        while hi - lo > 1 {
            let middle = lo.midpoint(hi);
            if self.prefix(memory, line, pages, middle) == Outcome::Evicts {
                hi = middle;
            } else {
                lo = middle;
            }
        }
        hi
    }

    /// Whether the first `length` of `pages` evict `line`.
    fn prefix(&mut self, memory: &mut impl Memory, line: Line, pages: &[u32], length: usize) -> Outcome {
        let (candidates, rest) = pages.split_at(length);
        let pushers = if length < FITS_L1_PAGES { &rest[rest.len().saturating_sub(PUSHER_PAGES)..] } else { &[] };
        let (candidates, pushers) = (octets(candidates, self.residue), octets(pushers, self.residue));
        self.test.evicts(memory, line, &candidates, &pushers, Rule::CAREFUL)
    }

    /// Whether the `evictors` push out the lines of each of `targets`, which must not be among them. The test
    /// takes many targets at a time, in an order and at offsets drawn anew for each trial.
    pub fn sort(
        &mut self,
        memory: &mut impl Memory,
        targets: &[u32],
        evictors: &[u32],
        rule: Rule,
    ) -> Vec<(Outcome, Tally)> {
        let mut results = vec![(Outcome::Unsure, Tally::default()); targets.len()];
        let mut open: Vec<usize> = (0..targets.len()).collect();
        self.test.aim(&octets(evictors, self.residue), &[]);
        while !open.is_empty() {
            open.shuffle(&mut self.rng);
            for batch in open.chunks(BATCH) {
                let lines: Vec<Line> = batch.iter().map(|&i| self.any_line(targets[i])).collect();
                let mut tallies: Vec<Tally> = batch.iter().map(|&i| results[i].1).collect();
                self.test.trial(memory, &lines, &mut tallies);
                for (&i, tally) in batch.iter().zip(tallies) {
                    results[i].1 = tally;
                }
            }
            open.retain(|&i| match rule.decide(results[i].1) {
                Some(outcome) => {
                    results[i].0 = outcome;
                    false
                }
                None => true,
            });
        }
        results
    }
}

/// Targets of one trial: few enough not to push one another out of the L2.
const BATCH: usize = 64;
