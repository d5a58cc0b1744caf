//! The L1 data cache: least recently used, and small enough to keep each set in order of use.

use crate::config;
use crate::host;
use crate::sets::MAX_ORDERED_WAYS;

/// No line has this number.
const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub(crate) struct L1 {
    /// Most recent first; what lies behind the last way is not looked at.
    sets: Vec<[u32; MAX_ORDERED_WAYS as usize]>,
    ways: u32,
}

impl L1 {
    pub fn new(config: config::L1) -> Self {
        Self {
            sets: vec![[NONE; MAX_ORDERED_WAYS as usize]; config.sets as usize],
            ways: (1 << config.ways) - 1,
        }
    }

    #[inline]
    fn set(&self, tag: u32) -> usize {
        tag as usize & (self.sets.len() - 1)
    }

    #[inline]
    fn place(&self, set: usize, tag: u32) -> Option<usize> {
        let found = host::equal_lanes(&self.sets[set], tag) & self.ways;
        (found != 0).then(|| found.trailing_zeros() as usize)
    }

    pub fn holds(&self, tag: u32) -> bool {
        self.place(self.set(tag), tag).is_some()
    }

    /// Whether the line is there; it becomes the most recent.
    #[inline]
    pub fn hit(&mut self, tag: u32) -> bool {
        let set = self.set(tag);
        let Some(place) = self.place(set, tag) else { return false };
        let lines = &mut self.sets[set];
        for i in (0..place).rev() {
            lines[i + 1] = lines[i];
        }
        lines[0] = tag;
        true
    }

    /// Adds a line that is not there; the oldest falls out.
    #[inline]
    pub fn fill(&mut self, tag: u32) {
        let set = self.set(tag);
        let lines = &mut self.sets[set];
        let before = *lines;
        lines[1..].copy_from_slice(&before[..MAX_ORDERED_WAYS as usize - 1]);
        lines[0] = tag;
    }

    #[inline]
    pub fn remove(&mut self, tag: u32) {
        let set = self.set(tag);
        if let Some(place) = self.place(set, tag) {
            self.sets[set][place] = NONE;
        }
    }

    pub fn clear(&mut self) {
        self.sets.fill([NONE; MAX_ORDERED_WAYS as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_line_falls_out() {
        let mut l1 = L1::new(config::L1 { sets: 2, ways: 3 });
        [0, 2, 4].into_iter().for_each(|tag| l1.fill(tag));
        assert!(l1.hit(0));
        l1.fill(6);
        assert_eq!([0, 2, 4, 6].map(|tag| l1.holds(tag)), [true, false, true, true]);
        l1.remove(4);
        l1.fill(8);
        assert_eq!([0, 4, 6, 8].map(|tag| l1.holds(tag)), [true, false, true, true]);
        assert!(!l1.hit(1));
        l1.clear();
        assert!(!l1.holds(0));
    }
}
