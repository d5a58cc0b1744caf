//! Is the rate real, and does the window suit it?

use quell_core::stats::survival::FitError;

use super::{Cache, Readings};
use crate::calibrate::MAX_FALSE_HITS;
use crate::doctor::{Finding, Rule, Severity};
use crate::monitor::MAX_LOST_AT_ONCE;
use crate::planner::WINDOW_MS;

pub(super) const RULES: &[Rule<Cache>] = &[
    flush_control_failed,
    not_held,
    no_usable_window,
    stuck_at_zero,
    stuck_at_hundred,
    half_life_unknown,
    window_unfit,
    vcpu_moves,
];

/// Zero-wait losses beyond this are worth mentioning although they are taken out.
const MUCH_LOST_AT_ONCE: f64 = 0.1;
/// A window should lose a share in this range: beyond, it says only that the half-life is shorter or longer.
const USEFUL: std::ops::RangeInclusive<f64> = 0.1..=0.9;
/// An exposure up to this multiple of the shortest window is as short as it gets: timer latency, priming and
/// probing come on top of the window.
const FLOOR: f64 = 3.0;
/// From this share of the longest allowed window on, windows are as long as they get.
const NEARLY_LONGEST: f64 = 0.75;
/// Windows lost to moves of the vCPU, in percent, from which on they are worth mentioning, if at least three.
const MANY_MOVES_PCT: f64 = 3.0;

/// A problem if no period is left, otherwise a warning.
fn weight(all_refused: bool) -> Severity {
    if all_refused { Severity::Problem } else { Severity::Warning }
}

fn flush_control_failed(cache: &Cache) -> Option<Finding> {
    let readings = cache.readings()?;
    let share = readings.summary.false_hits.filter(|&share| share > MAX_FALSE_HITS)?;
    Some(Finding {
        id: "flush-control-failed",
        severity: weight(readings.all_refused()),
        title: "Evictions are being hidden: flushed lines read as hits",
        evidence: format!(
            "{}: up to {:.1} % of flushed lines read as hits (at most {:.0} % are allowed); {} of {} periods refused",
            cache.name(),
            share * 100.0,
            MAX_FALSE_HITS * 100.0,
            readings.refused,
            readings.periods
        ),
        remedy: "A low rate would be wrong, so such periods are left out. A prefetcher brings lines back before they \
                 are timed, or the VM was moved to another host since calibration: run again, with another `--seed` \
                 (other page offsets) or on another CPU (`--cpus`)."
            .into(),
    })
}

fn not_held(cache: &Cache) -> Option<Finding> {
    let readings = cache.readings().filter(|readings| readings.lost_at_once > MUCH_LOST_AT_ONCE)?;
    let cannot = readings.lost_at_once > MAX_LOST_AT_ONCE;
    Some(Finding {
        id: "canary-not-held",
        severity: if cannot { weight(readings.all_refused()) } else { Severity::Note },
        title: "Lines are gone without any wait",
        evidence: format!(
            "{}: {:.0} % of the canary is lost between priming and probing (up to {:.0} % can be taken out); {}",
            cache.name(),
            readings.lost_at_once * 100.0,
            MAX_LOST_AT_ONCE * 100.0,
            cache.surroundings()
        ),
        remedy: if cannot {
            "A rate of 100 % would be the probe's own failure, so such periods are refused. Either hardly any of the \
             LLC is left to this VM (see the usable capacity in `quell scan`; an emulator has none at all), or the CPU is too disturbed: try \
             `--cpus`, `--priority` (root) or a calmer time."
        } else {
            "Nothing to do: the loss is measured and taken out of every estimate."
        }
        .into(),
    })
}

fn no_usable_window(cache: &Cache) -> Option<Finding> {
    let readings = cache.readings()?;
    let explained = flush_control_failed(cache).is_some() || readings.lost_at_once > MAX_LOST_AT_ONCE;
    let refused = readings.all_refused() && !explained;
    if !refused && readings.fit_error() != Some(FitError::NoWindows) {
        return None;
    }
    let discarded = readings.summary.discarded;
    Some(Finding {
        id: "no-usable-window",
        severity: Severity::Problem,
        title: "No window could be used",
        evidence: format!(
            "{}: of {} windows {} were lost to preemption and {} to gaps{}; {}",
            cache.name(),
            readings.summary.windows,
            discarded.preempted,
            discarded.tsc_gap,
            readings.refusal.as_ref().map_or_else(String::new, |why| format!("; {why}")),
            cache.surroundings()
        ),
        remedy: "The probe hardly gets to run. Measure on another CPU (`--cpus`), with `--priority` (root), or at a \
                 calmer time."
            .into(),
    })
}

/// What the windows saw of a half-life that lies outside of them: a guess at it, or else `extreme`.
fn beyond(readings: &Readings, extreme: impl FnOnce() -> String) -> String {
    readings.summary.curve.guess.map_or_else(extreme, |law| {
        format!("the half-life is about {:.1} ms, out of reach of the windows", law.half_life_ms())
    })
}

fn stuck_at_zero(cache: &Cache) -> Option<Finding> {
    let readings = cache.readings()?;
    let Some(FitError::Quiet(longest_ms)) = readings.fit_error() else { return None };
    let (controls, sound) = cache.controls();
    let seen = beyond(readings, || format!("hardly any line was lost within {longest_ms:.0} ms"));
    let evidence = format!("{}: {seen}; {controls}", cache.name());
    if sound && readings.summary.curve.guess.is_some() && longest_ms < NEARLY_LONGEST * WINDOW_MS.end() {
        return Some(Finding {
            id: "rate-stuck-at-0",
            severity: Severity::Warning,
            title: "The windows are too short: the half-life lies beyond them",
            evidence,
            remedy: "Watch longer, so that they adapt, or start with longer ones (`--window`, `--profile batch`); \
                     periods must have room for them (`--period`)."
                .into(),
        });
    }
    Some(if sound {
        Finding {
            id: "rate-stuck-at-0",
            severity: Severity::Note,
            title: "The eviction rate is next to 0, and that is real",
            evidence,
            remedy: format!(
                "Nothing to do: what is put into this cache stays there. `--window {}ms` starts with the longest \
                 windows.",
                WINDOW_MS.end()
            ),
        }
    } else {
        Finding {
            id: "rate-stuck-at-0",
            severity: Severity::Problem,
            title: "The eviction rate is next to 0, but the controls do not support it",
            evidence,
            remedy: "Do not take it for a quiet cache. See the other findings on this LLC; run again on another CPU \
                     (`--cpus`)."
                .into(),
        }
    })
}

fn stuck_at_hundred(cache: &Cache) -> Option<Finding> {
    let readings = cache.readings()?;
    let Some(FitError::Saturated(shortest_ms)) = readings.fit_error() else { return None };
    let (controls, sound) = cache.controls();
    let seen = beyond(readings, || format!("nearly all lines were lost within {shortest_ms:.2} ms"));
    let evidence = format!("{}: {seen}; {controls}", cache.name());
    let finding = |severity, title, remedy: String| Finding {
        id: "rate-stuck-at-100",
        severity,
        title,
        evidence,
        remedy,
    };
    let floor_ms = *WINDOW_MS.start();
    Some(if !sound {
        finding(
            Severity::Problem,
            "The eviction rate is next to 100 %, but the controls do not support it",
            "Do not take it for contention. See the other findings on this LLC; run again on another CPU (`--cpus`)."
                .into(),
        )
    } else if shortest_ms <= FLOOR * floor_ms {
        finding(
            Severity::Warning,
            "The eviction rate is next to 100 % even at the shortest window, and that is real",
            format!(
                "Lines survive when they are probed at once, so time evicts them: the cache is saturated. `quell scan` \
                 says whether by this VM or by others; use another LLC or host for work that needs the cache. \
                 `--window {floor_ms}ms` starts with the shortest windows."
            ),
        )
    } else {
        finding(
            Severity::Warning,
            "The windows are too long: everything is evicted",
            format!(
                "They had not come down to the half-life yet. Start with `--window {floor_ms}ms` or watch longer."
            ),
        )
    })
}

fn half_life_unknown(cache: &Cache) -> Option<Finding> {
    let readings = cache.readings().filter(|readings| !readings.all_refused())?;
    readings.summary.curve.fit.ok()?;
    let reason = readings.summary.half_life_ms.reason()?;
    Some(Finding {
        id: "half-life-unknown",
        severity: Severity::Warning,
        title: "The half-life has no interval",
        evidence: format!("{}: {reason}, after {} windows", cache.name(), readings.summary.windows),
        remedy: "Watch longer (`quell scan --duration 30s`).".into(),
    })
}

fn window_unfit(cache: &Cache) -> Option<Finding> {
    let readings = cache.readings().filter(|readings| !readings.all_refused())?;
    let law = readings.summary.curve.fit.ok()?;
    let lost = |window_ms: f64| 1.0 - law.surviving(window_ms);
    let share = lost(cache.configured_ms);
    if USEFUL.contains(&share) {
        return None;
    }
    let half_life = law.half_life_ms();
    let best = half_life.clamp(*WINDOW_MS.start(), *WINDOW_MS.end());
    let adapted = USEFUL.contains(&lost(readings.summary.window_ms));
    Some(Finding {
        id: "window-unfit",
        severity: if adapted { Severity::Note } else { Severity::Warning },
        title: if share > *USEFUL.end() {
            "The starting window is too long for the load"
        } else {
            "The starting window is too short for the load"
        },
        evidence: format!(
            "{}: the half-life is {half_life:.1} ms, so a window of {:.1} ms finds {:.0} % evicted (useful are {:.0} \
             to {:.0} %); the monitor arrived at {:.1} ms",
            cache.name(),
            cache.configured_ms,
            share * 100.0,
            USEFUL.start() * 100.0,
            USEFUL.end() * 100.0,
            readings.summary.window_ms
        ),
        remedy: format!(
            "Start with `--window {}ms`. {}",
            rounded(best),
            if adapted {
                "The monitor adapts by itself; this only spares it that. A tool with fixed windows would show 0 or 100 % \
                 here."
            } else {
                "The monitor had not adapted yet: watch longer, or with longer periods."
            }
        ),
    })
}

/// A window to type: whole milliseconds from 2 on, tenths below.
fn rounded(window_ms: f64) -> f64 {
    if window_ms >= 2.0 { window_ms.round() } else { (window_ms * 10.0).round() / 10.0 }
}

fn vcpu_moves(cache: &Cache) -> Option<Finding> {
    let readings = cache.readings()?;
    let moves = readings.summary.discarded.placement;
    let pct = readings.pct_of_windows(moves);
    (moves >= 3 && pct >= MANY_MOVES_PCT).then(|| Finding {
        id: "vcpu-moves",
        severity: Severity::Warning,
        title: "The host moves the probe's vCPU to other caches",
        evidence: format!(
            "{}: in {moves} of {} windows ({pct:.0} %) everything was lost at once, lines in the private L2 included",
            cache.name(),
            readings.summary.windows
        ),
        remedy: "Such windows are left out, and intervals reach to both readings. Work on this CPU loses its whole \
                 cache at each move; pinned vCPUs or dedicated hosts end it."
            .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::invented::{cache, curve, cut_off};

    fn with(change: impl FnOnce(&mut Readings)) -> Cache {
        let mut cache = cache();
        change(cache.measured.as_mut().unwrap());
        cache
    }

    fn severity(rule: Rule<Cache>, cache: &Cache) -> Option<Severity> {
        rule(cache).map(|finding| finding.severity)
    }

    #[test]
    fn a_sound_measurement_is_not_mentioned() {
        let said: Vec<Finding> = RULES.iter().filter_map(|rule| rule(&cache())).collect();
        assert!(said.is_empty(), "{said:#?}");
    }

    #[test]
    fn hidden_evictions_are_a_problem_if_no_period_is_left() {
        let refused = |n: usize| {
            with(|readings| {
                readings.summary.false_hits = Some(0.2);
                readings.refused = n;
                readings.refusal = Some("20.0 % of flushed lines read as hits".into());
            })
        };
        assert_eq!(severity(flush_control_failed, &refused(5)), Some(Severity::Problem));
        assert_eq!(severity(flush_control_failed, &refused(1)), Some(Severity::Warning));
        assert_eq!(severity(no_usable_window, &refused(5)), None, "explained already");
    }

    #[test]
    fn lines_lost_without_wait_are_a_note_a_warning_or_a_problem() {
        let lost = |lost_at_once: f64, refused: usize| {
            with(|readings| {
                readings.lost_at_once = lost_at_once;
                readings.refused = refused;
            })
        };
        assert_eq!(severity(not_held, &lost(0.15, 0)), Some(Severity::Note));
        assert_eq!(severity(not_held, &lost(0.5, 2)), Some(Severity::Warning));
        assert_eq!(severity(not_held, &lost(0.5, 5)), Some(Severity::Problem));
        assert_eq!(severity(no_usable_window, &lost(0.5, 5)), None, "explained already");
    }

    #[test]
    fn no_window_at_all_is_a_problem() {
        let none = with(|readings| readings.summary.curve = crate::Curve::fit(&[], 0.0, 2.5));
        assert_eq!(severity(no_usable_window, &none), Some(Severity::Problem));
        let no_sample = with(|readings| {
            readings.refused = readings.periods;
            readings.refusal = Some("the flush control gave no valid sample".into());
            readings.summary.false_hits = None;
        });
        assert!(no_usable_window(&no_sample).unwrap().evidence.contains("no valid sample"));
    }

    #[test]
    fn zero_is_real_only_if_the_controls_say_so() {
        let mut quiet = with(|readings| readings.summary.curve = cut_off(32.0, 0.01));
        let finding = stuck_at_zero(&quiet).unwrap();
        assert_eq!(finding.severity, Severity::Note);
        assert!(finding.evidence.contains("32 ms") && finding.evidence.contains("0.1 % of flushed"));
        quiet.calibration.as_mut().unwrap().spilled_share = 0.4;
        assert_eq!(severity(stuck_at_zero, &quiet), Some(Severity::Problem));
        let adapting = with(|readings| readings.summary.curve = cut_off(6.0, 0.2));
        let finding = stuck_at_zero(&adapting).unwrap();
        assert!(finding.title.contains("too short") && finding.evidence.contains("half-life is about"));
        let long = with(|readings| readings.summary.curve = cut_off(31.0, 0.2));
        assert_eq!(severity(stuck_at_zero, &long), Some(Severity::Note));
        let unchecked = with(|readings| {
            readings.summary.curve = cut_off(32.0, 0.01);
            readings.summary.false_hits = None;
        });
        assert_eq!(severity(stuck_at_zero, &unchecked), Some(Severity::Problem));
    }

    #[test]
    fn a_hundred_is_real_at_the_shortest_window_alone() {
        let saturated = |ms: f64| with(|readings| readings.summary.curve = cut_off(ms, 1.0));
        let floor = stuck_at_hundred(&saturated(0.8)).unwrap();
        assert_eq!(floor.severity, Severity::Warning);
        assert!(floor.title.contains("real"));
        assert!(stuck_at_hundred(&saturated(6.0)).unwrap().title.contains("too long"));
        let unheld = with(|readings| {
            readings.summary.curve = cut_off(0.8, 1.0);
            readings.lost_at_once = 0.6;
            readings.refused = 3;
        });
        assert_eq!(severity(stuck_at_hundred, &unheld), Some(Severity::Problem));
    }

    #[test]
    fn a_fit_without_interval_is_mentioned() {
        let thin = with(|readings| {
            readings.summary.half_life_ms = quell_core::Estimate::unknown("too few blocks");
        });
        assert!(half_life_unknown(&thin).unwrap().evidence.contains("too few blocks"));
    }

    #[test]
    fn an_unfit_window_gets_a_better_one() {
        let unfit = |configured_ms: f64, half_life: f64, arrived: f64| {
            let mut cache = with(|readings| {
                readings.summary.curve = curve(half_life);
                readings.summary.window_ms = arrived;
            });
            cache.configured_ms = configured_ms;
            window_unfit(&cache)
        };
        let long = unfit(30.0, 3.0, 3.1).unwrap();
        assert_eq!(long.severity, Severity::Note);
        assert!(long.title.contains("too long") && long.remedy.contains("--window 3ms"), "{long:?}");
        let short = unfit(0.5, 6.0, 0.7).unwrap();
        assert_eq!(short.severity, Severity::Warning);
        assert!(short.title.contains("too short") && short.remedy.contains("--window 6ms"), "{short:?}");
        assert!(unfit(7.0, 1.23, 1.2).unwrap().remedy.contains("--window 1.2ms"));
        assert_eq!(unfit(5.0, 6.0, 6.0), None);
    }

    #[test]
    fn moves_are_mentioned_from_a_few_on() {
        let moved = |moves: usize| with(|readings| readings.summary.discarded.placement = moves);
        assert_eq!(severity(vcpu_moves, &moved(1)), None);
        assert_eq!(severity(vcpu_moves, &moved(10)), Some(Severity::Warning));
    }
}
