//! Readers of values on the command line. Each error names what would be right.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use quell_core::CpuId;
use quell_topology::parse_cpu_list;

/// Times longer than this are typing errors, and sums of them may overflow.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// A time such as `500ms` or `1m 30s`; may be zero.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if time > LONGEST => Err("must be shorter than a year".into()),
        Ok(time) => Ok(time),
        Err(error) => Err(format!("{error}; write for example 500ms or 2m")),
    }
}

/// A time that is not zero.
pub(crate) fn positive_time(text: &str) -> Result<Duration, String> {
    match time(text)? {
        Duration::ZERO => Err("must be longer than zero".into()),
        time => Ok(time),
    }
}

/// One of the limits of `--tiers`.
pub(crate) fn percentage(text: &str) -> Result<f64, String> {
    match text.trim().parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("not a percentage; write for example 40,65,85".into()),
    }
}

/// A speed in GB/s.
pub(crate) fn speed(text: &str) -> Result<f64, String> {
    match text.trim().parse() {
        Ok(speed) if (0.01..=1000.0).contains(&speed) => Ok(speed),
        _ => Err("must be 0.01 to 1000 GB/s; write for example 2.5".into()),
    }
}

/// The CPUs of `--cpus`, at least one.
///
/// # Errors
/// What is wrong with the list.
pub(crate) fn cpu_list(text: &str) -> Result<Vec<CpuId>> {
    let cpus = parse_cpu_list(text).context("cannot use --cpus")?;
    if cpus.is_empty() {
        bail!("--cpus names no CPU; write for example 0,2-3");
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_or_refused_with_an_example() {
        assert_eq!(time("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(time("0s"), Ok(Duration::ZERO));
        for bad in ["", "soon", "5", "-1s", "2parsecs"] {
            assert!(time(bad).unwrap_err().contains("500ms"), "{bad}");
        }
        assert!(time("2years").is_err() && time("99999999999999999999s").is_err());
        assert!(positive_time("0ms").is_err());
    }

    #[test]
    fn percentages_are_between_0_and_100() {
        assert_eq!(percentage(" 40.5"), Ok(40.5));
        for bad in ["", "x", "NaN", "inf", "-1", "100.1"] {
            assert!(percentage(bad).is_err(), "{bad}");
        }
    }
}
