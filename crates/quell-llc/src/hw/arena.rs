//! A private anonymous mapping of 4 KiB pages, present in memory from the start.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use quell_core::Line;
use quell_core::memory::PAGE_BYTES;

/// Pages of zeros that belong to this value alone and are never written after creation.
///
/// Loads therefore always yield zero, which the dependent-load loop relies on for its addresses.
#[derive(Debug)]
pub(super) struct Arena {
    start: NonNull<c_void>,
    pages: u32,
}

// SAFETY: the mapping is owned by the value alone and only ever read, so it may move between threads.
unsafe impl Send for Arena {}
// SAFETY: nothing writes to the mapping after `new`, and reading from several threads is no race.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `pages` small pages and touches each, so that every page has memory of its own.
    pub(super) fn new(pages: u32) -> Result<Self, Errno> {
        let bytes = pages as usize * PAGE_BYTES as usize;
        let length = NonZeroUsize::new(bytes).ok_or(Errno::EINVAL)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice overlaps nothing of ours.
        let start = unsafe { mmap_anonymous(None, length, protection, MapFlags::MAP_PRIVATE) }?;
        let arena = Self { start, pages };
        // SAFETY: the range is exactly the mapping just made. A kernel without huge pages answers EINVAL,
        // and then pages are small anyway.
        let _ = unsafe { madvise(start, bytes, MmapAdvise::MADV_NOHUGEPAGE) };
        for page in 0..pages {
            // SAFETY: inside the mapping. Writing makes the kernel give the page its own memory instead of
            // the shared zero page.
            unsafe { arena.pointer(Line::new(page, 0)).cast_mut().write_volatile(0) };
        }
        Ok(arena)
    }

    pub(super) fn pages(&self) -> u32 {
        self.pages
    }

    /// Address of the first byte of `line`.
    ///
    /// # Panics
    /// If the line is outside of the arena: timed loops must not read foreign memory.
    #[inline]
    pub(super) fn pointer(&self, line: Line) -> *const u8 {
        assert!(line.page() < self.pages, "line {line:?} lies outside of the arena of {} pages", self.pages);
        // SAFETY: the offset is inside of the mapping, as just checked.
        unsafe { self.start.as_ptr().cast::<u8>().cast_const().add(line.offset()) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let bytes = self.pages as usize * PAGE_BYTES as usize;
        // SAFETY: unmaps exactly the mapping that this value owns; no pointer into it outlives the value.
        let _ = unsafe { munmap(self.start, bytes) };
    }
}
