//! One cache level: sets of up to 32 ways with their replacement state, in compact arrays.
//!
//! Only lines of our own arenas have a tag. A foreign line is merely a valid way that is not ours: nobody
//! ever looks for it, so nothing but its replacement state has to be kept.

use crate::config::Replacement;
use crate::host;
use crate::rng::Rng;

/// Most ways that a level can have.
pub(crate) const MAX_WAYS: u32 = 32;
/// Most ways of a level that keeps its lines in order of use.
pub(crate) const MAX_ORDERED_WAYS: u32 = 16;
/// Tags that are compared together.
const GROUP: u32 = 16;

const NIBBLES: u64 = 0x1111_1111_1111_1111;

/// A subset of the ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ways {
    /// Bit i stands for way i.
    pub bits: u32,
    /// Bit 2i stands for way i.
    spread: u64,
}

impl Ways {
    pub fn new(bits: u32) -> Self {
        let spread = (0..MAX_WAYS).filter(|way| bits >> way & 1 == 1).map(|way| 1u64 << (2 * way)).sum();
        Self { bits, spread }
    }

    pub fn first(n: u32) -> Self {
        Self::new(((1u64 << n) - 1) as u32)
    }
}

#[repr(align(64))]
#[derive(Clone, Copy, Debug)]
struct Tags([u32; GROUP as usize]);

/// What is known of a set beside its tags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetState {
    /// Replacement state; its meaning depends on the policy.
    repl: u64,
    /// Integrated foreign traffic up to which this set is current (see [`crate::traffic`]).
    pub seen: [f64; 2],
    valid: u32,
    /// Ways that hold a line of our arenas.
    pub own: u32,
    /// Ways whose line has been re-used in the level below (see [`Sets::fill`]).
    reused: u32,
}

/// A line of ours that had to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    pub tag: u32,
    pub reused: bool,
}

/// All sets of one level.
#[derive(Clone, Debug)]
pub(crate) struct Sets {
    tags: Vec<Tags>,
    /// Groups of tags in a set: 1 or 2.
    groups: usize,
    /// Levels of the tree of tree-PLRU.
    levels: u32,
    pub state: Vec<SetState>,
    policy: Replacement,
    pub all: Ways,
}

impl Sets {
    /// An empty level.
    pub fn new(sets: u32, ways: u32, policy: Replacement) -> Self {
        let ordered = matches!(policy, Replacement::Lru | Replacement::LruInsertion { .. });
        let repl = if ordered { 0xfedc_ba98_7654_3210 } else { 0 };
        let state = SetState { repl, seen: [0.0; 2], valid: 0, own: 0, reused: 0 };
        let groups = ways.div_ceil(GROUP) as usize;
        Self {
            tags: vec![Tags([0; GROUP as usize]); sets as usize * groups],
            groups,
            levels: GROUP.ilog2() + groups as u32 - 1,
            state: vec![state; sets as usize],
            policy,
            all: Ways::first(ways),
        }
    }

    /// The way that holds our line `tag`.
    #[inline]
    pub fn find(&self, set: usize, tag: u32) -> Option<u32> {
        let own = self.state[set].own;
        if own == 0 {
            return None;
        }
        let mut equal = host::equal_lanes(&self.tags[set * self.groups].0, tag);
        if self.groups > 1 {
            equal |= host::equal_lanes(&self.tags[set * self.groups + 1].0, tag) << GROUP;
        }
        let hits = equal & own;
        (hits != 0).then(|| hits.trailing_zeros())
    }

    /// The line in `way`, if it is ours.
    pub fn tag(&self, set: usize, way: u32) -> u32 {
        self.tags[set * self.groups + (way / GROUP) as usize].0[(way % GROUP) as usize]
    }

    #[inline]
    fn tag_mut(&mut self, set: usize, way: u32) -> &mut u32 {
        &mut self.tags[set * self.groups + (way / GROUP) as usize].0[(way % GROUP) as usize]
    }

    /// Starts fetching a set's state and tags into the cache of the machine that runs the simulation.
    #[inline]
    pub fn hint(&self, set: usize) {
        host::fetch(&self.state[set]);
        host::fetch(&self.tags[set * self.groups]);
    }

    /// The line of ours that a fill would probably evict. A guess that is only good for [`Sets::hint`].
    #[inline]
    pub fn probable_victim(&self, set: usize) -> Option<u32> {
        let state = &self.state[set];
        let way = match self.policy {
            Replacement::Lru | Replacement::LruInsertion { .. } => {
                (state.repl >> (4 * (self.all.bits.count_ones() - 1)) & 15) as u32
            }
            Replacement::TreePlru => tree_victim(state.repl, self.all, self.levels),
            _ => return None,
        };
        (state.own >> way & 1 == 1).then(|| self.tag(set, way))
    }

    /// Records a hit.
    #[inline]
    pub fn touch(&mut self, set: usize, way: u32) {
        touch(self.policy, &mut self.state[set].repl, way, self.levels);
    }

    /// Takes the line in `way` out.
    #[inline]
    pub fn remove(&mut self, set: usize, way: u32) -> bool {
        let state = &mut self.state[set];
        let bit = !(1u32 << way);
        let reused = state.reused >> way & 1 == 1;
        state.valid &= bit;
        state.own &= bit;
        state.reused &= bit;
        reused
    }

    /// Puts our line `tag` into one of `allowed` ways and returns our line that had to make room for it.
    ///
    /// `protect` is the re-reference prediction: it matters to the
    /// policies that have one. `reused` is
    /// remembered with the line until it leaves.
    #[inline]
    pub fn fill(
        &mut self,
        set: usize,
        allowed: Ways,
        tag: u32,
        protect: bool,
        reused: bool,
        rng: &mut Rng,
    ) -> Option<Victim> {
        let way = self.place(set, allowed, protect, rng);
        let old = std::mem::replace(self.tag_mut(set, way), tag);
        let state = &mut self.state[set];
        let bit = 1u32 << way;
        let victim = (state.own & bit != 0).then_some(Victim { tag: old, reused: state.reused & bit != 0 });
        state.own |= bit;
        state.reused = state.reused & !bit | u32::from(reused) << way;
        victim
    }

    /// Puts somebody else's line into one of `allowed` ways and returns that way's bit if our line was in it
    /// (its tag stays readable until the next fill).
    #[inline]
    pub fn fill_foreign(&mut self, set: usize, allowed: Ways, protect: bool, rng: &mut Rng) -> u32 {
        let way = self.place(set, allowed, protect, rng);
        let state = &mut self.state[set];
        let bit = 1u32 << way;
        let evicted = state.own & bit;
        state.own &= !bit;
        evicted
    }

    /// Whether the line in `way` was filled as re-used.
    pub fn reused(&self, set: usize, way: u32) -> bool {
        self.state[set].reused >> way & 1 == 1
    }

    /// Keeps the first set only.
    pub fn truncate(&mut self) {
        self.tags.truncate(self.groups);
        self.state.truncate(1);
    }

    /// Empties a set.
    pub fn clear(&mut self, set: usize) {
        let state = &mut self.state[set];
        (state.valid, state.own) = (0, 0);
    }

    /// Makes all ways foreign with the given replacement state and returns the ways that were ours.
    pub fn reset_foreign(&mut self, set: usize, repl: u64) -> u32 {
        let state = &mut self.state[set];
        state.repl = repl;
        state.valid = self.all.bits;
        std::mem::take(&mut state.own)
    }

    /// The replacement state of a set, for [`Sets::reset_foreign`].
    pub fn replacement_state(&self, set: usize) -> u64 {
        self.state[set].repl
    }

    #[inline]
    fn place(&mut self, set: usize, allowed: Ways, protect: bool, rng: &mut Rng) -> u32 {
        let state = &mut self.state[set];
        let free = allowed.bits & !state.valid;
        let way = if free != 0 {
            free.trailing_zeros()
        } else {
            victim(self.policy, &mut state.repl, allowed, self.all, self.levels, rng)
        };
        state.valid |= 1 << way;
        match self.policy {
            Replacement::Srrip => {
                let value = if protect { 0 } else { 2 };
                state.repl = state.repl & !(3 << (2 * way)) | value << (2 * way);
            }
            Replacement::LruInsertion { depth } if !protect => {
                let last = self.all.bits.count_ones() - 1;
                let depth = rng.below(u32::from(depth).min(last + 1));
                reorder(&mut state.repl, way, last - depth);
            }
            policy => touch(policy, &mut state.repl, way, self.levels),
        }
        way
    }
}

/// Moves `way` to a place of the sixteen nibbles that hold the ways, most recent first.
#[inline]
fn reorder(repl: &mut u64, way: u32, to: u32) {
    let below = |nibbles: u32| (1u64 << (4 * nibbles)) - 1;
    let zero = *repl ^ (NIBBLES * u64::from(way));
    let from = (zero.wrapping_sub(NIBBLES) & !zero & (NIBBLES << 3)).trailing_zeros() / 4;
    let without = *repl & below(from) | *repl >> 4 & !below(from);
    *repl = without & below(to) | u64::from(way) << (4 * to) | (without & !below(to)) << 4;
}

#[inline]
fn touch(policy: Replacement, repl: &mut u64, way: u32, levels: u32) {
    match policy {
        Replacement::Lru | Replacement::LruInsertion { .. } => reorder(repl, way, 0),
        Replacement::TreePlru => {
            // A heap of bits; a bit tells which half to evict from: make each one point away from `way`.
            let mut node = 1u32;
            for level in (0..levels).rev() {
                let right = way >> level & 1;
                *repl = *repl & !(1 << node) | u64::from(1 - right) << node;
                node = 2 * node + right;
            }
        }
        Replacement::Srrip => *repl &= !(3 << (2 * way)),
        Replacement::Random => {}
    }
}

#[inline]
fn victim(policy: Replacement, repl: &mut u64, allowed: Ways, all: Ways, levels: u32, rng: &mut Rng) -> u32 {
    match policy {
        Replacement::Lru | Replacement::LruInsertion { .. } => {
            // Ways that do not exist never move to the front, so they stay behind the last real one.
            let mut place = all.bits.count_ones();
            loop {
                place -= 1;
                let way = (*repl >> (4 * place) & 15) as u32;
                if place == 0 || allowed.bits >> way & 1 == 1 {
                    return way;
                }
            }
        }
        Replacement::TreePlru => tree_victim(*repl, allowed, levels),
        Replacement::Srrip => loop {
            let distant = *repl & *repl >> 1 & allowed.spread;
            if distant != 0 {
                return distant.trailing_zeros() / 2;
            }
            *repl += allowed.spread;
        },
        Replacement::Random => pick(allowed.spread, rng),
    }
}

/// The way that the tree bits point to, turning away from halves without an allowed way.
#[inline]
fn tree_victim(repl: u64, allowed: Ways, levels: u32) -> u32 {
    let (mut node, mut first) = (1u32, 0u32);
    for level in (0..levels).rev() {
        let half = 1u32 << level;
        let any = |from: u32| allowed.bits >> from & ((1 << half) - 1) != 0;
        let wish = (repl >> node & 1) as u32;
        let right = if any(first + wish * half) { wish } else { 1 - wish };
        first += right * half;
        node = 2 * node + right;
    }
    first
}

/// A random way of a spread mask.
#[inline]
fn pick(spread: u64, rng: &mut Rng) -> u32 {
    let mut left = spread;
    for _ in 0..rng.below(spread.count_ones()) {
        left &= left - 1;
    }
    left.trailing_zeros() / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rng() -> Rng {
        Rng::new(1, 1)
    }

    /// Fills or hits `lines` in one set and returns what is evicted, in order.
    fn run(policy: Replacement, ways: u32, lines: &[u32]) -> Vec<u32> {
        let (mut sets, mut rng) = (Sets::new(1, ways, policy), rng());
        let all = sets.all;
        let step = |&line: &u32| {
            if let Some(way) = sets.find(0, line) {
                sets.touch(0, way);
                return None;
            }
            sets.fill(0, all, line, false, false, &mut rng).map(|victim| victim.tag)
        };
        lines.iter().filter_map(step).collect()
    }

    #[test]
    fn lru_evicts_in_order_of_last_use() {
        assert_eq!(run(Replacement::Lru, 3, &[1, 2, 3, 1, 4, 3, 5, 6]), [2, 1, 4]);
        let sixteen: Vec<u32> = (0..20).chain([4, 20]).collect();
        assert_eq!(run(Replacement::Lru, 16, &sixteen), [0, 1, 2, 3, 5]);
    }

    /// Ways 0 to 3 hold 1 to 4. After the fills the root points to the left half and its node to way 0; a hit
    /// on way 0 turns both, so way 2 goes next, then way 1, then way 3.
    #[test]
    fn tree_plru_follows_its_bits() {
        assert_eq!(run(Replacement::TreePlru, 4, &[1, 2, 3, 4, 1, 5, 6, 7]), [3, 2, 4]);
        // Three ways: the missing fourth is never chosen.
        let victims = run(Replacement::TreePlru, 3, &[1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(victims.len(), 4);
    }

    /// Values after the three fills: 2 2 2. The hit makes the first 0. Line 4 finds no 3, all grow (1 3 3),
    /// and way 1 goes; line 5 takes way 2, the remaining 3. Now 1 2 2: line 6 makes them 2 3 3 and takes way 1.
    #[test]
    fn srrip_evicts_the_first_distant_line() {
        assert_eq!(run(Replacement::Srrip, 3, &[1, 2, 3, 1, 4, 5, 6]), [2, 3, 4]);
    }

    #[test]
    fn a_line_that_was_used_again_outlives_those_that_were_not() {
        for policy in [Replacement::Srrip, Replacement::LruInsertion { depth: 2 }] {
            let (mut sets, mut rng) = (Sets::new(1, 8, policy), rng());
            let all = sets.all;
            sets.fill(0, all, 0, true, false, &mut rng);
            let mut lived = 0;
            while sets.find(0, 0).is_some() && lived < 100 {
                lived += 1;
                sets.fill(0, all, lived, false, false, &mut rng);
            }
            assert!(lived > 14, "{policy:?}: evicted after {lived} fills of 8 ways");
        }
    }

    /// With depth 1 an unprotected line always takes the last place, so it is the next to go and the
    /// protected ones stay in order of use.
    #[test]
    fn lru_insertion_of_depth_one_evicts_the_newcomer() {
        let (mut sets, mut rng) = (Sets::new(1, 4, Replacement::LruInsertion { depth: 1 }), rng());
        let all = sets.all;
        let mut fill =
            |tag, protect| sets.fill(0, all, tag, protect, false, &mut rng).map(|victim| victim.tag);
        let evicted =
            [(1, true), (2, true), (3, true), (4, false), (5, false), (6, false), (7, true), (8, true)]
                .map(|(tag, protect)| fill(tag, protect));
        assert_eq!(evicted, [None, None, None, None, Some(4), Some(5), Some(6), Some(1)]);
    }

    #[test]
    fn random_replacement_takes_every_allowed_way_and_no_other() {
        let (mut sets, mut rng) = (Sets::new(1, 8, Replacement::Random), rng());
        let all = sets.all;
        (0..8).for_each(|tag| assert_eq!(sets.fill(0, all, tag, false, false, &mut rng), None));
        let allowed = Ways::new(0b1010_0100);
        let mut hits = [0u32; 8];
        for tag in 8..3008 {
            sets.fill(0, allowed, tag, false, false, &mut rng);
            hits[sets.find(0, tag).unwrap() as usize] += 1;
        }
        assert!([2, 5, 7].iter().all(|&way| hits[way] > 850), "{hits:?}");
        assert_eq!(hits.iter().sum::<u32>(), hits[2] + hits[5] + hits[7]);
    }

    #[test]
    fn a_victim_keeps_its_reuse_mark_and_removal_frees_the_way() {
        let (mut sets, mut rng) = (Sets::new(1, 1, Replacement::Lru), rng());
        let all = sets.all;
        sets.fill(0, all, 5, false, true, &mut rng);
        assert_eq!(sets.fill(0, all, 6, false, false, &mut rng), Some(Victim { tag: 5, reused: true }));
        sets.remove(0, 0);
        assert_eq!(sets.fill(0, all, 7, false, false, &mut rng), None);
    }
}
