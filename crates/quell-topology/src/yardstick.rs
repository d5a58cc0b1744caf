//! The latency of memory, to tell near from far by.

use std::hint::black_box;

use quell_core::stats::quantile;
use quell_core::tsc;

use crate::clock::now_after_loads;
use crate::tsc_ticks_per_ms;

/// 8-byte words in a page.
const PAGE_WORDS: usize = 512;
/// 8-byte words in a cache line.
const LINE_WORDS: usize = 8;
/// Pages visited per timing.
const PAGES: usize = 128;
/// Timings, of which the median counts.
const REPEATS: usize = 16;
/// Lines visited per page, irregular and far apart, so that no prefetcher follows.
const SLOTS: [usize; 4] = [5, 47, 26, 60];

/// Latency of a load from memory in nanoseconds, without address translation; takes a few milliseconds.
///
/// Two pointer chases through flushed lines are timed, with one line a page and with four. Their difference
/// holds three loads a page and no translation, whose share would be large: guests walk two page tables.
/// `None` without a usable time-stamp counter, or if the machine was too noisy for a positive figure.
#[must_use]
pub fn memory_latency_ns() -> Option<f64> {
    let ticks_per_ms = tsc_ticks_per_ms().ok()?;
    let mut words = vec![0u64; PAGES * PAGE_WORDS];
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let differences: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let pages = shuffled_pages(&mut random);
            let one = chase(&mut words, &pages, 1);
            let four = chase(&mut words, &pages, SLOTS.len());
            (four - one) / ((SLOTS.len() - 1) * PAGES) as f64
        })
        .collect();
    let ticks = quantile(&differences, 0.5)?;
    (ticks > 0.0).then_some(ticks * 1e6 / ticks_per_ms)
}

/// The pages in random order (Fisher-Yates with Marsaglia's xorshift).
fn shuffled_pages(random: &mut u64) -> Vec<usize> {
    let mut pages: Vec<usize> = (0..PAGES).collect();
    for i in (1..PAGES).rev() {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        pages.swap(i, (*random % (i as u64 + 1)) as usize);
    }
    pages
}

/// Duration, in ticks, of visiting `lines` lines of each page in turn, none of them cached.
fn chase(words: &mut [u64], pages: &[usize], lines: usize) -> f64 {
    let visits: Vec<usize> = pages
        .iter()
        .flat_map(|page| SLOTS[..lines].iter().map(move |slot| page * PAGE_WORDS + slot * LINE_WORDS))
        .collect();
    for (i, &word) in visits.iter().enumerate() {
        words[word] = visits[(i + 1) % visits.len()] as u64;
    }
    flush(words);
    let start = now_after_loads();
    let mut word = visits[0];
    for _ in 0..visits.len() {
        word = words[word] as usize;
    }
    black_box(word);
    now_after_loads().since(start).0 as f64
}

/// Removes the words' lines from every cache.
#[allow(unsafe_code)]
fn flush(words: &[u64]) {
    debug_assert!(tsc::available());
    #[cfg(target_arch = "x86_64")]
    for line in words.chunks(LINE_WORDS) {
        // SAFETY: CLFLUSH is part of SSE2, which every x86-64 CPU has; the pointer is to memory that we may
        // read, and flushing does not change its content.
        unsafe { core::arch::x86_64::_mm_clflush(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = words;
    // Orders the flushes before the loads that follow.
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_visited_once() {
        let mut pages = shuffled_pages(&mut 7);
        assert_ne!(pages, (0..PAGES).collect::<Vec<_>>());
        pages.sort_unstable();
        assert_eq!(pages, (0..PAGES).collect::<Vec<_>>());
    }

    #[test]
    fn a_figure_is_positive() {
        match memory_latency_ns() {
            Some(ns) => assert!(ns > 0.0),
            None => println!("skipped: no usable time-stamp counter, or too noisy"),
        }
    }
}
