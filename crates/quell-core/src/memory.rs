//! The memory that an algorithm measures: an arena of pages on a vCPU, real or simulated.
//!
//! The operations are batches, so that real hardware can run each in one tight loop and the simulator can
//! replay it access by access. Every algorithm of the cache pillar is written against [`Memory`] alone:
//! its accuracy is tested on the simulator, its reality on hardware.

use crate::Ticks;

/// Size of a cache line on every supported CPU, in bytes.
pub const LINE_BYTES: u32 = 64;
/// Size of a page, in bytes. The arena consists of whole pages whose host-physical addresses are unrelated.
pub const PAGE_BYTES: u32 = 4096;
/// Cache lines in a page.
pub const LINES_PER_PAGE: u32 = PAGE_BYTES / LINE_BYTES;

/// A cache line of an arena, named by its index from the start of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line(u32);

impl Line {
    /// The line number `slot` (below [`LINES_PER_PAGE`], wraps) of page `page`.
    #[must_use]
    pub const fn new(page: u32, slot: u32) -> Self {
        Self(page * LINES_PER_PAGE + slot % LINES_PER_PAGE)
    }

    /// The page of the arena that holds this line.
    #[must_use]
    pub const fn page(self) -> u32 {
        self.0 / LINES_PER_PAGE
    }

    /// The line's place in its page, below [`LINES_PER_PAGE`].
    #[must_use]
    pub const fn slot(self) -> u32 {
        self.0 % LINES_PER_PAGE
    }

    /// Byte offset from the start of the arena.
    #[must_use]
    pub const fn offset(self) -> usize {
        self.0 as usize * LINE_BYTES as usize
    }

    /// The line of the same page, half a page away: touching it loads the page's translation and is far
    /// enough not to make a prefetcher fetch `self`.
    #[must_use]
    pub const fn far_neighbor(self) -> Self {
        Self::new(self.page(), self.slot() ^ (LINES_PER_PAGE / 2))
    }
}

/// One timed load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Duration of the load with the timing overhead, in TSC ticks.
    pub ticks: u32,
    /// The CPU number changed during the load, so the duration means nothing.
    pub migrated: bool,
}

/// How busy our own virtual machine was, the caller's measuring thread excluded.
///
/// Both are running totals since an arbitrary start; the difference of two readings describes an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OwnLoad {
    /// CPU time spent by everything in this VM, summed over its vCPUs, in milliseconds.
    pub busy_ms: f64,
    /// The finest step in which `busy_ms` moves, in milliseconds (10 on most kernels).
    pub step_ms: f64,
}

/// Memory and clock of one vCPU.
///
/// Implementations: real memory in `quell-llc`, simulated memory in `quell-cachesim`. Lines must lie in
/// the arena (`line.page() < self.pages()`); anything else is a bug in the caller and panics.
pub trait Memory {
    /// Pages in the arena.
    fn pages(&self) -> u32;

    /// Rate of the time-stamp counter, in ticks per millisecond.
    fn ticks_per_ms(&self) -> f64;

    /// Time now, after all earlier loads have completed.
    fn now(&mut self) -> Ticks;

    /// Loads the lines in this order. Loads may overlap (memory-level parallelism); returns when the last
    /// has completed.
    fn load(&mut self, lines: &[Line]);

    /// Loads the lines, and lets a helper on another vCPU of the same LLC load them too, if there is one. A
    /// non-inclusive LLC holds what two cores have read, and may not hold what one core has.
    fn load_shared(&mut self, lines: &[Line]) {
        self.load(lines);
    }

    /// Whether there is a helper.
    fn has_helper(&self) -> bool {
        false
    }

    /// Loads every line of the pages, page by page in this order, ascending within a page; like [`Self::load`].
    fn load_pages(&mut self, pages: &[u32]) {
        for &page in pages {
            let lines: [Line; LINES_PER_PAGE as usize] =
                std::array::from_fn(|slot| Line::new(page, slot as u32));
            self.load(&lines);
        }
    }

    /// Loads the lines in this order, each address depending on the load before, and returns the duration.
    fn chase(&mut self, lines: &[Line]) -> Ticks;

    /// Removes the lines from every cache of the machine.
    fn flush(&mut self, lines: &[Line]);

    /// Times each line by itself, in this order, and appends one sample a line to `out`.
    ///
    /// Before the clock starts, the page's translation is loaded through [`Line::far_neighbor`] and earlier
    /// loads have completed, so a sample holds neither a TLB miss nor queueing.
    fn time(&mut self, lines: &[Line], out: &mut Vec<Sample>);

    /// Waits until `deadline` with the CPU given up (the vCPU may idle, others may run on it).
    fn sleep_until(&mut self, deadline: Ticks);

    /// Waits until `deadline` without giving up the CPU and returns the largest gap between two readings
    /// of the clock: time that was taken from the vCPU.
    fn spin_until(&mut self, deadline: Ticks) -> Ticks;

    /// CPU time that the calling thread has used so far, in milliseconds.
    fn cpu_ms(&mut self) -> f64;

    /// How often the kernel has taken the CPU from the calling thread against its will so far.
    fn involuntary_switches(&mut self) -> u64;

    /// How much the rest of this VM has run so far; `None` where that cannot be read.
    fn own_load(&mut self) -> Option<OwnLoad>;
}

impl<M: Memory + ?Sized> Memory for &mut M {
    fn pages(&self) -> u32 {
        (**self).pages()
    }

    fn ticks_per_ms(&self) -> f64 {
        (**self).ticks_per_ms()
    }

    fn now(&mut self) -> Ticks {
        (**self).now()
    }

    fn load(&mut self, lines: &[Line]) {
        (**self).load(lines);
    }

    fn load_shared(&mut self, lines: &[Line]) {
        (**self).load_shared(lines);
    }

    fn has_helper(&self) -> bool {
        (**self).has_helper()
    }

    fn load_pages(&mut self, pages: &[u32]) {
        (**self).load_pages(pages);
    }

    fn chase(&mut self, lines: &[Line]) -> Ticks {
        (**self).chase(lines)
    }

    fn flush(&mut self, lines: &[Line]) {
        (**self).flush(lines);
    }

    fn time(&mut self, lines: &[Line], out: &mut Vec<Sample>) {
        (**self).time(lines, out);
    }

    fn sleep_until(&mut self, deadline: Ticks) {
        (**self).sleep_until(deadline);
    }

    fn spin_until(&mut self, deadline: Ticks) -> Ticks {
        (**self).spin_until(deadline)
    }

    fn cpu_ms(&mut self) -> f64 {
        (**self).cpu_ms()
    }

    fn involuntary_switches(&mut self) -> u64 {
        (**self).involuntary_switches()
    }

    fn own_load(&mut self) -> Option<OwnLoad> {
        (**self).own_load()
    }
}

/// Several vCPUs of one LLC at work on the same arena, each of them a [`Memory`].
pub trait Crew {
    /// How many work side by side, at least one.
    fn members(&self) -> usize;

    /// Does the jobs, each on the member that is free first, and returns the results in the order of the jobs.
    /// A single job is always done by the same member.
    fn run<J: Send, R: Send>(
        &mut self,
        jobs: Vec<J>,
        work: &(dyn Fn(&mut &mut dyn Memory, J) -> R + Sync),
    ) -> Vec<R>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_knows_its_page_slot_and_offset() {
        let line = Line::new(3, 17);
        assert_eq!((line.page(), line.slot()), (3, 17));
        assert_eq!(line.offset(), 3 * 4096 + 17 * 64);
    }

    #[test]
    fn the_far_neighbor_is_half_a_page_away_in_the_same_page() {
        for slot in 0..LINES_PER_PAGE {
            let line = Line::new(7, slot);
            let far = line.far_neighbor();
            assert_eq!(far.page(), 7);
            assert_eq!(far.offset().abs_diff(line.offset()), 2048);
        }
    }
}
