//! Groups of pages that share the sets of the private L2.
//!
//! Page offsets that are equal modulo 512 bytes give eight lines a page, its *octet*. On every CPU known to us
//! the eight lines lie in eight different L2 sets, and two pages share either all of these sets or none: where
//! the index takes address bits 9 to 11 as they are, line by line, and where it hashes them per page (AMD Zen),
//! in some permuted order. So tests work on whole octets, and the permutation does not matter.
//!
//! It also makes tests sharp. Timers with a step of 20 to 30 ticks hardly tell one L2 hit from one LLC hit, but a
//! chain of eight dependent loads averages the step out, and a line that something else has pushed out counts
//! for an eighth only.

use quell_core::memory::{LINES_PER_PAGE, PAGE_BYTES};
use quell_core::stats::quantile;
use quell_core::{Bytes, Line, Memory, Ticks};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::test::{Outcome, Rule, Tally};

/// Lines of a page whose offsets are equal modulo 512 bytes.
pub const OCTET: u32 = 8;
/// Distance between two of them, in lines.
const STRIDE: u32 = LINES_PER_PAGE / OCTET;

/// The eight lines of a page at offsets that leave `residue` (0 to 7, in lines) modulo 512 bytes.
#[must_use]
pub fn octet(page: u32, residue: u32) -> [Line; OCTET as usize] {
    std::array::from_fn(|place| Line::new(page, place as u32 * STRIDE + residue % STRIDE))
}

/// The octets of several pages, place by place: neighbors in the list lie on different pages, so that no
/// prefetcher sees a stride.
#[must_use]
pub fn octets(pages: &[u32], residue: u32) -> Vec<Line> {
    // An order of places without a constant difference.
    const PLACES: [u32; OCTET as usize] = [3, 0, 5, 6, 1, 4, 7, 2];
    let line = |place: u32| move |&page: &u32| Line::new(page, place * STRIDE + residue % STRIDE);
    PLACES.iter().flat_map(|&place| pages.iter().map(line(place))).collect()
}

/// Durations of a chain over one octet, in ticks: what tells whether the L2 holds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OctetTicks {
    /// All eight lines in the L2 (not in L1).
    pub l2: f64,
    /// All in the LLC.
    pub llc: f64,
    /// All in memory.
    pub memory: f64,
}

/// Octets timed per class, and rounds.
const CLASS_PAGES: u32 = 16;
const CLASS_ROUNDS: u32 = 8;
/// Quantile that stands for a class. Low, for whatever disturbs a chain makes it longer, and lines that left even
/// the LLC would move the limit between L2 and LLC up where no other octet reaches it.
const TYPICAL: f64 = 0.1;
/// Pages whose octets push the others out of the L2, as a multiple of its pages.
const SPILL_OF_L2: u32 = 3;
/// The LLC's chain must take this many times as long as the L2's, or the two levels cannot be told apart.
const LEAST_RATIO: f64 = 1.25;
/// A chain that takes this many times as long as one through memory was interrupted.
const INTERRUPTED: f64 = 3.0;
/// An octet counts as evicted from this share on: a few lines are lost to prefetches and other tenants of the core,
/// but nothing brings back lines that are lost.
const LIMIT: f64 = 0.65;
/// A score is cut off so far beyond 0 and 1.
const OVERSHOOT: f64 = 0.25;

impl OctetTicks {
    /// Measures the three durations for octets of `residue` on the first pages of `memory`, which needs more than
    /// three times the pages of an L2 of `l2` bytes.
    ///
    /// # Errors
    /// Why L2 and LLC cannot be told apart.
    pub fn measure(memory: &mut impl Memory, l2: Bytes, residue: u32, seed: u64) -> Result<Self, String> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let l2_pages = u32::try_from(l2.0 / u64::from(PAGE_BYTES)).unwrap_or(u32::MAX / 4);
        let pages = memory.pages().min(CLASS_PAGES + SPILL_OF_L2 * l2_pages);
        let mut pages: Vec<u32> = (0..pages).collect();
        pages.shuffle(&mut rng);
        let spill = octets(&pages.split_off(CLASS_PAGES.min(pages.len() as u32) as usize), residue);
        let targets = octets(&pages, residue);
        // Enough to push the targets out of L1, too little to push them out of the L2.
        let inner = &spill[..spill.len().min(PUSHERS * OCTET as usize)];
        let mut class = |place: Place| {
            let mut ticks = Vec::new();
            for _ in 0..CLASS_ROUNDS {
                memory.load(&targets);
                match place {
                    Place::L2 => memory.load(inner),
                    // As in a test: lines of the same residue, several times.
                    Place::Llc => (0..PASSES).for_each(|_| memory.load(&spill)),
                    Place::Memory => memory.flush(&targets),
                }
                for &page in &pages {
                    ticks.push(chain(memory, page, residue, &mut rng).0 as f64);
                }
            }
            quantile(&ticks, TYPICAL).unwrap_or(f64::NAN)
        };
        let ticks = Self { l2: class(Place::L2), llc: class(Place::Llc), memory: class(Place::Memory) };
        if ticks.llc >= ticks.l2 * LEAST_RATIO {
            Ok(ticks)
        } else {
            Err(format!(
                "eight chained loads take {:.0} ticks from the L2 and {:.0} after {SPILL_OF_L2} times its size was \
                 loaded; either that did not push them out, or the timer cannot tell",
                ticks.l2, ticks.llc
            ))
        }
    }

    /// How much of an octet was lost, about 0 to about 1, 0.5 being the limit; `None` if the chain was interrupted.
    #[must_use]
    pub fn score(&self, ticks: Ticks) -> Option<f64> {
        let ticks = ticks.0 as f64;
        let share = (ticks - self.l2) / (self.llc - self.l2);
        (ticks <= self.memory * INTERRUPTED).then(|| (share - LIMIT + 0.5).clamp(-OVERSHOOT, 1.0 + OVERSHOOT))
    }
}

#[derive(Clone, Copy)]
enum Place {
    L2,
    Llc,
    Memory,
}

/// Chains through the octet of a page in random order, its translation loaded before.
fn chain(memory: &mut impl Memory, page: u32, residue: u32, rng: &mut Xoshiro256PlusPlus) -> Ticks {
    let mut lines = octet(page, residue);
    lines.shuffle(rng);
    warm(memory, page, residue, rng);
    memory.chase(&lines)
}

/// Loads the page's translation through a line far from its octet.
fn warm(memory: &mut impl Memory, page: u32, residue: u32, rng: &mut Xoshiro256PlusPlus) {
    let slot = rng.random_range(0..OCTET) * STRIDE + (residue + STRIDE / 2) % STRIDE;
    memory.load(&[Line::new(page, slot)]);
}

/// How many random pages of `colors` colors may be tested at once without pushing one another out of an L2 of
/// `ways` ways: a quarter of its ways on average.
#[must_use]
pub fn batch(colors: u32, ways: u32) -> usize {
    ((colors * ways / 4) as usize).clamp(1, LARGEST_BATCH)
}

/// Tests which pages push one another out of the L2, on one residue of page offsets.
#[derive(Debug)]
pub struct PageTest {
    ticks: OctetTicks,
    /// Offset of the lines used, modulo 512 bytes, in lines.
    residue: u32,
    sequence: Vec<Line>,
    pushers: Vec<u32>,
    rng: Xoshiro256PlusPlus,
}

/// Passes over the evictors: one is not enough where the policy is not strictly least recently used (AMD Genoa),
/// four are no better than two.
const PASSES: u32 = 2;
/// More targets than this in one trial save nothing.
const LARGEST_BATCH: usize = 32;
/// A traversal whose loads take this share of the latency of memory each (overlapping loads take far less) …
const SLOWEST_LOAD: f64 = 0.25;
/// … and so much more altogether, in ms, was interrupted: somebody else used the caches meanwhile.
const PAUSE_MS: f64 = 0.02;

impl PageTest {
    /// A test on the lines of `residue`; `seed` draws orders.
    #[must_use]
    pub fn new(ticks: OctetTicks, residue: u32, seed: u64) -> Self {
        Self {
            ticks,
            residue: residue % STRIDE,
            sequence: Vec::new(),
            pushers: Vec::new(),
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
        }
    }

    /// Sets pages that push few evictors out of L1 where nothing else does. They must not be of the color that is
    /// tested; without any, a search takes pages at random.
    pub fn push_with(&mut self, pushers: &[u32]) {
        self.pushers = pushers.to_vec();
    }

    /// The residue it uses.
    #[must_use]
    pub fn residue(&self) -> u32 {
        self.residue
    }

    /// Random numbers for whoever drives the test.
    pub fn rng(&mut self) -> &mut Xoshiro256PlusPlus {
        &mut self.rng
    }

    /// Prepares traversals of the octets of `evictors`, each pass followed by those of `pushers`, which keep the
    /// evictors out of L1 so that every pass is seen by the L2.
    pub fn aim(&mut self, evictors: &[u32], pushers: &[u32]) {
        let lines = [octets(evictors, self.residue), octets(pushers, self.residue)].concat();
        self.sequence = lines.repeat(PASSES as usize);
    }

    /// Prepares traversals of any lines, each pass followed by the octets of `pushers`.
    pub fn aim_lines(&mut self, lines: &[Line], pushers: &[u32]) {
        self.sequence = [lines, &octets(pushers, self.residue)].concat().repeat(PASSES as usize);
    }

    /// One trial that tells which half of the target's octet is pushed out: about 1 if it is the four lines whose
    /// place has even parity under `mask` (1 to 7), about 0 if it is the other four, one half if both or none are.
    /// `None` if the trial was interrupted.
    pub fn half(&mut self, memory: &mut impl Memory, target: u32, mask: u32) -> Option<f64> {
        let lines = octet(target, self.residue);
        memory.load(&lines);
        let start = memory.now();
        memory.load(&self.sequence);
        let stretched = self.stretched(memory, start);
        let even = |place: u32| (place & mask).count_ones().is_multiple_of(2);
        let mut halves = [true, false].map(|wanted| -> Vec<Line> {
            (0..OCTET).filter(|&place| even(place) == wanted).map(|place| lines[place as usize]).collect()
        });
        let mut ticks = [Ticks(0); 2];
        let first = self.rng.random_range(0..2);
        for half in [first, 1 - first] {
            halves[half].shuffle(&mut self.rng);
            warm(memory, target, self.residue, &mut self.rng);
            ticks[half] = memory.chase(&halves[half]);
        }
        let longest = self.ticks.memory * INTERRUPTED;
        let valid = !stretched && ticks.iter().all(|t| (t.0 as f64) < longest);
        let difference = (ticks[0].0 as f64 - ticks[1].0 as f64) / (self.ticks.llc - self.ticks.l2);
        valid.then(|| (difference + 0.5).clamp(-OVERSHOOT, 1.0 + OVERSHOOT))
    }

    /// Whether a traversal that began at `start` was interrupted: somebody else used the caches meanwhile.
    fn stretched(&self, memory: &mut impl Memory, start: Ticks) -> bool {
        let elapsed = memory.now().since(start).0 as f64;
        let one_load = self.ticks.memory / f64::from(OCTET);
        elapsed > self.sequence.len() as f64 * one_load * SLOWEST_LOAD + PAUSE_MS * memory.ticks_per_ms()
    }

    /// One trial for all `targets` at once: loads their octets, traverses what [`Self::aim`] prepared, and times
    /// a chain through each octet. Adds to `tallies`, one a target. The targets must be so few that they do not
    /// push one another out, and not among the evictors.
    pub fn trial(&mut self, memory: &mut impl Memory, targets: &[u32], tallies: &mut [Tally]) {
        memory.load(&octets(targets, self.residue));
        let start = memory.now();
        memory.load(&self.sequence);
        let stretched = self.stretched(memory, start);
        let timed_from = memory.now();
        let chained: Vec<Ticks> =
            targets.iter().map(|&target| chain(memory, target, self.residue, &mut self.rng)).collect();
        // A pause while the octets were timed emptied the L2 for all that came later.
        let timed = memory.now().since(timed_from).0 as f64;
        let one_target = 2.0 * self.ticks.llc + self.ticks.memory / f64::from(OCTET / 2);
        let paused = timed > targets.len() as f64 * one_target + PAUSE_MS * memory.ticks_per_ms();
        for (&ticks, tally) in chained.iter().zip(tallies) {
            tally.add(if stretched || paused { None } else { self.ticks.score(ticks) });
        }
    }

    /// Whether `evictors` push out the octet of `target`.
    pub fn evicts(
        &mut self,
        memory: &mut impl Memory,
        target: u32,
        evictors: &[u32],
        pushers: &[u32],
        rule: Rule,
    ) -> Outcome {
        self.aim(evictors, pushers);
        let mut tally = [Tally::default()];
        loop {
            self.trial(memory, &[target], &mut tally);
            if let Some(outcome) = rule.decide(tally[0]) {
                return outcome;
            }
        }
    }

    /// Which of `targets` the `evictors` push out. No target may be among the evictors. Up to `batch` targets
    /// share one trial, drawn anew each time (see [`batch`]).
    pub fn sort(
        &mut self,
        memory: &mut impl Memory,
        targets: &[u32],
        evictors: &[u32],
        batch: usize,
        rule: Rule,
    ) -> Vec<(Outcome, Tally)> {
        let mut results = vec![(Outcome::Unsure, Tally::default()); targets.len()];
        let mut open: Vec<usize> = (0..targets.len()).collect();
        let mut pushers = if evictors.len() < FITS_L1 { self.pushers.clone() } else { Vec::new() };
        pushers.retain(|page| !targets.contains(page));
        self.aim(evictors, &pushers);
        while !open.is_empty() {
            open.shuffle(&mut self.rng);
            for batch in open.chunks(batch.max(1)) {
                let pages: Vec<u32> = batch.iter().map(|&i| targets[i]).collect();
                let mut tallies: Vec<Tally> = batch.iter().map(|&i| results[i].1).collect();
                self.trial(memory, &pages, &mut tallies);
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

    /// A group of `pool`'s pages that pushes `target` out, as small as the search can make it: as many pages as
    /// the L2 has ways, in most cases. The target must not be in the pool.
    ///
    /// The shortest evicting prefix of the pool ends with a page of the group; moved to the front, it makes the
    /// next prefix shorter (the binary search of Zhao et al., "Last-Level Cache Side-Channel Attacks Are
    /// Feasible in the Modern Public Cloud", ASPLOS 2024).
    ///
    /// # Errors
    /// [`SearchError`]; another try with other pages may succeed.
    pub fn find(
        &mut self,
        memory: &mut impl Memory,
        target: u32,
        pool: &[u32],
        ways: u32,
    ) -> Result<Vec<u32>, SearchError> {
        let mut pages = pool.to_vec();
        pages.shuffle(&mut self.rng);
        let ways = ways as usize;
        let (mut found, mut backtracks) = (0, 0);
        let mut upper = pages.len();
        if self.prefix(memory, target, &pages, upper) != Outcome::Evicts {
            return Err(SearchError::TooFewPages(pages.len()));
        }
        loop {
            let end = self.shortest(memory, target, &pages, found, upper);
            if end == upper && self.prefix(memory, target, &pages, upper) != Outcome::Evicts {
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
            if found + 1 >= ways && self.prefix(memory, target, &pages, found) == Outcome::Evicts {
                // Too early: perhaps a pusher belongs to the group. If so, it is a candidate.
                if found < ways && self.pushers.is_empty() && pages.len() >= found + 2 * PUSHERS {
                    pages[found..].rotate_right(PUSHERS);
                    if self.prefix(memory, target, &pages, found) != Outcome::Evicts {
                        upper = found + PUSHERS;
                        continue;
                    }
                }
                self.prune(memory, target, &mut pages, found, ways);
                return Ok(pages);
            }
            if found >= ways + SLACK {
                return Err(SearchError::TooManyWays(found));
            }
        }
    }

    /// Cuts `pages` to the first `found`, and drops those that are not needed while there are more than `ways`:
    /// a wrong answer on the way leaves such.
    fn prune(
        &mut self,
        memory: &mut impl Memory,
        target: u32,
        pages: &mut Vec<u32>,
        found: usize,
        ways: usize,
    ) {
        let mut length = found;
        for place in (0..found).rev() {
            if length <= ways {
                break;
            }
            pages.swap(place, length - 1);
            if self.prefix(memory, target, pages, length - 1) == Outcome::Evicts {
                length -= 1;
            } else {
                pages.swap(place, length - 1);
            }
        }
        pages.truncate(length);
    }

    /// The length of the shortest prefix of `pages` that evicts, above `lo` and at most `hi`.
    fn shortest(
        &mut self,
        memory: &mut impl Memory,
        target: u32,
        pages: &[u32],
        lo: usize,
        hi: usize,
    ) -> usize {
        let (mut lo, mut hi) = (lo, hi);
        while hi - lo > 1 {
            let middle = lo.midpoint(hi);
            if self.prefix(memory, target, pages, middle) == Outcome::Evicts {
                hi = middle;
            } else {
                lo = middle;
            }
        }
        hi
    }

    /// Whether the first `length` of `pages` evict `target`. Few of them need pushers: those set, or the last of the
    /// rest, which may belong to the group by chance.
    fn prefix(&mut self, memory: &mut impl Memory, target: u32, pages: &[u32], length: usize) -> Outcome {
        let (evictors, rest) = pages.split_at(length);
        let pushers = match length {
            FITS_L1.. => Vec::new(),
            _ if self.pushers.is_empty() => rest[rest.len().saturating_sub(PUSHERS)..].to_vec(),
            _ => self.pushers.clone(),
        };
        self.evicts(memory, target, evictors, &pushers, Rule::CAREFUL)
    }
}

/// With fewer evictors than this, all might stay in L1, and pushers are needed.
const FITS_L1: usize = 16;
/// Pages of pushers that suffice.
pub const PUSHERS: usize = 8;
/// How far beyond the associativity a search may go before it counts as failed.
const SLACK: usize = 4;
/// How often a search may widen its range again after a wrong answer.
const BACKTRACKS: u32 = 8;

/// Why a search found no group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SearchError {
    /// All pages together do not evict the target.
    #[error("{0} pages together do not push another out of the L2; more pages are needed")]
    TooFewPages(usize),
    /// The answers contradict one another.
    #[error("the search got contradicting answers; something else disturbs this core's L2")]
    Contradiction,
    /// The pages found do not evict the target by themselves.
    #[error(
        "{0} pages were found for one L2 set, which is more than it has ways; something else disturbs this core's L2"
    )]
    TooManyWays(usize),
}

#[cfg(test)]
mod tests {
    use quell_cachesim::{Config, Sim, SimMemory};

    use super::*;

    const PAGES: u32 = 1600;

    fn test_on(memory: &mut SimMemory, l2: Bytes, seed: u64) -> PageTest {
        let residue = seed as u32;
        PageTest::new(OctetTicks::measure(memory, l2, residue, seed).unwrap(), residue, seed)
    }

    /// On both machines: the pages found are of the target's color, as many as the L2 has ways, and they sort
    /// all other pages without an error.
    #[test]
    fn groups_are_of_one_color_and_sort_the_rest() {
        for (config, l2, ways) in
            [(Config::milan(), Bytes::kib(512), 8), (Config::skylake_sp(), Bytes::mib(1), 16)]
        {
            for seed in 0..4 {
                let mut sim = Sim::new(config.clone(), seed).unwrap();
                let mut memory = sim.memory(PAGES).unwrap();
                let mut test = test_on(&mut memory, l2, seed);
                let pool: Vec<u32> = (1..600).collect();
                let group = test.find(&mut memory, 0, &pool, ways).unwrap();
                let color = memory.color(0);
                let right = group.iter().filter(|&&page| memory.color(page) == color).count();
                assert!(right + 1 >= group.len() && right + 1 >= ways as usize, "{right} of {group:?}");
                // The minimal group is weak, the pages it finds are strong together.
                let rest: Vec<u32> = (0..PAGES).filter(|page| !group.contains(page)).collect();
                let sorted = test.sort(&mut memory, &rest, &group, 16, Rule::QUICK);
                let evicted = |(page, (outcome, _)): (&u32, &(Outcome, Tally))| {
                    (*outcome == Outcome::Evicts).then_some(*page)
                };
                let family: Vec<u32> =
                    rest.iter().zip(&sorted).filter_map(evicted).take(2 * ways as usize).collect();
                assert_eq!(family.len(), 2 * ways as usize);
                let rest: Vec<u32> = (0..PAGES).filter(|page| !family.contains(page)).collect();
                let sorted = test.sort(&mut memory, &rest, &family, 16, Rule::QUICK);
                for (&page, (outcome, _)) in rest.iter().zip(sorted) {
                    let truth = if memory.color(page) == color { Outcome::Evicts } else { Outcome::Spares };
                    assert_eq!(outcome, truth, "page {page}, seed {seed}");
                }
            }
        }
    }

    #[test]
    fn a_pool_that_is_too_small_is_reported() {
        let mut sim = Sim::new(Config::milan(), 1).unwrap();
        let mut memory = sim.memory(PAGES).unwrap();
        let mut test = test_on(&mut memory, Bytes::kib(512), 1);
        assert_eq!(test.find(&mut memory, 0, &[1, 2, 3], 8), Err(SearchError::TooFewPages(3)));
    }

    #[test]
    fn octets_are_distinct_lines_of_the_residue() {
        let mut lines = octets(&[4, 9], 11);
        lines.sort();
        lines.dedup();
        assert_eq!(lines.len(), 16);
        assert!(lines.iter().all(|line| line.slot() % 8 == 3 && [4, 9].contains(&line.page())));
    }
}
