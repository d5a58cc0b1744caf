//! Where the canary, its spill lines and the sentinels lie in the arena.
//!
//! All of them sit on page offsets that are equal modulo 512 bytes. On every CPU whose L2 takes address bits
//! 6-8 unhashed (all that we know of; [`crate::calibrate()`] checks it by measurement), such lines share one
//! eighth of the L2 sets. So a spill of an eighth of the usual size pushes the canary out of the L2, which
//! keeps the probe's own footprint small. The residue is drawn per run: no page offset is favored.

use quell_core::memory::{LINE_BYTES, LINES_PER_PAGE, PAGE_BYTES};
use quell_core::{Bytes, Line};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Lines of a page that share one residue: page offsets equal modulo 512 bytes.
const CONGRUENT_PER_PAGE: u32 = 8;
/// Distance between two of them, in lines.
const CONGRUENT_STRIDE: u32 = LINES_PER_PAGE / CONGRUENT_PER_PAGE;

/// Lines in the canary, one per page. Measured on AMD Milan: 128 to 1,024 lines detect equally well, while
/// more windows detect better; so few lines, many windows.
pub const CANARY_LINES: u32 = 256;
/// Lines touched last, which tell a burst of evictions from a move of the vCPU to another cache.
pub const SENTINEL_LINES: u32 = 32;
/// The spill never exceeds this multiple of the L2, whatever calibration asks for.
pub const MAX_SPILL_OF_L2: u32 = 3;

/// How the lines that push the canary out of the private L2 are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spill {
    /// Lines congruent to the canary modulo 512 bytes.
    Congruent {
        /// How many.
        lines: u32,
    },
    /// Every line of as many pages as are needed.
    Full {
        /// How many.
        lines: u32,
    },
}

impl Spill {
    /// Lines touched.
    #[must_use]
    pub const fn lines(self) -> u32 {
        match self {
            Self::Congruent { lines } | Self::Full { lines } => lines,
        }
    }
}

/// Lines by role. All are distinct.
#[derive(Clone, Debug)]
pub struct Layout {
    /// One line each on randomly chosen pages, in priming order.
    pub canary: Vec<Line>,
    /// The canary in probing order: reverse of priming, so that probing does not evict what is still to come.
    pub probe_order: Vec<Line>,
    /// Lines touched last in priming.
    pub sentinels: Vec<Line>,
    /// First page of the spill area.
    spill_start: u32,
    spill_pages: u32,
    residue: u32,
}

impl Layout {
    /// Pages an arena needs for a CPU with an L2 of `l2` bytes.
    #[must_use]
    pub fn pages(l2: Bytes) -> u32 {
        CANARY_LINES + SENTINEL_LINES + spill_pages(l2)
    }

    /// Draws a layout for an arena of at least [`Layout::pages`] pages.
    #[must_use]
    pub fn new(l2: Bytes, seed: u64) -> Self {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let residue = rng.random_range(0..CONGRUENT_STRIDE);
        let mut pages: Vec<u32> = (0..CANARY_LINES + SENTINEL_LINES).collect();
        pages.shuffle(&mut rng);
        let mut lines: Vec<Line> = pages
            .into_iter()
            .map(|page| Line::new(page, rng.random_range(0..CONGRUENT_PER_PAGE) * CONGRUENT_STRIDE + residue))
            .collect();
        let sentinels = lines.split_off(CANARY_LINES as usize);
        let probe_order = lines.iter().rev().copied().collect();
        Self {
            canary: lines,
            probe_order,
            sentinels,
            spill_start: CANARY_LINES + SENTINEL_LINES,
            spill_pages: spill_pages(l2),
            residue,
        }
    }

    /// What the offsets of all lines leave modulo 512 bytes, in lines.
    #[must_use]
    pub fn residue(&self) -> u32 {
        self.residue
    }

    /// The same with other canary lines, in priming order. They must lie on offsets of the same residue, outside
    /// of the layout's own pages.
    #[must_use]
    pub fn with_canary(&self, lines: Vec<Line>) -> Self {
        Self { probe_order: lines.iter().rev().copied().collect(), canary: lines, ..self.clone() }
    }

    /// The lines of a spill in touching order (ascending addresses, which loses fewest lines), cut to the
    /// room the layout has.
    #[must_use]
    pub fn spill(&self, spill: Spill) -> Vec<Line> {
        let (per_page, stride, residue) = match spill {
            Spill::Congruent { .. } => (CONGRUENT_PER_PAGE, CONGRUENT_STRIDE, self.residue),
            Spill::Full { .. } => (LINES_PER_PAGE, 1, 0),
        };
        (0..spill.lines().min(self.spill_pages * per_page))
            .map(|i| Line::new(self.spill_start + i / per_page, i % per_page * stride + residue))
            .collect()
    }

    /// Every byte that one window brings into the cache: canary and sentinels, for each the line that loads
    /// its translation, and the spill.
    #[must_use]
    pub fn footprint(spill: Spill) -> Bytes {
        Bytes(u64::from(2 * (CANARY_LINES + SENTINEL_LINES) + spill.lines()) * u64::from(LINE_BYTES))
    }

    /// Bytes of the canary itself.
    #[must_use]
    pub const fn canary_bytes() -> Bytes {
        Bytes(CANARY_LINES as u64 * LINE_BYTES as u64)
    }
}

/// Spill lines that fill `multiple` times the part of the L2 which congruent lines can reach.
#[must_use]
pub fn congruent_spill(l2: Bytes, multiple: f64) -> Spill {
    Spill::Congruent { lines: (l2_lines(l2) * multiple / f64::from(CONGRUENT_STRIDE)) as u32 }
}

/// Spill lines that fill the L2 `multiple` times.
#[must_use]
pub fn full_spill(l2: Bytes, multiple: f64) -> Spill {
    Spill::Full { lines: (l2_lines(l2) * multiple) as u32 }
}

fn l2_lines(l2: Bytes) -> f64 {
    l2.0 as f64 / f64::from(LINE_BYTES)
}

/// A congruent spill of `m` times its part of the L2 and a full spill of `m` times the L2 need equally many
/// pages.
fn spill_pages(l2: Bytes) -> u32 {
    (u32::try_from(l2.0 / u64::from(PAGE_BYTES)).unwrap_or(u32::MAX / 64) * MAX_SPILL_OF_L2).max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lines_are_distinct_congruent_and_inside(seed: u64, l2_kib in prop::sample::select(vec![256_u64, 512, 1024, 2048]),
                                                   multiple in 0.5_f64..4.0) {
            let l2 = Bytes::kib(l2_kib);
            let layout = Layout::new(l2, seed);
            let spill = layout.spill(congruent_spill(l2, multiple));
            let all: Vec<Line> = [&layout.canary[..], &layout.sentinels, &spill].concat();
            prop_assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
            prop_assert!(all.iter().all(|line| line.page() < Layout::pages(l2)));
            prop_assert!(all.iter().all(|line| line.slot() % 8 == all[0].slot() % 8));
            let pages: HashSet<u32> = layout.canary.iter().map(|line| line.page()).collect();
            prop_assert_eq!(pages.len(), CANARY_LINES as usize);
        }
    }

    #[test]
    fn a_spill_has_the_asked_number_of_lines() {
        let l2 = Bytes::mib(1);
        let layout = Layout::new(l2, 1);
        assert_eq!(layout.spill(congruent_spill(l2, 2.0)).len(), 4096);
        assert_eq!(layout.spill(full_spill(l2, 1.0)).len(), 16384);
        assert_eq!(Layout::footprint(congruent_spill(l2, 2.0)), Bytes((576 + 4096) * 64));
    }
}
