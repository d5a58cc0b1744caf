//! Is it us or a neighbor? Compares windows during which our own VM was idle with those while it was busy.
//!
//! The pressure of a window is the Weibull rate λ that its lost share stands for. Rates add up: twice the
//! insertions evict twice as fast. With `quiet` and `busy` the mean pressures of the two groups and f the
//! share of a period in which our VM was busy, our part of the period's pressure is
//! f·(busy − quiet) / (quiet + f·(busy − quiet)).

use std::collections::VecDeque;

use quell_core::stats::jackknife::jackknife;
use serde::Serialize;

/// Who evicts our lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Other tenants of the host.
    Outside,
    /// Our own VM.
    Own,
    /// Both, neither below a quarter.
    Mixed,
    /// It cannot be told.
    Unknown,
}

impl Source {
    /// The name as it appears in every output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Outside => "outside",
            Self::Own => "own",
            Self::Mixed => "mixed",
            Self::Unknown => "unknown",
        }
    }
}

/// A source with the grounds for it, in words for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Who.
    pub source: Source,
    /// Why we think so.
    pub grounds: String,
}

impl Verdict {
    /// It cannot be told, and why.
    pub fn unknown(grounds: impl Into<String>) -> Self {
        Self { source: Source::Unknown, grounds: grounds.into() }
    }
}

/// What attribution needs to know of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadedWindow {
    /// CPUs' worth of other work that our VM did around the window (1.0 = one vCPU all the time).
    pub own_cpus: f64,
    /// Exposure in ms.
    pub exposure_ms: f64,
    /// Share lost by waiting, 0 to 1.
    pub share: f64,
}

/// Below this our VM counts as idle, from the other on as busy; windows between are left out.
const QUIET_CPUS: f64 = 0.15;
const BUSY_CPUS: f64 = 0.5;
/// Windows kept for comparison: about ten periods.
const MEMORY: usize = 160;
/// Each group needs as many windows as this before anything is said.
const ENOUGH: usize = 6;
/// Parts from which a source is named alone.
const ALONE: f64 = 0.75;
/// Shares beyond these hold no more information about the rate.
const SHARE_LIMITS: [f64; 2] = [0.002, 0.998];

/// Remembers recent windows and labels each period.
#[derive(Clone, Debug, Default)]
pub struct Attribution {
    recent: VecDeque<LoadedWindow>,
}

impl Attribution {
    /// Labels a period by its windows, compared with those before it. `shape` is the host's Weibull shape.
    /// An empty slice means that the VM's load could not be read.
    pub fn label(&mut self, period: &[LoadedWindow], shape: f64) -> Verdict {
        self.recent.extend(period);
        let excess = self.recent.len().saturating_sub(MEMORY);
        self.recent.drain(..excess);
        match self.own_part(period, shape) {
            Ok(verdict) => verdict,
            Err(grounds) => Verdict::unknown(grounds),
        }
    }

    fn own_part(&self, period: &[LoadedWindow], shape: f64) -> Result<Verdict, String> {
        if period.is_empty() {
            return Err("no window with a reading of our own VM's load".into());
        }
        if period.iter().map(|w| w.share).sum::<f64>() / (period.len() as f64) < 0.02 {
            return Err("hardly anything was evicted".into());
        }
        let busy_windows = || period.iter().filter(|w| w.own_cpus >= BUSY_CPUS);
        if period.iter().all(|w| w.own_cpus < QUIET_CPUS) {
            return Ok(Verdict { source: Source::Outside, grounds: "our own VM was idle meanwhile".into() });
        }
        // Even if all evictions while our VM did anything were our own doing, they would be this part.
        let pressures = || period.iter().map(|w| (w.own_cpus, pressure(w.share, w.exposure_ms, shape)));
        let all: f64 = pressures().map(|(_, pressure)| pressure).sum();
        let at_most = pressures().filter(|(cpus, _)| *cpus >= QUIET_CPUS).map(|(_, p)| p).sum::<f64>() / all;
        if at_most < 1.0 - ALONE {
            let grounds =
                format!("at most {:.0} % fell into times when our own VM did anything", at_most * 100.0);
            return Ok(Verdict { source: Source::Outside, grounds });
        }
        let busy_share = busy_windows().count() as f64 / period.len() as f64;
        let quiet = self.group(shape, |w| w.own_cpus < QUIET_CPUS);
        let busy = self.group(shape, |w| w.own_cpus >= BUSY_CPUS);
        if quiet.len() < ENOUGH {
            return Err("our own VM was never idle long enough to compare with".into());
        }
        if busy_windows().next().is_none() {
            return Err("our own VM was neither idle nor clearly busy".into());
        }
        if busy.len() < ENOUGH {
            return Err("our own VM was not busy long enough to compare with".into());
        }
        decide(&quiet, &busy, busy_share)
    }

    fn group(&self, shape: f64, belongs: impl Fn(&LoadedWindow) -> bool) -> Vec<f64> {
        self.recent.iter().filter(|w| belongs(w)).map(|w| pressure(w.share, w.exposure_ms, shape)).collect()
    }
}

/// Weibull rate (1/ms) that explains the loss of `share` within `exposure_ms`: (−ln(1−share))^(1/k) / exposure.
pub(crate) fn pressure(share: f64, exposure_ms: f64, shape: f64) -> f64 {
    let share = share.clamp(SHARE_LIMITS[0], SHARE_LIMITS[1]);
    (-(1.0 - share).ln()).powf(1.0 / shape) / exposure_ms
}

/// Names the source if the interval of our own part lies on one side of the limits.
fn decide(quiet: &[f64], busy: &[f64], busy_share: f64) -> Result<Verdict, String> {
    let mean = |group: &[f64], kept: &[usize], from: usize| {
        let values: Vec<f64> =
            kept.iter().filter(|&&i| i >= from && i < from + group.len()).map(|&i| group[i - from]).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let part = jackknife(quiet.len() + busy.len(), quiet.len() + busy.len(), |kept| {
        let (quiet_mean, busy_mean) = (mean(quiet, kept, 0)?, mean(busy, kept, quiet.len())?);
        let own = busy_share * (busy_mean - quiet_mean);
        Some(own / (quiet_mean + own).max(f64::MIN_POSITIVE))
    });
    let Some([lo, hi]) = part.ci95() else {
        return Err("too few windows to compare".into());
    };
    let source = if hi < 1.0 - ALONE {
        Source::Outside
    } else if lo > ALONE {
        Source::Own
    } else if lo > 1.0 - ALONE && hi < ALONE {
        Source::Mixed
    } else {
        return Err(format!(
            "our own part of the evictions lies between {:.0} and {:.0} %: too wide to name a source",
            lo.clamp(0.0, 1.0) * 100.0,
            hi.clamp(0.0, 1.0) * 100.0
        ));
    };
    let grounds = format!(
        "{:.0}-{:.0} % of the evictions go with our own VM's load",
        lo.clamp(0.0, 1.0) * 100.0,
        hi.clamp(0.0, 1.0) * 100.0
    );
    Ok(Verdict { source, grounds })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows of a host whose neighbors give rate `outside`, and our VM `own` more while busy (1/ms).
    fn windows(outside: f64, own: f64, busy_every: usize) -> Vec<LoadedWindow> {
        (0..40)
            .map(|i| {
                let busy = busy_every > 0 && i % busy_every == 0;
                let jitter = 1.0 + 0.2 * ((i * 7 % 11) as f64 / 11.0 - 0.5);
                let rate = (outside + if busy { own } else { 0.0 }) * jitter;
                let exposure_ms = 4.0;
                let share = 1.0 - (-(rate * exposure_ms).powf(2.5)).exp();
                LoadedWindow { own_cpus: f64::from(u8::from(busy)), exposure_ms, share }
            })
            .collect()
    }

    fn source(windows: &[LoadedWindow]) -> Source {
        Attribution::default().label(windows, 2.5).source
    }

    #[test]
    fn the_four_answers() {
        assert_eq!(source(&windows(0.2, 0.0, 0)), Source::Outside);
        assert_eq!(source(&windows(0.2, 0.0, 2)), Source::Outside);
        assert_eq!(source(&windows(0.01, 0.3, 2)), Source::Own);
        assert_eq!(source(&windows(0.12, 0.22, 2)), Source::Mixed);
        assert_eq!(source(&windows(0.2, 0.2, 1)), Source::Unknown);
    }

    #[test]
    fn a_little_work_of_our_own_does_not_hide_the_neighbors() {
        let verdict = Attribution::default().label(&windows(0.2, 0.3, 20), 2.5);
        assert_eq!(verdict.source, Source::Outside, "{}", verdict.grounds);
        assert!(verdict.grounds.starts_with("at most 1"), "{}", verdict.grounds);
    }

    #[test]
    fn unknown_says_why() {
        let verdict = Attribution::default().label(&windows(0.2, 0.2, 1), 2.5);
        assert!(verdict.grounds.contains("never idle"), "{}", verdict.grounds);
        let verdict = Attribution::default().label(&[], 2.5);
        assert!(verdict.grounds.contains("no window"), "{}", verdict.grounds);
        let verdict = Attribution::default().label(&windows(0.001, 0.0, 2), 2.5);
        assert!(verdict.grounds.contains("hardly anything"), "{}", verdict.grounds);
    }

    #[test]
    fn a_period_is_compared_with_the_idle_time_before_it() {
        let mut attribution = Attribution::default();
        attribution.label(&windows(0.02, 0.0, 0), 2.5);
        assert_eq!(attribution.label(&windows(0.02, 0.3, 1), 2.5).source, Source::Own);
    }
}
