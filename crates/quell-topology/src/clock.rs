//! The time-stamp counter as a clock: its rate, deadlines, and ordered readings.

use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use quell_core::{Ticks, tsc};

use crate::Error;

/// How long the rate is measured.
const CALIBRATION: Duration = Duration::from_millis(25);

/// The rate of the time-stamp counter in ticks per millisecond, measured once per process against
/// `CLOCK_MONOTONIC_RAW` (the first call sleeps about 25 ms).
///
/// # Errors
/// [`Error::NoTsc`] on other architectures than x86-64, [`Error::TscRate`] if the counter stands still or
/// jumps, [`Error::Clock`] if the kernel's clock cannot be read.
pub fn tsc_ticks_per_ms() -> Result<f64, Error> {
    static RATE: OnceLock<f64> = OnceLock::new();
    if let Some(rate) = RATE.get() {
        return Ok(*rate);
    }
    let measured = measure_rate()?;
    Ok(*RATE.get_or_init(|| measured))
}

fn measure_rate() -> Result<f64, Error> {
    if !tsc::available() {
        return Err(Error::NoTsc);
    }
    let (start_ticks, start) = read_both()?;
    thread::sleep(CALIBRATION);
    let (end_ticks, end) = read_both()?;
    let ms = end.saturating_sub(start).as_secs_f64() * 1e3;
    let ticks_per_ms = end_ticks.since(start_ticks).0 as f64 / ms;
    if ms >= 20.0 && (1e4..1e8).contains(&ticks_per_ms) {
        Ok(ticks_per_ms)
    } else {
        Err(Error::TscRate { ticks_per_ms })
    }
}

/// Both clocks at the same moment: of several tries the one with the least time in between, because the
/// thread may lose its CPU between the readings.
fn read_both() -> Result<(Ticks, Duration), Error> {
    let mut best: Option<(Ticks, Ticks, Duration)> = None;
    for _ in 0..16 {
        let before = tsc::now();
        let raw = clock_gettime(ClockId::CLOCK_MONOTONIC_RAW).map_err(|source| Error::Clock { source })?;
        let width = tsc::now().since(before);
        if best.is_none_or(|(narrowest, ..)| width < narrowest) {
            best = Some((width, Ticks(before.0 + width.0 / 2), Duration::from(raw)));
        }
    }
    let (_, ticks, raw) = best.expect("the loop ran");
    Ok((ticks, raw))
}

/// The counter's value `wait` from now, as a deadline for a wait.
///
/// # Errors
/// As [`tsc_ticks_per_ms`].
pub fn deadline_in(wait: Duration) -> Result<Ticks, Error> {
    let ticks = wait.as_secs_f64() * 1e3 * tsc_ticks_per_ms()?;
    Ok(tsc::now() + Ticks(ticks as u64))
}

/// Reads the counter after all earlier loads have completed, so that a reading cannot slip before the load
/// that ended a wait.
#[inline]
#[allow(unsafe_code)]
pub(crate) fn now_after_loads() -> Ticks {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: LFENCE is part of SSE2, which every x86-64 CPU has, and touches no memory.
    unsafe {
        core::arch::x86_64::_mm_lfence();
    }
    tsc::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_plausible_and_stays_the_same() {
        if !tsc::available() {
            println!("skipped: this build has no time-stamp counter");
            return;
        }
        let rate = tsc_ticks_per_ms().unwrap();
        assert!((1e4..1e8).contains(&rate));
        assert_eq!(tsc_ticks_per_ms().unwrap().to_bits(), rate.to_bits());
        assert!(deadline_in(Duration::from_secs(1)).unwrap() > tsc::now());
    }
}
