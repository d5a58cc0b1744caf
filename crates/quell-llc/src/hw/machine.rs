//! [`Memory`] on the machine itself.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use quell_core::memory::{OwnLoad, PAGE_BYTES};
use quell_core::{Bytes, Line, Memory, Sample, Ticks};

use super::arena::Arena;
use super::crew::Mailbox;
use super::loads;

/// Why the machine's memory cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum HwError {
    /// The operating system gave no memory.
    #[error("cannot map {bytes} of memory for the probe; free some memory or raise this process's limit")]
    Map {
        /// What was asked for.
        bytes: Bytes,
        /// The system's answer.
        #[source]
        source: Errno,
    },
}

/// Real memory on the CPU that the calling thread is pinned to.
#[derive(Debug)]
pub struct HwMemory {
    arena: Arc<Arena>,
    ticks_per_ms: f64,
    proc_stat: Option<File>,
    /// Where a helper on another CPU waits for work.
    pub(super) helper: Option<Arc<Mailbox>>,
}

impl HwMemory {
    /// Maps an arena of `pages` small pages. `ticks_per_ms` is the rate of the time-stamp counter.
    ///
    /// # Errors
    /// [`HwError::Map`] if the memory is not to be had.
    pub fn new(pages: u32, ticks_per_ms: f64) -> Result<Self, HwError> {
        Ok(Self::sharing(Self::map(pages)?, ticks_per_ms))
    }

    /// An arena that several threads can look at.
    pub(super) fn map(pages: u32) -> Result<Arc<Arena>, HwError> {
        let bytes = Bytes(u64::from(pages) * u64::from(PAGE_BYTES));
        Arena::new(pages).map(Arc::new).map_err(|source| HwError::Map { bytes, source })
    }

    /// One thread's view of an arena.
    pub(super) fn sharing(arena: Arc<Arena>, ticks_per_ms: f64) -> Self {
        Self { arena, ticks_per_ms, proc_stat: File::open("/proc/stat").ok(), helper: None }
    }

    /// The same pages for another thread.
    #[must_use]
    pub fn share(&self) -> Self {
        Self::sharing(Arc::clone(&self.arena), self.ticks_per_ms)
    }

    /// The guest-physical page-frame number of each page of the arena; `None` where the kernel does not tell, as
    /// it does only to root (`CAP_SYS_ADMIN`, Documentation/admin-guide/mm/pagemap.rst).
    #[must_use]
    pub fn frames(&self) -> Option<Vec<u64>> {
        let first = self.arena.pointer(Line::new(0, 0)).addr() as u64 / u64::from(PAGE_BYTES);
        let mut entries = vec![0_u8; self.pages() as usize * ENTRY_BYTES];
        let file = File::open("/proc/self/pagemap").ok()?;
        file.read_exact_at(&mut entries, first * ENTRY_BYTES as u64).ok()?;
        entries
            .chunks_exact(ENTRY_BYTES)
            .map(|entry| frame(u64::from_le_bytes(entry.try_into().ok()?)))
            .collect()
    }

    fn sleep_ms(&self, deadline: Ticks) -> f64 {
        deadline.since(quell_core::tsc::now()).0 as f64 / self.ticks_per_ms
    }
}

impl Memory for HwMemory {
    fn pages(&self) -> u32 {
        self.arena.pages()
    }

    fn ticks_per_ms(&self) -> f64 {
        self.ticks_per_ms
    }

    fn now(&mut self) -> Ticks {
        loads::fenced_now()
    }

    fn load(&mut self, lines: &[Line]) {
        loads::load(&self.arena, lines);
    }

    fn load_shared(&mut self, lines: &[Line]) {
        let Some(helper) = &self.helper else { return loads::load(&self.arena, lines) };
        helper.post(lines);
        loads::load(&self.arena, lines);
        helper.wait();
    }

    fn has_helper(&self) -> bool {
        self.helper.is_some()
    }

    fn load_pages(&mut self, pages: &[u32]) {
        loads::load_pages(&self.arena, pages);
    }

    fn chase(&mut self, lines: &[Line]) -> Ticks {
        loads::chase(&self.arena, lines)
    }

    fn flush(&mut self, lines: &[Line]) {
        loads::flush(&self.arena, lines);
    }

    fn time(&mut self, lines: &[Line], out: &mut Vec<Sample>) {
        out.reserve(lines.len());
        for &line in lines {
            out.push(loads::time_one(&self.arena, line));
        }
    }

    fn sleep_until(&mut self, deadline: Ticks) {
        let ms = self.sleep_ms(deadline);
        if ms > 0.0 {
            thread::sleep(Duration::from_secs_f64(ms / 1e3));
        }
    }

    fn spin_until(&mut self, deadline: Ticks) -> Ticks {
        let mut last = quell_core::tsc::now();
        let mut largest = Ticks(0);
        while last < deadline {
            let now = quell_core::tsc::now();
            largest = largest.max(now.since(last));
            last = now;
        }
        largest
    }

    fn cpu_ms(&mut self) -> f64 {
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
            .map_or(0.0, |time| Duration::from(time).as_secs_f64() * 1e3)
    }

    fn involuntary_switches(&mut self) -> u64 {
        getrusage(UsageWho::RUSAGE_THREAD)
            .map_or(0, |usage| u64::try_from(usage.involuntary_context_switches()).unwrap_or(0))
    }

    fn own_load(&mut self) -> Option<OwnLoad> {
        let mut buffer = [0_u8; 256];
        let length = self.proc_stat.as_ref()?.read_at(&mut buffer, 0).ok()?;
        let busy_ms = busy_ms_of_proc_stat(std::str::from_utf8(&buffer[..length]).ok()?)?;
        Some(OwnLoad { busy_ms: (busy_ms - self.cpu_ms()).max(0.0), step_ms: STAT_STEP_MS })
    }
}

/// Size of an entry of `/proc/self/pagemap`.
const ENTRY_BYTES: usize = 8;

/// The frame number in an entry of `/proc/self/pagemap`: bits 0 to 54 if bit 63 says that the page is present. Zero
/// stands for "not told".
fn frame(entry: u64) -> Option<u64> {
    let frame = entry & ((1 << 55) - 1);
    (entry >> 63 == 1 && frame != 0).then_some(frame)
}

/// `/proc/stat` counts in units of 1/`USER_HZ`, which is 100 on every Linux architecture we run on (proc(5)).
const STAT_STEP_MS: f64 = 10.0;

/// CPU time spent running anything, from the first line of `/proc/stat`; idle, I/O wait and steal excluded
/// (guest time is already part of user time, proc(5)).
fn busy_ms_of_proc_stat(text: &str) -> Option<f64> {
    let line = text.lines().next()?;
    let mut fields = line.strip_prefix("cpu ")?.split_ascii_whitespace();
    let mut next = || fields.next()?.parse::<u64>().ok();
    let (user, nice, system) = (next()?, next()?, next()?);
    let (_idle, _iowait) = (next()?, next()?);
    let (irq, softirq) = (next()?, next()?);
    Some((user + nice + system + irq + softirq) as f64 * STAT_STEP_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_leaves_out_idle_iowait_and_steal() {
        let text = "cpu  10 1 20 5000 300 2 3 77 0 0\ncpu0 1 2 3\n";
        assert_eq!(busy_ms_of_proc_stat(text), Some(360.0));
        assert_eq!(busy_ms_of_proc_stat("cpu0 1 2 3 4 5 6 7"), None);
        assert_eq!(busy_ms_of_proc_stat("cpu 1 2"), None);
        assert_eq!(busy_ms_of_proc_stat(""), None);
    }

    #[test]
    fn a_frame_is_told_only_of_a_present_page() {
        assert_eq!(frame(1 << 63 | 0x1234), Some(0x1234));
        assert_eq!(frame(1 << 63 | 1 << 62 | 0x1234), Some(0x1234));
        assert_eq!(frame(0x1234), None);
        assert_eq!(frame(1 << 63), None);
    }

    #[test]
    fn every_line_of_the_arena_can_be_loaded_timed_and_flushed() {
        let mut memory = HwMemory::new(16, 2.5e6).unwrap();
        let lines: Vec<Line> =
            (0..16).flat_map(|page| (0..64).map(move |slot| Line::new(page, slot))).collect();
        memory.load(&lines);
        let mut samples = Vec::new();
        memory.time(&lines, &mut samples);
        assert_eq!(samples.len(), lines.len());
        memory.flush(&lines);
        assert!(memory.chase(&lines) > Ticks(0));
    }

    #[test]
    #[should_panic(expected = "outside of the arena")]
    fn a_line_outside_of_the_arena_is_refused() {
        HwMemory::new(1, 2.5e6).unwrap().load(&[Line::new(1, 0)]);
    }
}
