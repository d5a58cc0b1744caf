//! From a line of an arena to its sets: the guest-to-host mapping and the index functions.

use crate::config::{Backing, Config, Indexing};
use crate::rng::mix;

/// Bits of the number of a host unit (4 KiB or 2 MiB) from which the mapping draws; even.
const SMALL_BITS: u32 = 26;
const HUGE_BITS: u32 = 18;
/// Pages of a huge unit, as bits.
const HUGE_SHIFT: u32 = 9;

/// What the index functions need to know of a page.
#[derive(Clone, Copy, Debug)]
struct Page {
    /// Set index with the page's share; XOR the slot to get a line's.
    index: u32,
    /// The page's share of the slice hash.
    hash: u32,
}

/// Index functions and the mapping of all pages that have been handed out.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pages: Vec<Page>,
    slot_hash: [u32; 64],
    l2_mask: u32,
    slice_mask: u32,
    slice_bits: u32,
    slices: u32,
    color_mask: u32,
    indexing: Indexing,
    backing: Backing,
    seed: u64,
    /// Units of the host that replaced others while the guest ran.
    replaced: u64,
}

impl Geometry {
    pub fn new(config: &Config, seed: u64) -> Self {
        Self {
            pages: Vec::new(),
            slot_hash: std::array::from_fn(|slot| fold(slot as u64, 1)),
            l2_mask: config.l2.sets - 1,
            slice_mask: config.llc.slice.sets - 1,
            slice_bits: config.llc.slice.sets.trailing_zeros(),
            slices: config.llc.slices,
            color_mask: config.colors() - 1,
            indexing: config.indexing,
            backing: config.backing,
            seed: mix(seed),
            replaced: 0,
        }
    }

    /// Maps `n` more pages and returns the number of the first.
    pub fn map(&mut self, n: u32) -> u32 {
        let first = self.pages.len() as u32;
        // A new arena starts on a new unit of the host.
        let start = match self.backing {
            Backing::Small => first,
            Backing::Huge => first.next_multiple_of(1 << HUGE_SHIFT),
        };
        for page in first..start + n {
            let frame = self.frame(page);
            self.pages.push(self.indexed(frame));
        }
        start
    }

    /// Moves a page to a frame that no page has had.
    pub fn remap(&mut self, page: u32) {
        // Guest pages are numbered from below, replacements from above.
        let frame = match self.backing {
            Backing::Small => permute((1 << SMALL_BITS) - 1 - self.replaced, SMALL_BITS, self.seed),
            Backing::Huge => {
                let unit = permute((1 << HUGE_BITS) - 1 - self.replaced, HUGE_BITS, self.seed);
                unit << HUGE_SHIFT | u64::from(page & ((1 << HUGE_SHIFT) - 1))
            }
        };
        self.replaced += 1;
        self.pages[page as usize] = self.indexed(frame);
    }

    fn indexed(&self, frame: u64) -> Page {
        Page { index: self.page_index(frame), hash: fold(frame << 6, 1) }
    }

    pub fn pages(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Host page-frame number of a page.
    pub fn frame(&self, page: u32) -> u64 {
        match self.backing {
            Backing::Small => permute(u64::from(page), SMALL_BITS, self.seed),
            Backing::Huge => {
                let unit = permute(u64::from(page >> HUGE_SHIFT), HUGE_BITS, self.seed);
                unit << HUGE_SHIFT | u64::from(page & ((1 << HUGE_SHIFT) - 1))
            }
        }
    }

    fn page_index(&self, frame: u64) -> u32 {
        match self.indexing {
            Indexing::Direct => (frame << 6) as u32 & ((1 << 26) - 1),
            Indexing::Hashed => {
                let bits = fold(frame << 6, 2);
                // The page's own 3 bits permute address bits 9 to 11; the rest is color and set.
                (bits >> 12) << 6 ^ (bits & 7) << 3
            }
        }
    }

    #[inline]
    fn page(&self, tag: u32) -> Page {
        self.pages[(tag >> 6) as usize]
    }

    #[inline]
    pub fn l2_set(&self, tag: u32) -> usize {
        ((self.page(tag).index ^ (tag & 63)) & self.l2_mask) as usize
    }

    #[inline]
    pub fn llc_set(&self, tag: u32) -> usize {
        let (page, slot) = (self.page(tag), tag & 63);
        let hash = page.hash ^ self.slot_hash[slot as usize];
        let slice = (u64::from(hash) * u64::from(self.slices)) >> 32;
        ((slice as u32) << self.slice_bits | (page.index ^ slot) & self.slice_mask) as usize
    }

    /// Color of a page.
    pub fn color(&self, page: u32) -> u32 {
        self.pages[page as usize].index >> 6 & self.color_mask
    }

    /// The slice that holds a line.
    pub fn slice(&self, tag: u32) -> u32 {
        (self.llc_set(tag) >> self.slice_bits) as u32
    }
}

/// Linear hash of an address (in lines) to 32 bits: each set bit toggles a fixed random word. That is the
/// shape of the slice hashes that have been reverse-engineered on Intel (Maurice et al., "Reverse engineering
/// Intel last-level cache complex addressing using performance counters", RAID 2015); the words are our own.
fn fold(address: u64, family: u64) -> u32 {
    let mut hash = 0;
    let mut left = address;
    while left != 0 {
        hash ^= mix(family << 32 | u64::from(left.trailing_zeros())) >> 32;
        left &= left - 1;
    }
    hash as u32
}

/// A keyed bijection of numbers of `bits` bits (a Feistel network), so that no two pages share a frame.
fn permute(value: u64, bits: u32, key: u64) -> u64 {
    let half = bits / 2;
    let mask = (1u64 << half) - 1;
    let (mut left, mut right) = (value >> half & mask, value & mask);
    for round in 0..6 {
        let next = left ^ mix(key ^ mix(right | round << 32)) & mask;
        left = right;
        right = next;
    }
    left << half | right
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mapped(config: &Config, seed: u64, pages: u32) -> Geometry {
        let mut geometry = Geometry::new(config, seed);
        geometry.map(pages);
        geometry
    }

    #[test]
    fn no_two_pages_share_a_frame() {
        for backing in [Backing::Small, Backing::Huge] {
            let geometry = mapped(&Config { backing, ..Config::milan() }, 5, 100_000);
            let mut frames: Vec<u64> = (0..100_000).map(|page| geometry.frame(page)).collect();
            frames.sort_unstable();
            frames.dedup();
            assert_eq!(frames.len(), 100_000);
        }
    }

    #[test]
    fn sets_are_used_evenly() {
        for config in [Config::milan(), Config::skylake_sp()] {
            let geometry = mapped(&config, 7, 20_000);
            let mut counts = vec![0u32; config.llc_sets() as usize];
            for tag in 0..20_000 * 64 {
                counts[geometry.llc_set(tag)] += 1;
            }
            let mean = 20_000.0 * 64.0 / counts.len() as f64;
            let variance =
                counts.iter().map(|&c| (f64::from(c) - mean).powi(2)).sum::<f64>() / counts.len() as f64;
            assert!((0.5..2.0).contains(&(variance / mean)), "variance {variance}, mean {mean}");
        }
    }

    #[test]
    fn milan_has_128_classes_of_equal_size() {
        let geometry = mapped(&Config::milan(), 3, 12_800);
        let mut counts = vec![0u32; 1024];
        for page in 0..12_800 {
            counts[geometry.l2_set(page << 6 | 21)] += 1;
        }
        let used: Vec<u32> = counts.into_iter().filter(|&n| n > 0).collect();
        assert_eq!(used.len(), 128);
        assert!(used.iter().all(|n| (55..150).contains(n)), "{used:?}");
    }

    proptest! {
        /// Two pages either share all 64 L2 sets or none, and never an LLC set across colors; the sets
        /// match after an XOR of line-offset bits 3 to 5 (Milan) or as they are (Skylake-SP).
        #[test]
        fn colors_partition_both_levels(seed: u64, hashed: bool, a in 0u32..2000, b in 0u32..2000) {
            let config = if hashed { Config::milan() } else { Config::skylake_sp() };
            let geometry = mapped(&config, seed, 2000);
            let sets = |page: u32| -> Vec<usize> { (0..64).map(|s| geometry.l2_set(page << 6 | s)).collect() };
            let (of_a, of_b) = (sets(a), sets(b));
            if geometry.color(a) == geometry.color(b) {
                let shifts = if hashed { 8 } else { 1 };
                let matching = (0..shifts).filter(|&k| (0..64).all(|s| of_a[s] == of_b[s ^ (8 * k)])).count();
                prop_assert_eq!(matching, 1);
            } else {
                prop_assert!(of_a.iter().all(|set| !of_b.contains(set)));
                let of_b: Vec<usize> = (0..64).map(|s| geometry.llc_set(b << 6 | s)).collect();
                prop_assert!((0..64).all(|s| !of_b.contains(&geometry.llc_set(a << 6 | s))));
            }
        }

        #[test]
        fn every_set_index_is_in_range(seed: u64, tag in 0u32..64_000) {
            for config in [Config::milan(), Config::skylake_sp()] {
                let geometry = mapped(&config, seed, 1000);
                prop_assert!(geometry.l2_set(tag) < config.l2.sets as usize);
                prop_assert!(geometry.llc_set(tag) < config.llc_sets() as usize);
                prop_assert!(geometry.slice(tag) < config.llc.slices);
            }
        }
    }
}
