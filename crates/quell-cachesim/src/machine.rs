//! What all vCPUs share: the private caches, which snoop each other, and the LLCs behind them.

use crate::config::{Config, ConfigError, Inclusion};
use crate::geometry::Geometry;
use crate::l1::L1;
use crate::rng::Rng;
use crate::sets::{Sets, Victim, Ways};
use crate::shared::SharedCache;

/// Most vCPUs of a machine: a line's holders are a mask of so many bits.
pub(crate) const MAX_VCPUS: u32 = 16;
const STREAM_ACCESS: u64 = 3 << 32;

/// The private caches of one core.
#[derive(Clone, Debug)]
pub(crate) struct Core {
    pub l1: L1,
    pub l2: Sets,
}

#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub config: Config,
    pub geometry: Geometry,
    pub cores: Vec<Core>,
    pub llcs: Vec<SharedCache>,
    /// One for each LLC, or none at all. A line of ours is in at most one of a filter and its LLC.
    pub filters: Vec<SharedCache>,
    pub our_ways: Ways,
    /// Draws everything that depends on the accesses.
    pub rng: Rng,
    /// Cores that hold a line in L2, by tag. Empty where nobody has to know: one core without a snoop filter.
    holders: Vec<u16>,
    snooping: bool,
}

impl Machine {
    pub fn new(config: Config, seed: u64, vcpus: u32) -> Result<Self, ConfigError> {
        config.check()?;
        if !(1..=MAX_VCPUS).contains(&vcpus) {
            return Err(ConfigError::new("the number of vCPUs", "between 1 and 16", f64::from(vcpus)));
        }
        let llcs = 0..config.neighbors.len();
        let core = Core {
            l1: L1::new(config.l1),
            l2: Sets::new(config.l2.sets, config.l2.ways, config.l2.replacement),
        };
        let filter = config.llc.snoop_filter;
        Ok(Self {
            geometry: Geometry::new(&config, seed),
            cores: vec![core; vcpus as usize],
            llcs: llcs.clone().map(|llc| SharedCache::new(&config, seed, llc)).collect(),
            filters: llcs.filter_map(|llc| Some(SharedCache::filter(&config, filter?, seed, llc))).collect(),
            our_ways: Ways::new(config.llc.our_ways),
            rng: Rng::new(seed, STREAM_ACCESS),
            holders: Vec::new(),
            snooping: vcpus > 1 || filter.is_some(),
            config,
        })
    }

    /// Maps `pages` more pages and returns the number of the first.
    pub fn map(&mut self, pages: u32) -> u32 {
        let first = self.geometry.map(pages);
        if self.snooping {
            self.holders.resize(self.geometry.pages() as usize * 64, 0);
        }
        first
    }

    /// Looks at an LLC's traffic at `now`.
    #[inline]
    pub fn advance(&mut self, llc: usize, now: f64) {
        self.llcs[llc].path.advance(now);
        if let Some(filter) = self.filters.get_mut(llc) {
            filter.path.advance(now);
        }
    }

    /// Whether any core holds the line in L2. Always false where nobody snoops.
    #[inline]
    pub fn held(&self, tag: u32) -> bool {
        self.holders.get(tag as usize).is_some_and(|&cores| cores != 0)
    }

    #[inline]
    pub fn take_hold(&mut self, core: usize, tag: u32) {
        if self.snooping {
            self.holders[tag as usize] |= 1 << core;
        }
    }

    #[inline]
    fn let_go(&mut self, core: usize, tag: u32) {
        if self.snooping {
            self.holders[tag as usize] &= !(1 << core);
        }
    }

    /// Enters a line that one core alone holds into the snoop filter.
    pub fn track(&mut self, llc: usize, set: usize, tag: u32, now: f64) {
        self.settle_filter(llc, set, now);
        let entries = &mut self.filters[llc].sets;
        let all = entries.all;
        if let Some(victim) = entries.fill(set, all, tag, false, false, &mut self.rng) {
            self.recall(llc, victim.tag, now);
        }
    }

    /// Takes a line out of the snoop filter.
    pub fn untrack(&mut self, llc: usize, set: usize, tag: u32) {
        if let Some(filter) = self.filters.get_mut(llc)
            && let Some(way) = filter.sets.find(set, tag)
        {
            filter.sets.remove(set, way);
        }
    }

    /// A line whose entry in the filter is gone leaves the private caches, as if L2 had evicted it.
    fn recall(&mut self, llc: usize, tag: u32, now: f64) {
        let set = self.geometry.l2_set(tag);
        for core in 0..self.cores.len() {
            if self.holders[tag as usize] >> core & 1 == 1
                && let Some(way) = self.cores[core].l2.find(set, tag)
            {
                let reused = self.cores[core].l2.remove(set, way);
                self.leave_l2(core, llc, Victim { tag, reused }, now);
            }
        }
    }

    /// A line has left L2: L1 must not keep it, and a victim cache takes it.
    pub fn leave_l2(&mut self, core: usize, llc: usize, victim: Victim, now: f64) {
        self.cores[core].l1.remove(victim.tag);
        self.let_go(core, victim.tag);
        if self.config.llc.inclusion == Inclusion::Inclusive {
            return;
        }
        let set = self.geometry.llc_set(victim.tag);
        self.settle_llc(llc, set, now);
        if (self.config.llc.inclusion == Inclusion::NonInclusive || self.held(victim.tag))
            && self.llcs[llc].sets.find(set, victim.tag).is_some()
        {
            return;
        }
        self.untrack(llc, set, victim.tag);
        self.fill_llc(llc, set, victim.tag, victim.reused, false);
    }

    /// Puts a line into an LLC. `shared` lines take their copies in private caches along when they are evicted.
    pub fn fill_llc(&mut self, llc: usize, set: usize, tag: u32, protect: bool, shared: bool) {
        let victim = self.llcs[llc].sets.fill(set, self.our_ways, tag, protect, shared, &mut self.rng);
        if let Some(Victim { tag, reused: true }) = victim {
            self.drop_private(tag);
        }
    }

    /// Applies foreign traffic to a set of an LLC.
    #[inline]
    pub fn settle_llc(&mut self, llc: usize, set: usize, now: f64) {
        let mut gone = self.llcs[llc].settle(set, now, &mut self.rng);
        let inclusive = self.config.llc.inclusion == Inclusion::Inclusive;
        if inclusive || self.snooping {
            while gone != 0 {
                let way = gone.trailing_zeros();
                gone &= gone - 1;
                let sets = &self.llcs[llc].sets;
                let tag = sets.tag(set, way);
                if inclusive || sets.reused(set, way) {
                    self.drop_private(tag);
                }
            }
        }
    }

    /// Applies foreign traffic to a set of a snoop filter.
    #[inline]
    pub fn settle_filter(&mut self, llc: usize, set: usize, now: f64) {
        let mut gone = self.filters[llc].settle(set, now, &mut self.rng);
        while gone != 0 {
            let tag = self.filters[llc].sets.tag(set, gone.trailing_zeros());
            gone &= gone - 1;
            self.recall(llc, tag, now);
        }
    }

    /// Removes a line from all L1 and L2 without a trace.
    pub fn drop_private(&mut self, tag: u32) {
        let set = self.geometry.l2_set(tag);
        for core in 0..self.cores.len() {
            if self.snooping && self.holders[tag as usize] >> core & 1 == 0 {
                continue;
            }
            let Core { l1, l2 } = &mut self.cores[core];
            l1.remove(tag);
            if let Some(way) = l2.find(set, tag) {
                l2.remove(set, way);
            }
            self.let_go(core, tag);
        }
    }

    /// Removes a line from every cache.
    pub fn flush(&mut self, tag: u32) {
        let set = self.geometry.llc_set(tag);
        self.drop_private(tag);
        for cache in self.llcs.iter_mut().chain(&mut self.filters) {
            if let Some(way) = cache.sets.find(set, tag) {
                cache.sets.remove(set, way);
            }
        }
    }

    /// Nothing of ours is left in a core's private caches; its LLC was `llc`.
    pub fn clear_private(&mut self, core: usize, llc: usize) {
        self.cores[core].l1.clear();
        for set in 0..self.cores[core].l2.state.len() {
            let state = self.cores[core].l2.replacement_state(set);
            let mut gone = self.cores[core].l2.reset_foreign(set, state);
            while self.snooping && gone != 0 {
                let tag = self.cores[core].l2.tag(set, gone.trailing_zeros());
                gone &= gone - 1;
                self.let_go(core, tag);
                self.untrack(llc, self.geometry.llc_set(tag), tag);
            }
        }
    }
}
