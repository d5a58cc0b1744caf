//! Memory and system calls of the workload.

#![allow(unsafe_code)]

use std::io;
use std::num::NonZeroUsize;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use nix::unistd::Pid;

use crate::{MigrateError, Result};

/// Size of the pages that are moved, in bytes.
pub const PAGE_BYTES: usize = 4096;
const WORDS: usize = PAGE_BYTES / 8;

const MPOL_BIND: libc::c_int = 2;
const MPOL_MF_MOVE: libc::c_int = 1 << 1;

/// Anonymous pages of 4 KiB, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<libc::c_void>,
    pages: usize,
}

// SAFETY: the region is plain memory that this value alone owns; nothing in it is tied to a thread.
unsafe impl Send for Region {}

impl Region {
    /// Maps `pages` pages that huge pages will not replace; nothing is allocated yet.
    pub(crate) fn new(pages: usize) -> Result<Self> {
        let failed = |call| move |errno: nix::Error| MigrateError::Syscall { call, source: errno.into() };
        let length = NonZeroUsize::new(pages * PAGE_BYTES)
            .ok_or_else(|| MigrateError::BadPlan { reason: String::from("a batch of zero pages") })?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a new private mapping at an address of the kernel's choice touches no existing memory.
        let start =
            unsafe { mmap_anonymous(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags) }
                .map_err(failed("mmap"))?;
        let region = Self { start, pages };
        // Kernels without huge pages refuse the advice, and need none.
        // SAFETY: the advice covers exactly this mapping and does not change its content.
        let _ = unsafe { madvise(region.start, length.get(), MmapAdvise::MADV_NOHUGEPAGE) };
        Ok(region)
    }

    /// Lets the pages be allocated on this node only.
    pub(crate) fn bind(&self, node: u32) -> Result<()> {
        let mut mask = [0_u64; 16];
        let word = mask.get_mut(node as usize / 64).ok_or_else(|| MigrateError::BadPlan {
            reason: format!("node {node} is beyond the 1024 that Linux has"),
        })?;
        *word |= 1 << (node % 64);
        let bits = mask.len() * 64;
        // SAFETY: the range is this mapping, and the mask is a live array of `bits` bits.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.start.as_ptr(),
                self.pages * PAGE_BYTES,
                MPOL_BIND,
                mask.as_ptr(),
                bits,
                0,
            )
        };
        if result == 0 { Ok(()) } else { Err(last_error("mbind")) }
    }

    /// Writes every page full of words that depend on page, place and `seed`.
    pub(crate) fn fill(&mut self, seed: u64) {
        for page in 0..self.pages {
            for word in 0..WORDS {
                self.write(page, word, pattern(seed, page, word));
            }
        }
    }

    /// Counts the pages whose content is not what [`Region::fill`] wrote with this seed.
    pub(crate) fn wrong_pages(&self, seed: u64) -> u32 {
        let wrong =
            |page: &usize| (0..WORDS).any(|word| self.read(*page, word) != pattern(seed, *page, word));
        (0..self.pages).filter(wrong).count() as u32
    }

    /// Overwrites one word in every fourth page, reads it back and restores it; returns the pages where that failed.
    pub(crate) fn failed_writes(&mut self, seed: u64) -> u32 {
        let mut failed = 0;
        for page in (0..self.pages).step_by(4) {
            let (word, old) = (page % WORDS, pattern(seed, page, page % WORDS));
            self.write(page, word, !old);
            failed += u32::from(self.read(page, word) != !old);
            self.write(page, word, old);
        }
        failed
    }

    fn address(&self, page: usize, word: usize) -> *mut u64 {
        assert!(page < self.pages && word < WORDS, "access outside the region");
        // SAFETY: just checked to be inside the mapping.
        unsafe { self.start.as_ptr().cast::<u64>().add(page * WORDS + word) }
    }

    fn read(&self, page: usize, word: usize) -> u64 {
        // SAFETY: inside the mapping and aligned. Volatile, because the kernel exchanges the page below us
        // and the compiler must not answer from what it knows was written.
        unsafe { ptr::read_volatile(self.address(page, word)) }
    }

    fn write(&mut self, page: usize, word: usize, value: u64) {
        // SAFETY: inside the mapping, aligned and writable.
        unsafe { ptr::write_volatile(self.address(page, word), value) }
    }

    /// Prepares a `move_pages` call on the first `pages` pages of this region.
    pub(crate) fn call(&self, target: Option<u32>) -> MoveCall<'_> {
        let addresses = (0..self.pages).map(|page| self.address(page, 0).cast()).collect();
        let nodes = target.map(|node| vec![node.cast_signed(); self.pages]);
        MoveCall { addresses, nodes, status: vec![libc::c_int::MIN; self.pages], _region: self }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing that points into it outlives `self`.
        let _ = unsafe { munmap(self.start, self.pages * PAGE_BYTES) };
    }
}

fn pattern(seed: u64, page: usize, word: usize) -> u64 {
    (seed ^ ((page as u64) << 32) ^ word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The arguments of one `move_pages` call, built before the clock starts.
#[derive(Debug)]
pub(crate) struct MoveCall<'a> {
    addresses: Vec<*mut libc::c_void>,
    nodes: Option<Vec<libc::c_int>>,
    status: Vec<libc::c_int>,
    _region: &'a Region,
}

impl MoveCall<'_> {
    /// Makes the call and returns how long it took. The status of each page is then a node, or a negative
    /// error number.
    pub(crate) fn make(&mut self) -> Result<Duration> {
        let nodes = self.nodes.as_ref().map_or(ptr::null(), Vec::as_ptr);
        let (count, addresses, status) =
            (self.addresses.len(), self.addresses.as_ptr(), self.status.as_mut_ptr());
        let start = Instant::now();
        // SAFETY: the three arrays have `count` elements (or `nodes` is null, which asks where the pages are)
        // and live across the call. The kernel only moves pages of this process, keeping their content.
        let result =
            unsafe { libc::syscall(libc::SYS_move_pages, 0, count, addresses, nodes, status, MPOL_MF_MOVE) };
        let took = start.elapsed();
        // A positive result counts pages that were not moved; each has its own status.
        if result < 0 { Err(last_error("move_pages")) } else { Ok(took) }
    }

    pub(crate) fn status(&self) -> &[libc::c_int] {
        &self.status
    }
}

fn last_error(call: &'static str) -> MigrateError {
    MigrateError::Syscall { call, source: io::Error::last_os_error() }
}

/// The CPUs that this thread may run on, in ascending order.
pub(crate) fn allowed_cpus() -> Result<Vec<u32>> {
    let set = sched_getaffinity(Pid::from_raw(0))
        .map_err(|errno| MigrateError::Syscall { call: "sched_getaffinity", source: errno.into() })?;
    Ok((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).map(|cpu| cpu as u32).collect())
}

/// Pins this thread to some CPUs.
pub(crate) fn pin(cpus: &[u32]) -> Result<()> {
    let failed =
        |errno: nix::Error| MigrateError::Syscall { call: "sched_setaffinity", source: errno.into() };
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu as usize).map_err(failed)?;
    }
    sched_setaffinity(Pid::from_raw(0), &set).map_err(failed)
}

/// Time to fault in and fill one fresh page from another, per page: what a copy costs here at least.
pub(crate) fn fault_and_copy(pages: usize) -> Result<Duration> {
    let mut from = Region::new(pages)?;
    from.fill(1);
    let to = Region::new(pages)?;
    let start = Instant::now();
    // SAFETY: both mappings have this length, are valid, and do not overlap.
    unsafe { ptr::copy_nonoverlapping(from.address(0, 0), to.address(0, 0), pages * WORDS) };
    Ok(start.elapsed() / pages as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_word_and_only_its_page_is_noticed() {
        let mut region = Region::new(9).unwrap();
        region.fill(7);
        assert_eq!(region.wrong_pages(7), 0);
        assert_eq!(region.failed_writes(7), 0);
        assert_eq!(region.wrong_pages(7), 0);
        region.write(8, WORDS - 1, 0);
        assert_eq!(region.wrong_pages(7), 1);
        assert_eq!(region.wrong_pages(8), 9);
    }

    #[test]
    fn zero_pages_and_a_node_beyond_all_are_refused() {
        assert!(matches!(Region::new(0), Err(MigrateError::BadPlan { .. })));
        assert!(matches!(Region::new(1).unwrap().bind(5000), Err(MigrateError::BadPlan { .. })));
    }
}
