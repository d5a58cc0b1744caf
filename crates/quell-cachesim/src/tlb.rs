//! The second-level TLB: which pages have a translation at hand.

use crate::config::Backing;

const WAYS: u32 = 8;

#[derive(Clone, Debug)]
pub(crate) struct Tlb {
    /// Page numbers plus one; zero is free.
    sets: Vec<[u32; WAYS as usize]>,
    next: Vec<u8>,
    last: u32,
    shift: u32,
}

impl Tlb {
    pub fn new(entries: u32, backing: Backing) -> Self {
        let sets = (entries / WAYS) as usize;
        let shift = if backing == Backing::Huge { 9 } else { 0 };
        Self { sets: vec![[0; WAYS as usize]; sets], next: vec![0; sets], last: 0, shift }
    }

    /// Whether the translation of `page` is missing; it is there afterwards. Replacement is first in,
    /// first out.
    #[inline]
    pub fn misses(&mut self, page: u32) -> bool {
        let entry = (page >> self.shift) + 1;
        if entry == self.last {
            return false;
        }
        self.last = entry;
        let set = entry as usize & (self.sets.len() - 1);
        if self.sets[set].contains(&entry) {
            return false;
        }
        let way = &mut self.next[set];
        self.sets[set][*way as usize] = entry;
        *way = (*way + 1) % WAYS as u8;
        true
    }

    pub fn clear(&mut self) {
        self.sets.fill([0; WAYS as usize]);
        self.last = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn misses(tlb: &mut Tlb, pages: std::ops::Range<u32>) -> usize {
        pages.filter(|&page| tlb.misses(page)).count()
    }

    #[test]
    fn holds_what_fits_and_no_more() {
        let mut tlb = Tlb::new(2048, Backing::Small);
        assert_eq!(misses(&mut tlb, 0..1000), 1000);
        assert_eq!(misses(&mut tlb, 0..1000), 0);
        misses(&mut tlb, 0..20_000);
        assert!(misses(&mut tlb, 0..1000) > 900);
        tlb.clear();
        assert!(tlb.misses(5));
    }

    #[test]
    fn a_huge_entry_covers_512_pages() {
        let mut tlb = Tlb::new(16, Backing::Huge);
        assert_eq!(misses(&mut tlb, 0..1024), 2);
    }
}
