//! The loops that touch, time and flush cache lines. Straight assembly where the order matters.
#![allow(unsafe_code)]
#![cfg(target_arch = "x86_64")]

use core::arch::asm;
use core::arch::x86_64::{_mm_clflush, _mm_lfence, _mm_mfence};

use quell_core::memory::{LINE_BYTES, PAGE_BYTES};
use quell_core::{Line, Sample, Ticks};

use super::arena::Arena;

/// The time-stamp counter after all earlier instructions have completed.
#[inline]
pub(super) fn fenced_now() -> Ticks {
    let (low, high): (u32, u32);
    // SAFETY: MFENCE, LFENCE and RDTSC have no effect on memory or registers other than those named.
    unsafe {
        asm!("mfence", "lfence", "rdtsc", "lfence", out("eax") low, out("edx") high, options(nostack));
    }
    Ticks(u64::from(high) << 32 | u64::from(low))
}

/// Loads the lines in order; the loads may overlap.
pub(super) fn load(arena: &Arena, lines: &[Line]) {
    for &line in lines {
        // SAFETY: `pointer` checked that the line is inside of the arena, which is readable.
        unsafe {
            asm!("mov {0:e}, dword ptr [{0}]", inout(reg) arena.pointer(line) => _, options(nostack, readonly));
        }
    }
    // SAFETY: a fence has no precondition.
    unsafe { _mm_lfence() };
}

/// Loads every line of the pages in order; the loads may overlap.
pub(super) fn load_pages(arena: &Arena, pages: &[u32]) {
    for &page in pages {
        let start = arena.pointer(Line::new(page, 0));
        for offset in (0..PAGE_BYTES as usize).step_by(LINE_BYTES as usize) {
            // SAFETY: `pointer` checked that the page is inside of the arena; the offset stays in the page.
            unsafe {
                asm!("mov {0:e}, dword ptr [{0}]", inout(reg) start.add(offset) => _, options(nostack, readonly));
            }
        }
    }
    // SAFETY: a fence has no precondition.
    unsafe { _mm_lfence() };
}

/// Loads the lines in order, each address depending on the value loaded before; returns the duration.
pub(super) fn chase(arena: &Arena, lines: &[Line]) -> Ticks {
    let start = fenced_now();
    // The arena holds zeros only, so adding the loaded value keeps the address and makes it dependent.
    let mut zero = 0_u64;
    for &line in lines {
        // SAFETY: the arena is all zeros, so `zero` is 0 and the address is that of a line inside of it.
        unsafe {
            asm!("mov {zero}, qword ptr [{line} + {zero}]", zero = inout(reg) zero,
                 line = in(reg) arena.pointer(line), options(nostack, readonly, pure));
        }
    }
    core::hint::black_box(zero);
    fenced_now().since(start)
}

/// Removes the lines from every cache.
pub(super) fn flush(arena: &Arena, lines: &[Line]) {
    for &line in lines {
        // SAFETY: CLFLUSH needs a readable address, and `pointer` checked that the line is in the arena.
        unsafe { _mm_clflush(arena.pointer(line)) };
    }
    // SAFETY: a fence has no precondition; MFENCE orders the flushes before later loads.
    unsafe { _mm_mfence() };
}

/// Times one load after its page's translation has been loaded and earlier loads have drained.
#[inline]
pub(super) fn time_one(arena: &Arena, line: Line) -> Sample {
    let (start, end, cpu_start, cpu_end): (u64, u64, u32, u32);
    // SAFETY: both addresses are inside of the arena (checked by `pointer`) and only read. RDTSCP exists
    // (checked when the memory was made), waits for earlier loads and gives the CPU number in ECX.
    unsafe {
        asm!(
            "mov {scratch:e}, dword ptr [{warm}]",
            "mfence",
            "lfence",
            "rdtscp",
            "lfence",
            "mov {cpu_start:e}, ecx",
            "shl rdx, 32",
            "or rax, rdx",
            "mov {start}, rax",
            "mov {scratch:e}, dword ptr [{line}]",
            "rdtscp",
            "lfence",
            "shl rdx, 32",
            "or rax, rdx",
            warm = in(reg) arena.pointer(line.far_neighbor()),
            line = in(reg) arena.pointer(line),
            scratch = out(reg) _,
            start = out(reg) start,
            cpu_start = out(reg) cpu_start,
            out("rax") end,
            out("rdx") _,
            out("ecx") cpu_end,
            options(nostack, readonly),
        );
    }
    let ticks = end.saturating_sub(start).min(u64::from(u32::MAX)) as u32;
    Sample { ticks, migrated: cpu_start != cpu_end }
}
