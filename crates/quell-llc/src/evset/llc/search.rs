//! From candidates to a minimal eviction set: binary search, and group testing as the baseline.

use quell_core::{Line, Memory, Ticks};

use super::test::LlcTest;
use crate::evset::test::{Outcome, Rule};

/// How often a search may take a step back after a wrong answer.
const BACKTRACKS: u32 = 20;
/// So many lines more than the LLC has ways, and the search has gone astray.
const SLACK: usize = 3;

/// How candidates are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The shortest evicting prefix ends with a line of the set; moved to the front, it shortens the next one
    /// (Zhao et al., "Last-Level Cache Side-Channel Attacks Are Feasible in the Modern Public Cloud", ASPLOS 2024).
    BinarySearch,
    /// One of more groups than the set has lines can always be left out (Vila, Köpf, Morales, "Theory and practice
    /// of finding eviction sets", S&P 2019). Stops at the first such group in each round.
    GroupTesting,
}

/// What is known of the size of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ways {
    /// Nothing was found yet; the LLC is said to have so many.
    Advertised(usize),
    /// Sets found so far have this many lines.
    Found(usize),
}

impl Ways {
    /// The number, certain or not.
    #[must_use]
    pub fn number(self) -> usize {
        match self {
            Self::Advertised(ways) | Self::Found(ways) => ways,
        }
    }
}

/// Why a search found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum SearchFailure {
    /// All candidates together do not evict the target.
    #[error("all candidates together do not evict the target")]
    NoEviction,
    /// The answers contradict one another.
    #[error("the tests contradict one another")]
    Contradiction,
    /// More lines than the LLC has ways seem to be needed.
    #[error("more lines than the cache has ways seem to be needed")]
    TooLarge,
    /// The time was over.
    #[error("the search took too long")]
    Timeout,
}

/// One search.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// How candidates are reduced.
    pub method: Method,
    /// Size of the set.
    pub ways: Ways,
    /// Length of the first prefix to try: about as many candidates as are needed.
    pub first: usize,
    /// When to give up.
    pub deadline: Ticks,
}

impl Search {
    /// Moves an eviction set of `target` to the front of `candidates` and returns its size. The candidates that
    /// are likeliest to belong to it come first.
    ///
    /// # Errors
    /// [`SearchFailure`].
    pub fn run(
        self,
        memory: &mut impl Memory,
        test: &mut LlcTest,
        target: Line,
        candidates: &mut [Line],
    ) -> Result<usize, SearchFailure> {
        memory.flush(candidates);
        let upper = self.evicting_prefix(memory, test, target, candidates)?;
        match self.method {
            Method::BinarySearch => self.binary_search(memory, test, target, candidates, upper),
            Method::GroupTesting => self.group_testing(memory, test, target, &mut candidates[..upper]),
        }
    }

    fn in_time(self, memory: &mut impl Memory) -> Result<(), SearchFailure> {
        if memory.now() < self.deadline { Ok(()) } else { Err(SearchFailure::Timeout) }
    }

    /// Twice as many candidates each time, until they evict the target.
    fn evicting_prefix(
        self,
        memory: &mut impl Memory,
        test: &mut LlcTest,
        target: Line,
        candidates: &[Line],
    ) -> Result<usize, SearchFailure> {
        let mut length = self.first.min(candidates.len());
        loop {
            if test.step(memory, target, &candidates[..length]) == Outcome::Evicts {
                return Ok(length);
            }
            if length == candidates.len() {
                return Err(SearchFailure::NoEviction);
            }
            self.in_time(memory)?;
            length = (2 * length).min(candidates.len());
        }
    }

    fn binary_search(
        self,
        memory: &mut impl Memory,
        test: &mut LlcTest,
        target: Line,
        candidates: &mut [Line],
        mut upper: usize,
    ) -> Result<usize, SearchFailure> {
        let ways = self.ways.number();
        let (mut found, mut backtracks) = (0, 0);
        // Candidates behind this were not loaded since they were last flushed.
        let mut loaded = upper;
        loop {
            self.in_time(memory)?;
            if let Ways::Found(ways) = self.ways
                && upper <= ways.max(found)
            {
                return Ok(upper); // all that is left is needed
            }
            let mut hi = upper;
            let mut lo = found;
            while hi - lo > 1 {
                let middle = likely_end(found, lo, hi, ways.saturating_sub(found).max(1));
                if test.prefix(memory, target, &candidates[..loaded.max(middle)], middle) == Outcome::Evicts {
                    hi = middle;
                } else {
                    lo = middle;
                }
                loaded = middle;
            }
            // Nothing shorter evicts: perhaps because even this does not, after a wrong answer before.
            let last = std::mem::replace(&mut loaded, hi);
            if hi == upper && test.prefix(memory, target, &candidates[..last.max(hi)], hi) != Outcome::Evicts
            {
                backtracks += 1;
                if backtracks > BACKTRACKS {
                    return Err(SearchFailure::Contradiction);
                }
                if upper == candidates.len() && backtracks > BACKTRACKS / 2 {
                    return Err(SearchFailure::NoEviction);
                }
                upper = (upper + upper / 2 + 1).min(candidates.len());
                continue;
            }
            candidates[found..hi].rotate_right(1);
            found += 1;
            upper = hi;
            let due = match self.ways {
                Ways::Found(ways) => found >= ways,
                Ways::Advertised(_) => true,
            };
            if due {
                memory.flush(&candidates[found..loaded.max(found)]);
                loaded = found;
                if test.evicts(memory, target, &candidates[..found], Rule::QUICK) == Outcome::Evicts {
                    // Wrong answers on the way leave lines that are not needed.
                    let sure = self.ways == Ways::Found(found);
                    return Ok(if sure { found } else { prune(memory, test, target, candidates, found) });
                }
            }
            if found > ways + SLACK {
                return Err(SearchFailure::TooLarge);
            }
        }
    }

    fn group_testing(
        self,
        memory: &mut impl Memory,
        test: &mut LlcTest,
        target: Line,
        candidates: &mut [Line],
    ) -> Result<usize, SearchFailure> {
        let ways = self.ways.number();
        // The lines still in the game come first; those taken out last stand right behind them.
        let mut length = candidates.len();
        let mut removed: Vec<usize> = Vec::new();
        let mut backtracks = 0;
        while length > ways {
            self.in_time(memory)?;
            let groups = (ways + 1).min(length);
            let out = (0..groups).find_map(|group| {
                let (start, end) = (group * length / groups, (group + 1) * length / groups);
                candidates[start..length].rotate_left(end - start);
                let rest = length - (end - start);
                if test.prefix(memory, target, &candidates[..length], rest) == Outcome::Evicts {
                    return Some(end - start);
                }
                candidates[start..length].rotate_right(end - start);
                None
            });
            match out {
                Some(out) => {
                    length -= out;
                    removed.push(out);
                }
                None => {
                    backtracks += 1;
                    let Some(last) = removed.pop().filter(|_| backtracks <= BACKTRACKS) else {
                        return Err(SearchFailure::Contradiction);
                    };
                    length += last;
                    // Other groups than before.
                    let half = length / 2;
                    for i in 0..half {
                        candidates.swap(i, (i * 7919 + backtracks as usize * 31) % length);
                    }
                }
            }
        }
        Ok(length)
    }
}

/// Where the last of `needed` lines lies that are spread evenly from `start` on, given that it lies above `lo` and
/// at most at `hi`: the median.
fn likely_end(start: usize, lo: usize, hi: usize, needed: usize) -> usize {
    let power = needed.min(32) as f64;
    let place = |end: usize| ((end - start) as f64 / (hi - start) as f64).powf(power);
    let middle = (place(lo).midpoint(1.0)).powf(1.0 / power) * (hi - start) as f64;
    (start + middle.round() as usize).clamp(lo + 1, hi - 1)
}

/// Drops lines that are not needed, tested one by one, from the first `size` of `lines`; returns how many are left.
pub fn prune(
    memory: &mut impl Memory,
    test: &mut LlcTest,
    target: Line,
    lines: &mut [Line],
    size: usize,
) -> usize {
    let mut left = size;
    for place in (0..size).rev() {
        lines.swap(place, left - 1);
        if test.evicts(memory, target, &lines[..left - 1], Rule::CAREFUL) == Outcome::Evicts {
            left -= 1;
        } else {
            lines.swap(place, left - 1);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_likely_end_splits_the_range(start in 0_usize..20, a in 0_usize..500, b in 2_usize..500, needed in 1_usize..40) {
            let (lo, hi) = (start + a, start + a + b);
            let middle = likely_end(start, lo, hi, needed);
            prop_assert!(lo < middle && middle < hi);
        }
    }

    #[test]
    fn many_needed_lines_end_late() {
        assert_eq!(likely_end(0, 0, 100, 1), 50);
        assert!(likely_end(0, 0, 100, 10) > 90);
    }
}
