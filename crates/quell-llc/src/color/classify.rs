//! Sorting a pool of pages by color.
//!
//! 1. A group of pages that evicts a random unlabelled page is searched, as small as possible. The pages which that
//!    group evicts are a new color, if they evict one another; failed tries are repeated with other pages.
//! 2. When all expected colors are found or no try succeeds any more, every page is tested against every color.
//!    A page belongs to the one color that evicts it; one that several colors or none evict, or whose tests stay
//!    unsure, has no color.

use quell_core::memory::PAGE_BYTES;
use quell_core::{Bytes, Memory, Ticks};
use rand::SeedableRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::evset::l2::{OCTET, OctetTicks, PUSHERS, PageTest, SearchError, batch};
use crate::evset::test::{Outcome, Rule};

/// Size and associativity of the private L2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L2 {
    /// Size.
    pub size: Bytes,
    /// Ways.
    pub ways: u32,
}

impl L2 {
    /// Page colors it should have: what one way holds, in pages.
    #[must_use]
    pub fn expected_colors(self) -> u32 {
        let way = self.size.0 / u64::from(PAGE_BYTES) / u64::from(self.ways.max(1));
        u32::try_from(way).unwrap_or(u32::MAX).max(1)
    }

    /// Pages below which a pool cannot be sorted: every color needs enough to push others out, with some to
    /// spare for chance.
    #[must_use]
    pub fn least_pages(self) -> u32 {
        self.expected_colors().saturating_mul(self.ways).saturating_mul(3)
    }
}

/// Pages to classify: `count` pages of the arena from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// First page.
    pub first: u32,
    /// Number of pages.
    pub count: u32,
}

/// Why a pool has no colors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClassifyError {
    /// Too few pages.
    #[error("{given} pages are too few to sort by color on this CPU; take at least {least}")]
    TooFewPages {
        /// Pages in the pool.
        given: u32,
        /// Pages needed.
        least: u32,
    },
    /// L2 hits look like LLC hits.
    #[error("cannot tell the L2 from the LLC: {0}")]
    Levels(String),
    /// Not a single color was found.
    #[error(
        "no group of pages pushes another out of the L2 reliably, in {tries} tries; the last one: {last}"
    )]
    NoGroup {
        /// Tries.
        tries: u32,
        /// Why the last failed.
        last: String,
    },
    /// Groups were found, but they do not sort the pool.
    #[error(
        "pages do not fall into classes here: of {pages} pages {unknown} are evicted by no class or by several, \
         among {colors} classes found"
    )]
    NoClasses {
        /// Pages in the pool.
        pages: u32,
        /// Pages without a color.
        unknown: u32,
        /// Classes found.
        colors: usize,
    },
}

/// Pages of one color that together push any other page of that color out of the L2: two sets without a common
/// page, so that the pages of either can be tested with the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evictors(pub [Vec<u32>; 2]);

impl Evictors {
    /// The set that `page` is not in.
    #[must_use]
    pub fn without(&self, page: u32) -> &[u32] {
        &self.0[usize::from(self.0[0].contains(&page))]
    }
}

/// What sorting took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Effort {
    /// Searches for a color.
    pub tries: u32,
    /// Those that failed or were not confirmed.
    pub failed: u32,
    /// Colors found a second time and merged with the first.
    pub merged: u32,
    /// Duration in ms.
    pub ms: f64,
}

/// A pool sorted by color.
#[derive(Clone, Debug)]
pub struct Classification {
    /// The L2 that gave the colors.
    pub l2: L2,
    /// What was sorted.
    pub pool: Pool,
    /// The color of each page of the pool, in order; `None` if unknown.
    pub labels: Vec<Option<u32>>,
    /// For each color, the pages that evict the others.
    pub evictors: Vec<Evictors>,
    /// Latencies that the tests went by.
    pub ticks: OctetTicks,
    /// Offset of the lines used, modulo 512 bytes, in lines.
    pub residue: u32,
    /// What it took.
    pub effort: Effort,
}

impl Classification {
    /// Number of colors.
    #[must_use]
    pub fn colors(&self) -> usize {
        self.evictors.len()
    }

    /// The color of a page of the arena; `None` if unknown or outside of the pool.
    #[must_use]
    pub fn color(&self, page: u32) -> Option<u32> {
        let place = page.checked_sub(self.pool.first)?;
        self.labels.get(place as usize).copied().flatten()
    }

    /// The pages of a color, ascending.
    pub fn pages_of(&self, color: u32) -> impl Iterator<Item = u32> + '_ {
        let labelled = self.labels.iter().zip(self.pool.first..);
        labelled.filter_map(move |(&label, page)| (label == Some(color)).then_some(page))
    }

    /// Pages of each color.
    #[must_use]
    pub fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.colors()];
        for &label in self.labels.iter().flatten() {
            counts[label as usize] += 1;
        }
        counts
    }

    /// Tests some pages of each color again: the share that their color's evictors still evict, 0 to 1. The host may
    /// have moved pages; then the evictors' own moves count as well, so a few moves lower the share by more.
    pub fn still_right(&self, memory: &mut impl Memory, pages_per_color: usize, seed: u64) -> Option<f64> {
        let mut test = PageTest::new(self.ticks, self.residue, seed);
        let batch = batch(self.colors() as u32, self.l2.ways);
        let (mut right, mut tested) = (0, 0);
        for (color, Evictors([evictors, _])) in (0..).zip(&self.evictors) {
            let others: Vec<u32> = self.pages_of(color).filter(|page| !evictors.contains(page)).collect();
            let sample: Vec<u32> = others.sample(test.rng(), pages_per_color).copied().collect();
            let sorted =
                test.sort(memory, &sample, evictors, batch.min(self.l2.ways as usize / 2), Rule::QUICK);
            right += sorted.iter().filter(|(outcome, _)| *outcome == Outcome::Evicts).count();
            tested += sample.len();
        }
        (tested > 0).then(|| right as f64 / tested as f64)
    }

    /// Pages without a color.
    #[must_use]
    pub fn unknown(&self) -> usize {
        self.labels.iter().filter(|label| label.is_none()).count()
    }
}

/// Pages per way that one search for a color starts from, per color still to be found.
const POOL_WAYS: u32 = 2;
/// Pages of an evictor set, in ways of the L2: enough to thrash L1, so that every pass reaches the L2, and to
/// evict where the policy is not strictly least recently used.
const EVICTOR_WAYS: usize = 2;
/// Of the pages that a minimal group evicts, this share must be confirmed by the pages themselves.
const CONFIRMED: f64 = 0.8;
/// Searches that may fail in a row before no more are tried.
const FAILURES_IN_A_ROW: u32 = 12;
/// After a failure there is a pause, twice as long after each and at most so many ms.
const LONGEST_PAUSE_MS: f64 = 100.0;
/// Searches altogether, per expected color.
const TRIES_PER_COLOR: u32 = 4;
/// A color is taken for one already known if that one's evictors evict this share of its pages.
const SAME_COLOR: f64 = 0.5;
/// Pages of a color that are tested for that.
const SAMPLE: usize = 8;
/// Latencies are measured so often before they count as inseparable: a burst of somebody else passes.
const MEASUREMENTS: u64 = 3;
/// More than this share of the pool without a color, and there are no classes.
const MOST_UNKNOWN: f64 = 0.5;

/// Sorts the pages of `pool` by color. The arena must hold more than three times the L2. `seed` draws
/// page offsets, targets and orders.
///
/// # Errors
/// [`ClassifyError`]: why there are no usable classes.
pub fn classify(
    memory: &mut impl Memory,
    l2: L2,
    pool: Pool,
    seed: u64,
) -> Result<Classification, ClassifyError> {
    if pool.count < l2.least_pages() {
        return Err(ClassifyError::TooFewPages { given: pool.count, least: l2.least_pages() });
    }
    let start = memory.now();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let residue = (seed % u64::from(OCTET)) as u32;
    let ticks = measure(memory, l2, residue, seed).map_err(ClassifyError::Levels)?;
    let mut sorter = Sorter {
        l2,
        test: PageTest::new(ticks, residue, seed ^ 0x5eed),
        open: (pool.first..pool.first + pool.count).collect(),
        evictors: Vec::new(),
        effort: Effort::default(),
        last_failure: String::new(),
    };
    sorter.search(memory, &mut rng);
    if sorter.evictors.is_empty() {
        return Err(ClassifyError::NoGroup { tries: sorter.effort.tries, last: sorter.last_failure });
    }
    let labels = sorter.label(memory, pool);
    let Sorter { evictors, mut effort, .. } = sorter;
    effort.ms = memory.now().since(start).0 as f64 / memory.ticks_per_ms();
    let sorted = Classification { l2, pool, labels, evictors, ticks, residue, effort };
    let unknown = sorted.unknown();
    if unknown as f64 > MOST_UNKNOWN * f64::from(pool.count) {
        let (pages, unknown, colors) = (pool.count, unknown as u32, sorted.colors());
        return Err(ClassifyError::NoClasses { pages, unknown, colors });
    }
    Ok(sorted)
}

fn measure(memory: &mut impl Memory, l2: L2, residue: u32, seed: u64) -> Result<OctetTicks, String> {
    let mut outcome = OctetTicks::measure(memory, l2.size, residue, seed);
    for again in 1..MEASUREMENTS {
        if outcome.is_ok() {
            break;
        }
        outcome = OctetTicks::measure(memory, l2.size, residue, seed.wrapping_add(again));
    }
    outcome
}

struct Sorter {
    l2: L2,
    test: PageTest,
    /// Pages that no color found so far evicts.
    open: Vec<u32>,
    evictors: Vec<Evictors>,
    effort: Effort,
    last_failure: String,
}

impl Sorter {
    /// Finds colors until all pages that could form another one are labelled, or tries fail in a row.
    fn search(&mut self, memory: &mut impl Memory, rng: &mut Xoshiro256PlusPlus) {
        let expected = self.l2.expected_colors();
        let evictor_pages = EVICTOR_WAYS * self.l2.ways as usize;
        let mut failures = 0;
        while failures < FAILURES_IN_A_ROW
            && self.effort.tries < expected * TRIES_PER_COLOR
            && self.open.len() > 2 * evictor_pages
        {
            self.effort.tries += 1;
            match self.find_color(memory, rng) {
                Ok(()) => failures = 0,
                Err(reason) => {
                    self.effort.failed += 1;
                    failures += 1;
                    self.last_failure = reason;
                    // Whatever disturbs this core's L2 may pass.
                    let pause_ms = f64::from(1 << failures).min(LONGEST_PAUSE_MS);
                    let until = memory.now() + Ticks((pause_ms * memory.ticks_per_ms()) as u64);
                    memory.sleep_until(until);
                }
            }
        }
    }

    /// One try: a minimal group, the pages that it evicts, and whether these evict one another.
    fn find_color(&mut self, memory: &mut impl Memory, rng: &mut Xoshiro256PlusPlus) -> Result<(), String> {
        let missing = self.l2.expected_colors().saturating_sub(self.evictors.len() as u32).max(2);
        self.open.shuffle(rng);
        let (&target, rest) = self.open.split_first().ok_or("no page is left")?;
        let size = (POOL_WAYS * self.l2.ways + 4) * missing;
        let candidates = &rest[..(size as usize).min(rest.len())];
        let group = self
            .test
            .find(memory, target, candidates, self.l2.ways)
            .map_err(|error: SearchError| error.to_string())?;
        let others: Vec<u32> = self.open.iter().copied().filter(|page| !group.contains(page)).collect();
        let family = self.evicted(memory, &others, &group);
        let [first, second] = self.two_sets(&family, rng)?;
        let others: Vec<u32> = self.open.iter().copied().filter(|page| !first.contains(page)).collect();
        let members = self.evicted(memory, &others, &first);
        let confirmed = second.iter().filter(|page| members.contains(page)).count();
        if (confirmed as f64) < CONFIRMED * second.len() as f64 {
            return Err(format!(
                "of {} pages that one group evicts, {confirmed} evict one another",
                second.len()
            ));
        }
        // From now on only pages that were confirmed: the first set by the second, the second by the first.
        let second: Vec<u32> = second.into_iter().filter(|page| members.contains(page)).collect();
        let first = self.evicted(memory, &first, &second);
        if first.len() < self.l2.ways as usize + 1 {
            return Err("the pages that one group evicts do not evict it".into());
        }
        self.take(memory, [first, second], &members);
        Ok(())
    }

    /// Two evictor sets without a common page out of `family`.
    fn two_sets(&self, family: &[u32], rng: &mut Xoshiro256PlusPlus) -> Result<[Vec<u32>; 2], String> {
        let size = (EVICTOR_WAYS * self.l2.ways as usize).min(family.len() / 2);
        if size < self.l2.ways as usize + 2 {
            return Err(format!("a group evicts only {} pages", family.len()));
        }
        let mut drawn: Vec<u32> = family.sample(rng, 2 * size).copied().collect();
        let second = drawn.split_off(size);
        Ok([drawn, second])
    }

    /// Adds a color, unless its pages belong to one that is known, and takes its pages out of the open ones.
    fn take(&mut self, memory: &mut impl Memory, sets: [Vec<u32>; 2], members: &[u32]) {
        let known = (0..self.evictors.len()).find(|&color| {
            let sample = &sets[0][..SAMPLE.min(sets[0].len())];
            let evictors = self.evictors[color].0[0].clone();
            self.evicted(memory, sample, &evictors).len() as f64 > SAME_COLOR * sample.len() as f64
        });
        let taken = |page: &u32| members.contains(page) || sets.iter().any(|set| set.contains(page));
        self.open.retain(|page| !taken(page));
        if known.is_some() {
            self.effort.merged += 1;
        } else {
            self.evictors.push(Evictors(sets));
            self.test.push_with(&self.evictors[0].0[0][..PUSHERS.min(self.evictors[0].0[0].len())]);
        }
    }

    /// Which of `pages`, all of colors still to be found or all of one color, are evicted.
    fn evicted(&mut self, memory: &mut impl Memory, pages: &[u32], evictors: &[u32]) -> Vec<u32> {
        let missing = self.l2.expected_colors().saturating_sub(self.evictors.len() as u32);
        let batch = batch(missing.max(1), self.l2.ways);
        let sorted = self.test.sort(memory, pages, evictors, batch, Rule::QUICK);
        pages
            .iter()
            .zip(sorted)
            .filter(|(_, (outcome, _))| *outcome == Outcome::Evicts)
            .map(|(&p, _)| p)
            .collect()
    }

    /// Tests every page against every color.
    fn label(&mut self, memory: &mut impl Memory, pool: Pool) -> Vec<Option<u32>> {
        let pages: Vec<u32> = (pool.first..pool.first + pool.count).collect();
        let mut answers = vec![Answers::default(); pages.len()];
        let batch = batch(self.evictors.len() as u32, self.l2.ways);
        for color in 0..self.evictors.len() {
            let Evictors([first, second]) = self.evictors[color].clone();
            for (evictors, of_first) in [(&first, false), (&second, true)] {
                let targets: Vec<u32> =
                    pages.iter().copied().filter(|page| first.contains(page) == of_first).collect();
                let sorted = self.test.sort(memory, &targets, evictors, batch, Rule::QUICK);
                for (page, (outcome, _)) in targets.into_iter().zip(sorted) {
                    answers[(page - pool.first) as usize].add(color as u32, outcome);
                }
            }
        }
        for (page, answer) in pages.iter().zip(&mut answers) {
            if !answer.unsure.is_empty() || answer.colors.len() > 1 {
                *answer = self.reconsider(memory, *page, answer);
            }
        }
        answers.iter().map(Answers::unique).collect()
    }

    /// Tests a doubtful page once more, alone and carefully, against all colors that may be its own.
    fn reconsider(&mut self, memory: &mut impl Memory, page: u32, answers: &Answers) -> Answers {
        let mut again = Answers::default();
        for &color in answers.colors.iter().chain(&answers.unsure) {
            let evictors = self.evictors[color as usize].without(page).to_vec();
            again.add(color, self.test.evicts(memory, page, &evictors, &[], Rule::CAREFUL));
        }
        again
    }
}

/// What the colors' tests said of one page.
#[derive(Clone, Debug, Default)]
struct Answers {
    colors: Vec<u32>,
    unsure: Vec<u32>,
}

impl Answers {
    fn add(&mut self, color: u32, outcome: Outcome) {
        match outcome {
            Outcome::Evicts => self.colors.push(color),
            Outcome::Unsure => self.unsure.push(color),
            Outcome::Spares => {}
        }
    }

    fn unique(&self) -> Option<u32> {
        match (&self.colors[..], &self.unsure[..]) {
            (&[color], []) => Some(color),
            _ => None,
        }
    }
}
