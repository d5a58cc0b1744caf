//! How much of the LLC we can hold: reads more and more memory and looks how much of it is still cached.
//!
//! A working set larger than the cache fills it; what is then found of it is what the cache holds for us
//! against everybody else. Single loads with warm translations are sampled, since guest memory in small
//! pages outgrows the TLB long before it outgrows the cache and would look like a cache edge.

use quell_core::memory::{LINES_PER_PAGE, PAGE_BYTES};
use quell_core::{Bytes, Line, Memory, Sample, Ticks};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::calibrate::Discriminator;

/// The amount that can be held, a range over repetitions, or why it is not known.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Usable {
    /// From the least to the most held in any repetition, in bytes.
    Range {
        /// Least.
        lo: u64,
        /// Most.
        hi: u64,
    },
    /// Not determined.
    Unknown {
        /// Always `null`.
        value: Option<u64>,
        /// Why.
        reason: String,
    },
}

impl Usable {
    /// Not determined, and why.
    pub fn unknown(reason: impl Into<String>) -> Self {
        Self::Unknown { value: None, reason: reason.into() }
    }
}

/// Repetitions of the whole series; host neighbors change from one to the next.
pub const REPETITIONS: usize = 8;
/// Passes over the working set: lines read only once are kept badly.
const PASSES: usize = 3;
/// Working sets as multiples of the advertised size.
const SIZES: [f64; 7] = [0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0];
/// Sampled lines per working set.
const SAMPLES: usize = 1000;
/// Pause after reading, until the memory pipeline has drained, in ms.
const DRAIN_MS: f64 = 0.02;
/// The largest working set must reach this multiple of the advertised size to find its end.
const ENOUGH: f64 = 1.4;

/// Pages an arena should have to measure an LLC of `advertised` bytes; with less than 0.7 of
/// them, there is no answer.
#[must_use]
pub fn pages(advertised: Bytes) -> u32 {
    u32::try_from(2 * advertised.0 / u64::from(PAGE_BYTES)).unwrap_or(u32::MAX / LINES_PER_PAGE)
}

/// Measures how much of an LLC of `advertised` bytes can be held. `keep_on` is asked between steps of some ms.
pub fn usable(
    memory: &mut impl Memory,
    limits: Discriminator,
    advertised: Bytes,
    l2: Bytes,
    seed: u64,
    mut keep_on: impl FnMut() -> bool,
) -> Usable {
    let work_pages = memory.pages();
    let l2_pages = (l2.0 / u64::from(PAGE_BYTES)) as usize;
    let advertised_pages = advertised.0 as f64 / f64::from(PAGE_BYTES);
    if f64::from(work_pages) < advertised_pages * ENOUGH {
        return Usable::unknown(format!(
            "filling an LLC of {advertised} takes {:.0} MiB, and only {} MiB may be used",
            advertised_pages * ENOUGH / 256.0,
            work_pages / 256
        ));
    }
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut held = Vec::new();
    for _ in 0..REPETITIONS {
        let mut most = 0.0_f64;
        let mut sizes = SIZES;
        sizes.shuffle(&mut rng);
        for size in sizes {
            if !keep_on() {
                return Usable::unknown("interrupted");
            }
            let count = ((advertised_pages * size) as usize).clamp(1, work_pages as usize);
            if let Some(pages) = resident(memory, limits, count, l2_pages, &mut rng) {
                most = most.max(pages * f64::from(PAGE_BYTES));
            }
        }
        held.push(most);
    }
    let lo = held.iter().copied().fold(f64::INFINITY, f64::min);
    let hi = held.iter().copied().fold(0.0, f64::max);
    if hi == 0.0 {
        return Usable::unknown("every sample was interrupted");
    }
    Usable::Range { lo: lo as u64, hi: hi as u64 }
}

/// Pages' worth of memory in the LLC after reading `count` random pages several times. The pages read last are
/// in the L2 and do not count.
fn resident(
    memory: &mut impl Memory,
    limits: Discriminator,
    count: usize,
    l2_pages: usize,
    rng: &mut Xoshiro256PlusPlus,
) -> Option<f64> {
    let mut pages: Vec<u32> = (0..memory.pages()).collect();
    let (pages, _) = pages.partial_shuffle(rng, count);
    for _ in 0..PASSES {
        memory.load_pages(pages);
    }
    let drained = memory.now() + Ticks((DRAIN_MS * memory.ticks_per_ms()) as u64);
    memory.spin_until(drained);
    let older = &pages[..count.saturating_sub(l2_pages)];
    if older.is_empty() {
        return None;
    }
    let lines: Vec<Line> = (0..SAMPLES)
        .map(|_| Line::new(older[rng.random_range(0..older.len())], rng.random_range(0..LINES_PER_PAGE)))
        .collect();
    let mut samples: Vec<Sample> = Vec::with_capacity(SAMPLES);
    memory.time(&lines, &mut samples);
    Some((1.0 - limits.count(&samples).miss_share()?) * older.len() as f64)
}
