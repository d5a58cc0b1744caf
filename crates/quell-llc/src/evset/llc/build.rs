//! The whole construction: sets for every color and page offset, all vCPUs in parallel.
//!
//! 1. At one page offset, a few sets per color are searched among the color's pages, and for each the pages whose
//!    line it evicts are listed: a *class*, pages that share an LLC set there.
//! 2. At every other offset, the lines of a class are the first candidates. Where the slice is a linear hash of
//!    the address, they share a set again and the first try succeeds; elsewhere many of them do. Each set is
//!    verified at its own offset.
//! 3. What is missing is tried again, from all pages of the color.

use std::collections::BTreeMap;

use quell_core::memory::LINES_PER_PAGE;
use quell_core::{Crew, Line, Memory, Ticks};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::search::{Method, SearchFailure, Ways};
use super::test::LlcTest;
use super::verify::Unverified;
use super::worker::Worker;

/// A minimal eviction set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionSet {
    /// Color of its pages.
    pub color: u32,
    /// Page offset, in lines.
    pub slot: u32,
    /// A line that it evicts, and no part of it.
    pub target: Line,
    /// As many lines as the LLC has ways, all in the target's set.
    pub lines: Vec<Line>,
}

/// What to build.
#[derive(Clone, Debug, PartialEq)]
pub struct BuildSettings {
    /// Sets per color and page offset.
    pub per_color: usize,
    /// Page offsets, in lines.
    pub slots: Vec<u32>,
    /// Ways that the LLC is said to have.
    pub advertised_ways: usize,
    /// How candidates are reduced.
    pub method: Method,
    /// Whether what was learnt at one page offset is used at the others.
    pub carry: bool,
    /// Time for one search, in ms.
    pub search_ms: f64,
    /// Time for everything, in ms; what is missing then stays missing.
    pub total_ms: f64,
    /// Draws targets and orders.
    pub seed: u64,
}

impl BuildSettings {
    /// Four sets for every color and page offset.
    #[must_use]
    pub fn new(advertised_ways: usize, seed: u64) -> Self {
        Self {
            per_color: 4,
            slots: (0..LINES_PER_PAGE).collect(),
            advertised_ways,
            method: Method::BinarySearch,
            carry: true,
            search_ms: 1000.0,
            total_ms: 60_000.0,
            seed,
        }
    }

    /// Sets wanted for `colors` colors.
    #[must_use]
    pub fn wanted(&self, colors: usize) -> usize {
        colors * self.slots.len() * self.per_color
    }
}

/// Why a set is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Failure {
    /// No set was found.
    #[error(transparent)]
    Search(#[from] SearchFailure),
    /// A set was found and did not pass.
    #[error(transparent)]
    Unverified(#[from] Unverified),
    /// Its size is not that of the others.
    #[error("the set has another size than the others")]
    Size,
    /// There is no page left to be its target.
    #[error("every page of the color is evicted by the sets already found")]
    NoTarget,
}

/// How often each failure occurred.
pub type Failures = BTreeMap<Failure, u32>;

/// What was built.
#[derive(Clone, Debug, Default)]
pub struct Built {
    /// The verified sets.
    pub sets: Vec<EvictionSet>,
    /// Sets that were wanted.
    pub wanted: usize,
    /// Lines of a set; `None` if none was found, or their sizes disagree.
    pub ways: Option<usize>,
    /// How many sets of which size were found at the first page offset, where the size was not known yet.
    pub sizes: BTreeMap<usize, u32>,
    /// LLC sets among which the lines of one color at one page offset seem to be distributed: the color's pages
    /// divided by the mean size of a class.
    pub sets_per_color: Option<f64>,
    /// Failed tries, those made good later included.
    pub failures: Failures,
    /// Lines loaded.
    pub accesses: u64,
    /// Trials thrown away: interrupted or migrated.
    pub void: u64,
    /// Duration, in ms.
    pub ms: f64,
}

impl Built {
    /// Valid sets over wanted ones, in percent.
    #[must_use]
    pub fn coverage_pct(&self) -> f64 {
        if self.wanted == 0 { 0.0 } else { self.sets.len() as f64 / self.wanted as f64 * 100.0 }
    }
}

/// Classes of one color: pages that share an LLC set at one page offset.
type Classes = Vec<Vec<u32>>;

/// What a job brings.
#[derive(Default)]
pub(super) struct Harvest {
    pub(super) sets: Vec<EvictionSet>,
    pub(super) classes: Classes,
    pub(super) failures: Failures,
    pub(super) sizes: Vec<usize>,
    pub(super) accesses: u64,
    pub(super) void: u64,
}

/// A part of the work: one color at some page offsets, with the sets that exist there already.
struct Job {
    color: u32,
    slots: Vec<u32>,
    classes: Classes,
    have: Vec<EvictionSet>,
}

/// More classes than sets wanted: at another offset two of them may coincide, or one fall apart.
const SPARE_CLASSES: usize = 2;
/// Page offsets of one job.
const SLOTS_PER_JOB: usize = 8;
/// Rounds in which missing sets are tried again.
const ROUNDS: usize = 2;
/// This share of the sets found first must have one size.
const ONE_SIZE: f64 = 0.6;
/// Builds sets from `pages`, listed by color. `progress` is told the number of sets so far and returns whether
/// to go on.
pub fn build(
    crew: &mut impl Crew,
    test: &LlcTest,
    pages: &[Vec<u32>],
    settings: &BuildSettings,
    progress: &(dyn Fn(usize) -> bool + Sync),
) -> Built {
    let wanted = settings.wanted(pages.len());
    let mut built = Built { wanted, ..Built::default() };
    let Some((&first, others)) = settings.slots.split_first() else { return built };
    let now = |crew: &mut _| {
        first_result(Crew::run(crew, vec![()], &|memory, ()| (memory.now(), memory.ticks_per_ms())))
    };
    let Some((start, per_ms)) = now(crew) else { return built };
    let builder = Builder {
        pages,
        settings,
        test,
        ways: Ways::Advertised(settings.advertised_ways),
        deadline: start + Ticks((settings.total_ms * per_ms) as u64),
    };

    let harvests =
        crew.run((0..pages.len() as u32).collect(), &|memory, color| builder.first(memory, color, first));
    let classes: Vec<Classes> = harvests.iter().map(|harvest| harvest.classes.clone()).collect();
    built.sets_per_color = sets_per_color(pages, &classes);
    for harvest in harvests {
        built.take(harvest);
    }
    built.ways = common_size(&built.sizes);
    let ms = |crew: &mut _| now(crew).map_or(0.0, |(end, _)| end.since(start).0 as f64 / per_ms);
    let Some(ways) = built.ways else {
        built.sets.clear();
        built.ms = ms(crew);
        return built;
    };
    let before = built.sets.len();
    built.sets.retain(|set| set.lines.len() == ways);
    built.fail(Failure::Size, before - built.sets.len());

    let builder = Builder { ways: Ways::Found(ways), ..builder };
    for round in 0..=ROUNDS {
        let slots = if round == 0 { others } else { &settings.slots[..] };
        let jobs = builder.jobs(slots, &classes, &built.sets, round);
        if jobs.is_empty() || !progress(built.sets.len()) {
            break;
        }
        // In portions, so that progress shows and can be stopped.
        let portion = 4 * crew.members();
        let mut jobs = jobs.into_iter().peekable();
        while jobs.peek().is_some() && progress(built.sets.len()) {
            let some = jobs.by_ref().take(portion).collect();
            for harvest in crew.run(some, &|memory, job| builder.job(memory, job, round)) {
                built.take(harvest);
            }
        }
    }
    built.ms = ms(crew);
    built
}

/// Builds up to `most` sets' worth of what is missing in `built`, from all pages of each color.
pub fn refill(
    crew: &mut impl Crew,
    test: &LlcTest,
    pages: &[Vec<u32>],
    settings: &BuildSettings,
    built: &mut Built,
    most: usize,
) {
    let Some(ways) = built.ways else { return };
    let Some((start, per_ms)) =
        first_result(crew.run(vec![()], &|memory, ()| (memory.now(), memory.ticks_per_ms())))
    else {
        return;
    };
    let deadline = start + Ticks((settings.search_ms * per_ms) as u64);
    let builder = Builder { pages, settings, test, ways: Ways::Found(ways), deadline };
    let classes = vec![Classes::new(); pages.len()];
    let mut jobs = builder.jobs(&settings.slots, &classes, &built.sets, ROUNDS);
    jobs.truncate(most);
    for harvest in crew.run(jobs, &|memory, job| builder.job(memory, job, ROUNDS)) {
        built.take(harvest);
    }
}

fn first_result<T>(results: Vec<T>) -> Option<T> {
    results.into_iter().next()
}

/// The size that most sets have, if it is the rule.
fn common_size(sizes: &BTreeMap<usize, u32>) -> Option<usize> {
    let all: u32 = sizes.values().sum();
    let (&size, &count) = sizes.iter().max_by_key(|(_, count)| **count)?;
    (f64::from(count) >= ONE_SIZE * f64::from(all)).then_some(size)
}

fn sets_per_color(pages: &[Vec<u32>], classes: &[Classes]) -> Option<f64> {
    let members: usize = classes.iter().flatten().map(Vec::len).sum();
    let count: usize = classes.iter().map(Vec::len).sum();
    let total: usize = pages.iter().map(Vec::len).sum();
    (members > 0).then(|| total as f64 / pages.len() as f64 / (members as f64 / count as f64))
}

impl Built {
    fn take(&mut self, harvest: Harvest) {
        self.sets.extend(harvest.sets);
        for (failure, count) in harvest.failures {
            *self.failures.entry(failure).or_default() += count;
        }
        for size in harvest.sizes {
            *self.sizes.entry(size).or_default() += 1;
        }
        self.accesses += harvest.accesses;
        self.void += harvest.void;
    }

    fn fail(&mut self, failure: Failure, count: usize) {
        if count > 0 {
            *self.failures.entry(failure).or_default() += count as u32;
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Builder<'a> {
    pub(super) pages: &'a [Vec<u32>],
    pub(super) settings: &'a BuildSettings,
    pub(super) test: &'a LlcTest,
    pub(super) ways: Ways,
    pub(super) deadline: Ticks,
}

impl Builder<'_> {
    fn rng(&self, color: u32, slot: u32, round: usize) -> Xoshiro256PlusPlus {
        let stream = u64::from(color) << 32 | u64::from(slot) << 8 | round as u64;
        Xoshiro256PlusPlus::seed_from_u64(self.settings.seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Jobs for whatever is missing at `slots`.
    fn jobs(&self, slots: &[u32], classes: &[Classes], sets: &[EvictionSet], round: usize) -> Vec<Job> {
        let per_job = if round == 0 { SLOTS_PER_JOB } else { 1 };
        let mut jobs = Vec::new();
        for color in 0..self.pages.len() as u32 {
            for slots in slots.chunks(per_job) {
                let have: Vec<EvictionSet> = sets
                    .iter()
                    .filter(|set| set.color == color && slots.contains(&set.slot))
                    .cloned()
                    .collect();
                if have.len() < slots.len() * self.settings.per_color {
                    let classes = classes[color as usize].clone();
                    jobs.push(Job { color, slots: slots.to_vec(), classes, have });
                }
            }
        }
        jobs
    }

    /// Sets and classes of one color at the first page offset.
    fn first(&self, memory: &mut impl Memory, color: u32, slot: u32) -> Harvest {
        let mut worker = Worker::new(self, color, self.rng(color, slot, 0));
        let mut open = self.pages[color as usize].clone();
        open.shuffle(&mut worker.rng);
        let (wanted, spare) = (self.settings.per_color, if self.settings.carry { SPARE_CLASSES } else { 0 });
        let mut tries = 0;
        while worker.harvest.sets.len() < wanted + spare
            && tries < 2 * (wanted + spare)
            && memory.now() < self.deadline
        {
            tries += 1;
            let Some(&page) = open.first() else { break };
            open.rotate_left(1);
            let target = Line::new(page, slot);
            let candidates = open[..open.len() - 1].iter().map(|&page| Line::new(page, slot)).collect();
            let Some(set) = worker.set(memory, target, candidates, 4 * self.ways.number()) else { continue };
            if worker.duplicate(memory, &set) {
                continue;
            }
            let class = if self.settings.carry { worker.class(memory, &set, &open) } else { Vec::new() };
            let used = |page: &u32| class.contains(page) || set.lines.iter().any(|line| line.page() == *page);
            open.retain(|page| !used(page));
            worker.harvest.classes.push(class);
            worker.harvest.sizes.push(set.lines.len());
            worker.harvest.sets.push(set);
        }
        // Spares were built for their classes.
        worker.harvest.sets.truncate(wanted);
        worker.finish()
    }

    /// Missing sets of one color at some page offsets.
    fn job(&self, memory: &mut impl Memory, job: Job, round: usize) -> Harvest {
        let mut worker = Worker::new(self, job.color, self.rng(job.color, job.slots[0], round + 1));
        let mut classes = job.classes;
        for &slot in &job.slots {
            worker.at_slot = job.have.iter().filter(|set| set.slot == slot).cloned().collect();
            classes.shuffle(&mut worker.rng);
            if self.settings.carry && round == 0 {
                for class in &mut classes {
                    if worker.at_slot.len() >= self.settings.per_color || memory.now() >= self.deadline {
                        break;
                    }
                    worker.carried(memory, class, slot);
                }
            }
            worker.fresh(memory, slot);
            let had = job.have.iter().filter(|set| set.slot == slot).count();
            worker.harvest.sets.extend(worker.at_slot.drain(had..));
        }
        worker.finish()
    }
}
