//! The time-stamp counter. On other architectures than x86-64 there is none and [`now`] returns zero;
//! callers must ask [`available`] first.

use crate::Ticks;

/// Whether this build can read a time-stamp counter at all.
#[must_use]
pub const fn available() -> bool {
    cfg!(target_arch = "x86_64")
}

/// Reads the counter without ordering it against surrounding instructions (≈ 10 ns).
#[inline]
#[must_use]
#[allow(unsafe_code)]
pub fn now() -> Ticks {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: RDTSC reads a counter and has no other effect. It can only fault if the kernel forbids it
    // with PR_SET_TSC, which then kills the process by a signal; memory safety is not at stake.
    let ticks = unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    let ticks = 0;
    Ticks(ticks)
}
