//! One LLC and the probe that measures it.

mod calibration;
mod capacity;
mod probe;
mod rate;

use quell_core::stats::survival::FitError;
use quell_core::{Bytes, CpuId, LlcId};

use super::machine::on_cpus;
use super::{CpuTime, Finding, Rule, Severity};
use crate::calibrate::Calibration;
use crate::capacity::Usable;
use crate::monitor::Period;
use crate::session::Target;
use crate::summary::Summary;
use crate::tier::TierLimits;

/// Facts about one LLC.
#[derive(Clone, Debug)]
pub struct Cache {
    /// Its number.
    pub llc: LlcId,
    /// The CPUs that are said to share it; the probe runs on the first.
    pub cpus: Vec<CpuId>,
    /// Its advertised size, if anything tells.
    pub advertised: Option<Bytes>,
    /// The configured starting window, in ms.
    pub configured_ms: f64,
    /// What a hit and a miss look like; `None` if not even that could be measured.
    pub calibration: Option<Calibration>,
    /// What the windows saw, or why there are none.
    pub measured: Result<Readings, String>,
    /// What else happened on the probe's CPU; `None` where the kernel does not account for it.
    pub cpu_time: Option<CpuTime>,
}

/// What the windows of some periods saw.
#[derive(Clone, Debug)]
pub struct Readings {
    /// The estimates, over the periods whose controls held.
    pub summary: Summary,
    /// Periods measured.
    pub periods: usize,
    /// Periods among them whose controls failed.
    pub refused: usize,
    /// Why the first of those was refused.
    pub refusal: Option<String>,
    /// Largest share of lines lost without any wait in any period (control), 0 to 1.
    pub lost_at_once: f64,
    /// How much of the LLC can be held.
    pub usable: Usable,
}

impl Readings {
    /// The readings of `periods`.
    #[must_use]
    pub fn of(periods: &[Period], tiers: TierLimits, usable: Usable) -> Self {
        let refused = || periods.iter().filter_map(|period| period.refusal.as_ref());
        Self {
            summary: Summary::of(periods, tiers),
            periods: periods.len(),
            refused: refused().count(),
            refusal: refused().next().cloned(),
            lost_at_once: periods.iter().map(|period| period.lost_at_once).fold(0.0, f64::max),
            usable,
        }
    }

    /// No period's controls held.
    fn all_refused(&self) -> bool {
        self.refused == self.periods
    }

    /// Percent of the windows.
    fn pct_of_windows(&self, windows: usize) -> f64 {
        100.0 * windows as f64 / self.summary.windows.max(1) as f64
    }

    /// The lack of a half-life, unless the controls are to blame.
    fn fit_error(&self) -> Option<FitError> {
        if self.all_refused() { None } else { self.summary.curve.fit.err() }
    }
}

impl Cache {
    /// The facts about a target, of which `configured_ms` is the starting window.
    #[must_use]
    pub fn new(
        target: &Target,
        configured_ms: f64,
        calibration: Option<Calibration>,
        measured: Result<Readings, String>,
        cpu_time: Option<CpuTime>,
    ) -> Self {
        Self {
            llc: target.llc,
            cpus: target.cpus.clone(),
            advertised: (target.advertised.0 > 0).then_some(target.advertised),
            configured_ms,
            calibration,
            measured,
            cpu_time,
        }
    }

    fn name(&self) -> String {
        format!("LLC {} ({})", self.llc, on_cpus(&self.cpus))
    }

    /// The calibration, if it found a limit between hits and misses.
    fn calibrated(&self) -> Option<&Calibration> {
        self.calibration.as_ref().filter(|calibration| calibration.discriminator.is_ok())
    }

    fn readings(&self) -> Option<&Readings> {
        self.measured.as_ref().ok()
    }

    /// The controls in words, and whether they support a rate of 0 or 100 %: they were made, held in at least half
    /// of the periods (others do not count), and the canary is where evictions can reach it.
    fn controls(&self) -> (String, bool) {
        let Some(readings) = self.readings() else { return ("no controls".into(), false) };
        let false_hits = readings.summary.false_hits;
        let left_l2 = calibration::left_l2(self.calibration.as_ref());
        let words = format!(
            "controls: {} of flushed lines read as hits, {:.1} % lost without waiting, the canary {} the private L2",
            false_hits.map_or_else(|| "an unknown share".into(), |share| format!("{:.1} %", share * 100.0)),
            readings.lost_at_once * 100.0,
            if left_l2 { "leaves" } else { "may not leave" }
        );
        let sound = false_hits.is_some() && 2 * readings.refused <= readings.periods && left_l2;
        (words, sound)
    }

    /// The probe's surroundings in words.
    fn surroundings(&self) -> String {
        self.cpu_time.map_or_else(
            || "the kernel does not tell what else its CPU did".into(),
            |time| {
                format!(
                    "meanwhile other work used {:.0} % of CPU {} and the host withheld {:.1} % (steal)",
                    time.other_pct, self.cpus[0], time.steal_pct
                )
            },
        )
    }
}

/// The rules by topic.
pub(super) const RULES: &[&[Rule<Cache>]] = &[calibration::RULES, rate::RULES, probe::RULES, capacity::RULES];

/// What to say if no rule had anything serious to say.
pub(super) fn nothing_wrong(caches: &[Cache]) -> Finding {
    let evidence: Vec<String> = caches
        .iter()
        .filter_map(|cache| Some((cache, cache.readings()?)))
        .map(|(cache, readings)| {
            let discarded = readings.summary.discarded.total();
            format!(
                "{}: {} windows, {discarded} of them left out; {}",
                cache.name(),
                readings.summary.windows,
                cache.controls().0
            )
        })
        .collect();
    Finding {
        id: "nothing-wrong",
        severity: Severity::Ok,
        title: "Nothing is wrong: measurements on this machine can be trusted",
        evidence: super::listed(&evidence, "; "),
        remedy: "Nothing to do.".into(),
    }
}
