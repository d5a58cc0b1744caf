//! One vCPU at work on the sets of one color.

use quell_core::{Line, Memory, Ticks};
use rand::RngExt;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::build::{Builder, EvictionSet, Failure, Harvest};
use super::search::{Search, Ways, prune};
use super::test::LlcTest;
use super::verify::verify;
use crate::evset::test::{Outcome, Rule, Tally};

/// One vCPU at work on one color.
pub(super) struct Worker<'a> {
    builder: &'a Builder<'a>,
    color: u32,
    test: LlcTest,
    pub(super) rng: Xoshiro256PlusPlus,
    pub(super) harvest: Harvest,
    /// Sets at the page offset that is being worked on.
    pub(super) at_slot: Vec<EvictionSet>,
}

/// Targets of a class that are tried at another page offset before the class counts as fallen apart.
const TARGETS_PER_CLASS: usize = 6;
/// Tries for each set that is missing, from all pages of the color.
const FRESH_TRIES: usize = 3;
/// Lines that are sorted together by whether a set evicts them.
const BATCH: usize = 8;

impl<'a> Worker<'a> {
    pub(super) fn new(builder: &'a Builder<'a>, color: u32, rng: Xoshiro256PlusPlus) -> Self {
        let test = builder.test.fresh();
        Self { builder, color, test, rng, harvest: Harvest::default(), at_slot: Vec::new() }
    }

    pub(super) fn finish(mut self) -> Harvest {
        self.harvest.accesses = self.test.accesses;
        self.harvest.void = self.test.void;
        self.harvest
    }

    fn fail(&mut self, failure: impl Into<Failure>) {
        *self.harvest.failures.entry(failure.into()).or_default() += 1;
    }

    /// Searches a set of `target` and verifies it.
    pub(super) fn set(
        &mut self,
        memory: &mut impl Memory,
        target: Line,
        mut candidates: Vec<Line>,
        first: usize,
    ) -> Option<EvictionSet> {
        let settings = self.builder.settings;
        let limit = memory.now() + Ticks((settings.search_ms * memory.ticks_per_ms()) as u64);
        let deadline = limit.min(self.builder.deadline);
        let ways = self.builder.ways;
        let search = Search { method: settings.method, ways, first, deadline };
        let size = match search.run(memory, &mut self.test, target, &mut candidates) {
            Ok(size) => size,
            Err(failure) => {
                self.fail(failure);
                return None;
            }
        };
        memory.flush(&candidates[size..]);
        self.confirm(memory, target, candidates, size)
    }

    /// Makes a set of the first `size` candidates if they pass.
    fn confirm(
        &mut self,
        memory: &mut impl Memory,
        target: Line,
        mut lines: Vec<Line>,
        size: usize,
    ) -> Option<EvictionSet> {
        let mut size = size;
        if let Ways::Found(ways) = self.builder.ways
            && size > ways
        {
            size = prune(memory, &mut self.test, target, &mut lines, size);
        }
        lines.truncate(size);
        if let Ways::Found(ways) = self.builder.ways
            && size != ways
        {
            self.fail(Failure::Size);
            return None;
        }
        let foreign = self.at_slot.choose(&mut self.rng).map(|set| set.target);
        let set = EvictionSet { color: self.color, slot: target.slot(), target, lines };
        match verify(memory, &mut self.test, &set, foreign, self.rng.random()) {
            Ok(()) => Some(set),
            Err(unverified) => {
                self.fail(unverified);
                None
            }
        }
    }

    /// Whether a set evicts what one of the sets already harvested evicts.
    pub(super) fn duplicate(&mut self, memory: &mut impl Memory, set: &EvictionSet) -> bool {
        let others = self.harvest.sets.iter().map(|other| other.target).collect::<Vec<_>>();
        others
            .into_iter()
            .any(|target| self.test.evicts(memory, target, &set.lines, Rule::QUICK) != Outcome::Spares)
    }

    /// The pages whose line at the set's page offset is evicted by it, its own pages included.
    pub(super) fn class(&mut self, memory: &mut impl Memory, set: &EvictionSet, pages: &[u32]) -> Vec<u32> {
        let mut class: Vec<u32> = set.lines.iter().chain([&set.target]).map(|line| line.page()).collect();
        let others: Vec<Line> = pages
            .iter()
            .filter(|page| !class.contains(page))
            .map(|&page| Line::new(page, set.slot))
            .collect();
        let size = BATCH.min(set.lines.len().saturating_sub(1)).max(1);
        for batch in others.chunks(size) {
            let mut tallies = vec![Tally::default(); batch.len()];
            self.test.trial(memory, batch, &set.lines, &mut tallies);
            for (&line, tally) in batch.iter().zip(tallies) {
                if tally.sum > 0.5
                    && self.test.evicts(memory, line, &set.lines, Rule::QUICK) == Outcome::Evicts
                {
                    class.push(line.page());
                }
            }
        }
        class
    }

    /// A set from the lines of a class at another page offset. Pages that prove to belong together move to the
    /// front of the class.
    pub(super) fn carried(&mut self, memory: &mut impl Memory, class: &mut Vec<u32>, slot: u32) {
        let ways = self.builder.ways.number();
        for attempt in 0..TARGETS_PER_CLASS.min(class.len().saturating_sub(ways)) {
            // First the page that stood at the front so far, then others.
            let place = if attempt == 0 { ways } else { self.rng.random_range(0..class.len()) };
            let target = Line::new(class[place], slot);
            if self.taken(memory, target) {
                continue;
            }
            let mut candidates: Vec<Line> =
                class.iter().map(|&page| Line::new(page, slot)).filter(|&line| line != target).collect();
            let settings = self.builder.settings;
            let deadline = self.builder.deadline;
            let search = Search { method: settings.method, ways: self.builder.ways, first: ways, deadline };
            let Ok(size) = search.run(memory, &mut self.test, target, &mut candidates) else { continue };
            memory.flush(&candidates[size..]);
            if let Some(set) = self.confirm(memory, target, candidates.clone(), size) {
                class.retain(|page| {
                    *page != target.page() && !set.lines.iter().any(|line| line.page() == *page)
                });
                let mut front: Vec<u32> = set.lines.iter().map(|line| line.page()).collect();
                front.push(target.page());
                class.splice(0..0, front);
                self.at_slot.push(set);
                return;
            }
        }
    }

    /// Whether a set that exists at this page offset evicts `target`.
    fn taken(&mut self, memory: &mut impl Memory, target: Line) -> bool {
        let Self { at_slot, test, .. } = self;
        at_slot.iter().any(|set| test.step(memory, target, &set.lines) != Outcome::Spares)
    }

    /// Sets from all pages of the color, until there are enough.
    pub(super) fn fresh(&mut self, memory: &mut impl Memory, slot: u32) {
        let mut pages = self.builder.pages[self.color as usize].clone();
        let missing = self.builder.settings.per_color.saturating_sub(self.at_slot.len());
        for _ in 0..FRESH_TRIES * missing {
            if self.at_slot.len() >= self.builder.settings.per_color || memory.now() >= self.builder.deadline
            {
                return;
            }
            pages.shuffle(&mut self.rng);
            let Some((&page, rest)) = pages.split_first() else { return };
            let target = Line::new(page, slot);
            if self.taken(memory, target) {
                continue;
            }
            let used: Vec<u32> =
                self.at_slot.iter().flat_map(|set| set.lines.iter().map(|line| line.page())).collect();
            let candidates =
                rest.iter().filter(|page| !used.contains(page)).map(|&page| Line::new(page, slot)).collect();
            let first = 40 * self.builder.ways.number();
            if let Some(set) = self.set(memory, target, candidates, first) {
                self.at_slot.push(set);
            }
        }
        if self.at_slot.len() < self.builder.settings.per_color {
            self.fail(Failure::NoTarget);
        }
    }
}
