//! Can a hit be told from a miss?

use quell_core::stats::quantile;

use super::Cache;
use crate::calibrate::{Calibration, MAX_FALSE_HITS};
use crate::doctor::{Finding, Rule, Severity};

pub(super) const RULES: &[Rule<Cache>] =
    &[cannot_run, not_separable, counter_backwards, counter_coarse, stays_in_l2];

/// Memory must answer this much more slowly than the LLC, or it does not look like memory.
const MEMORY_OVER_LLC: f64 = 1.5;
/// The LLC must answer this much more slowly than the L2, or the canary did not leave the L2.
const LLC_OVER_L2: f64 = 1.25;
/// Less of the way from L2 to LLC means that part of the canary stays in the L2.
const SPILLED: f64 = 0.9;
/// From this step on, in ticks, the counter hides the difference between an L1 and an L2 hit.
const COARSE_TICKS: f64 = 8.0;
/// A step above this part of the distance between LLC and memory blurs hits and misses.
const BLURRING: f64 = 0.25;

fn cannot_run(cache: &Cache) -> Option<Finding> {
    let reason = cache.measured.as_ref().err()?;
    if cache.calibration.as_ref().is_some_and(|calibration| calibration.discriminator.is_err()) {
        return None;
    }
    Some(Finding {
        id: "probe-cannot-run",
        severity: Severity::Problem,
        title: "The probe cannot run",
        evidence: format!("{}: {reason}", cache.name()),
        remedy:
            "Check that the CPU may still be used (taskset, cpuset, hotplug) and that some MiB of memory are \
                 free; then run again."
                .into(),
    })
}

fn not_separable(cache: &Cache) -> Option<Finding> {
    let calibration = cache.calibration.as_ref()?;
    let reason = calibration.discriminator.as_ref().err()?;
    let median = |class: usize| {
        let ticks = quantile(&calibration.classes[class].single_ticks, 0.5);
        ticks.map_or_else(|| "no valid load".into(), |ticks| format!("{ticks:.0}"))
    };
    Some(Finding {
        id: "hits-and-misses-alike",
        severity: Severity::Problem,
        title: "Hits and misses cannot be told apart",
        evidence: format!(
            "{}: {reason}. Median ticks of a single load: L1/L2 {}, LLC {}, flushed {}; chained {:.0}, {:.0}, {:.0}; \
             the counter moves in steps of {:.1}",
            cache.name(),
            median(0),
            median(1),
            median(2),
            calibration.classes[0].chain_ticks,
            calibration.classes[1].chain_ticks,
            calibration.classes[2].chain_ticks,
            calibration.timer.step_ticks
        ),
        remedy: why_alike(calibration).into(),
    })
}

/// The likely cause and what to do about it.
fn why_alike(calibration: &Calibration) -> &'static str {
    let [_, llc, memory] = &calibration.classes;
    let loads: usize = calibration.classes.iter().map(|class| class.single_ticks.len()).sum();
    if calibration.discarded[1] as usize > loads {
        "Most loads were moved to another CPU while they were timed: something overrides the probe's pinning. \
         Measure outside of that tool or container."
    } else if memory.chain_ticks < MEMORY_OVER_LLC * llc.chain_ticks {
        "Flushed lines come back as fast as cached ones: either CLFLUSH has no effect (an emulator such as QEMU \
         without KVM has no caches), or nothing stays in the LLC at all. Measure on hardware virtualization or on \
         another CPU (`--cpus`)."
    } else if calibration.timer.step_ticks > 0.5 * (memory.chain_ticks - llc.chain_ticks).abs() {
        "The counter is too coarse for this memory. Choose a VM type whose time-stamp counter is not emulated."
    } else if hidden_misses(calibration).is_some_and(|share| share > MAX_FALSE_HITS) {
        "Memory is slow enough, but some flushed lines are back before they are timed, as prefetchers do. Try other \
         page offsets (another `--seed`) or another CPU (`--cpus`); if it stays, this CPU model cannot be measured, \
         and results stay unknown rather than wrong."
    } else {
        "The classes differ but overlap: the CPU was disturbed. Measure on a calmer CPU (`--cpus`), at a calmer \
         time, or with `--priority` (root)."
    }
}

/// Share of flushed lines that were as fast as cached ones; `None` if the classes do not differ at all.
fn hidden_misses(calibration: &Calibration) -> Option<f64> {
    let [_, llc, memory] = &calibration.classes;
    let limit = (quantile(&llc.single_ticks, 0.5)? * quantile(&memory.single_ticks, 0.5)?).sqrt();
    let hidden = memory.single_ticks.iter().filter(|&&ticks| ticks < limit).count();
    Some(hidden as f64 / memory.single_ticks.len() as f64)
}

fn counter_backwards(cache: &Cache) -> Option<Finding> {
    let calibration = cache.calibration.as_ref().filter(|calibration| !calibration.timer.monotonic)?;
    Some(Finding {
        id: "tsc-backwards",
        severity: Severity::Problem,
        title: "The time-stamp counter ran backwards",
        evidence: format!(
            "{}: seen on one CPU between two readings of a calibration at {:.0} MHz",
            cache.name(),
            calibration.timer.ticks_per_ms / 1e3
        ),
        remedy:
            "No time measured on this machine can be trusted. The host's counters are out of step; choose \
                 another VM type or host."
                .into(),
    })
}

fn counter_coarse(cache: &Cache) -> Option<Finding> {
    let calibration = cache.calibrated()?;
    let (timer, [_, llc, memory]) = (calibration.timer, &calibration.classes);
    let distance = memory.chain_ticks - llc.chain_ticks;
    let blurring = timer.step_ticks > BLURRING * distance;
    if timer.step_ticks < COARSE_TICKS && !blurring {
        return None;
    }
    Some(Finding {
        id: "tsc-coarse",
        severity: if blurring { Severity::Warning } else { Severity::Note },
        title: "The time-stamp counter is coarse",
        evidence: format!(
            "{}: it moves in steps of {:.1} ticks ({:.1} ns); memory is {:.1} steps slower than the LLC, and single \
             loads {} the L2 from the LLC",
            cache.name(),
            timer.step_ticks,
            timer.step_ns(),
            distance / timer.step_ticks,
            if calibration.single_loads_tell_l2_from_llc { "tell" } else { "do not tell" }
        ),
        remedy: if blurring {
            "Some hits will pass for misses; the zero-wait control takes them out on average. Expect wider intervals, \
             or choose a VM type with a finer counter."
        } else {
            "Nothing to do: hits and misses are told apart all the same."
        }
        .into(),
    })
}

/// Whether the canary is pushed out of the L2, as far as latencies tell.
pub(super) fn left_l2(calibration: Option<&Calibration>) -> bool {
    calibration.is_some_and(|calibration| {
        let [near, llc, _] = &calibration.classes;
        calibration.spilled_share >= SPILLED && llc.chain_ticks >= LLC_OVER_L2 * near.chain_ticks
    })
}

fn stays_in_l2(cache: &Cache) -> Option<Finding> {
    let calibration = cache.calibrated().filter(|calibration| !left_l2(Some(calibration)))?;
    Some(Finding {
        id: "canary-in-l2",
        severity: Severity::Warning,
        title: "The canary may stay in the private L2",
        evidence: format!(
            "{}: the spill of {} lines brings it {:.0} % of the way from L2 to LLC latency; chained loads take {:.0} \
             ticks before and {:.0} after",
            cache.name(),
            calibration.spill.lines(),
            calibration.spilled_share * 100.0,
            calibration.classes[0].chain_ticks,
            calibration.classes[1].chain_ticks
        ),
        remedy: "Evictions from the LLC do not reach such lines, so a rate near 0 means nothing. Compare the L2's \
                 size in `quell topo` with that of the CPU model: a hypervisor that advertises it too small causes \
                 this."
            .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::invented::cache;

    fn with(change: impl FnOnce(&mut Calibration)) -> Cache {
        let mut cache = cache();
        change(cache.calibration.as_mut().unwrap());
        cache
    }

    fn failed(reason: &str, change: impl FnOnce(&mut Calibration)) -> Cache {
        let mut cache = with(|calibration| {
            calibration.discriminator = Err(reason.into());
            change(calibration);
        });
        cache.measured = Err(reason.into());
        cache
    }

    #[test]
    fn a_good_calibration_is_not_mentioned() {
        assert!(RULES.iter().all(|rule| rule(&cache()).is_none()));
    }

    #[test]
    fn a_probe_that_cannot_run_gives_the_reason() {
        let mut cache = cache();
        cache.measured = Err("cannot run on CPU 3".into());
        assert!(cannot_run(&cache).unwrap().evidence.contains("CPU 3"));
        cache.calibration = None;
        assert!(cannot_run(&cache).is_some());
    }

    #[test]
    fn a_failed_calibration_is_one_problem_with_its_cause() {
        let cause = |change: fn(&mut Calibration)| {
            let cache = failed("30.0 % of flushed lines read as hits", change);
            assert!(cannot_run(&cache).is_none());
            let finding = not_separable(&cache).unwrap();
            assert_eq!(finding.severity, Severity::Problem);
            assert!(finding.evidence.contains("30.0 %"));
            finding.remedy
        };
        let prefetched = cause(|c| c.classes[2].single_ticks.iter_mut().step_by(3).for_each(|t| *t = 105.0));
        assert!(prefetched.contains("prefetchers"), "{prefetched}");
        let emulated = cause(|c| c.classes[2].chain_ticks = c.classes[1].chain_ticks);
        assert!(emulated.contains("CLFLUSH"), "{emulated}");
        let coarse = cause(|c| c.timer.step_ticks = 1000.0);
        assert!(coarse.contains("too coarse"), "{coarse}");
        let moved = cause(|c| c.discarded[1] = 1_000_000);
        assert!(moved.contains("pinning"), "{moved}");
        let disturbed = cause(|_| ());
        assert!(disturbed.contains("disturbed"), "{disturbed}");
    }

    #[test]
    fn a_failed_calibration_without_a_single_sample_is_survived() {
        let cache = failed("every timed load was interrupted", |calibration| {
            for class in &mut calibration.classes {
                class.single_ticks.clear();
                class.chain_ticks = f64::NAN;
            }
        });
        assert!(not_separable(&cache).unwrap().evidence.contains("no valid load"));
    }

    #[test]
    fn a_counter_that_runs_backwards_is_a_problem() {
        let finding = counter_backwards(&with(|c| c.timer.monotonic = false)).unwrap();
        assert_eq!(finding.severity, Severity::Problem);
    }

    #[test]
    fn a_coarse_counter_is_a_note_until_it_blurs() {
        let severity = |step| counter_coarse(&with(|c| c.timer.step_ticks = step)).map(|f| f.severity);
        assert_eq!(severity(2.0), None);
        assert_eq!(severity(24.5), Some(Severity::Note));
        assert_eq!(severity(150.0), Some(Severity::Warning));
    }

    #[test]
    fn a_canary_that_stays_in_l2_is_noticed_either_way() {
        assert!(stays_in_l2(&with(|c| c.spilled_share = 0.5)).is_some());
        let alike = with(|c| c.classes[1].chain_ticks = c.classes[0].chain_ticks * 1.05);
        assert!(stays_in_l2(&alike).unwrap().evidence.contains("chained"));
        let nothing_spilled = with(|c| c.spilled_share = f64::NAN);
        assert!(stays_in_l2(&nothing_spilled).is_some());
    }
}
