//! Does the probe get the CPU it needs, and what does it cost?

use super::Cache;
use crate::doctor::{Finding, Rule, Severity};

pub(super) const RULES: &[Rule<Cache>] = &[preempted, paused, costly, busy_cpu, steal];

/// Lost windows in percent from which on results suffer, and from which on they rest on too little.
const MANY_PCT: f64 = 25.0;
const TOO_MANY_PCT: f64 = 60.0;
/// Windows that a result should rest on at least.
const ENOUGH: usize = 8;
/// CPU time that the probe should never exceed, in ms per second.
const MOST_CPU_MS_PER_S: f64 = 10.0;
/// Other work on the probe's CPU, in percent of the time, that is worth a note and a warning.
const BUSY_PCT: [f64; 2] = [20.0, 50.0];
/// Time withheld by the host, in percent, that is worth a warning.
const STEAL_PCT: f64 = 2.0;

/// How bad it is that so many windows were lost, if it is.
fn weight(cache: &Cache, lost: usize) -> Option<(Severity, f64)> {
    let readings = cache.readings()?;
    let pct = readings.pct_of_windows(lost);
    if lost == 0 || pct < MANY_PCT {
        return None;
    }
    let kept = readings.summary.windows.saturating_sub(readings.summary.discarded.total());
    Some((if pct > TOO_MANY_PCT || kept < ENOUGH { Severity::Problem } else { Severity::Warning }, pct))
}

fn lost(cache: &Cache, lost: usize, pct: f64, to: &str) -> String {
    let windows = cache.readings().map_or(0, |readings| readings.summary.windows);
    format!(
        "{}: {lost} of {windows} windows ({pct:.0} %) lost to {to}; {}",
        cache.name(),
        cache.surroundings()
    )
}

fn preempted(cache: &Cache) -> Option<Finding> {
    let count = cache.readings()?.summary.discarded.preempted;
    let (severity, pct) = weight(cache, count)?;
    Some(Finding {
        id: "probe-preempted",
        severity,
        title: "Other work of this VM takes the CPU from the probe",
        evidence: lost(cache, count, pct, "preemption"),
        remedy: "Put the probe on a calmer CPU (`--cpus LIST`), raise it (`--priority`, needs root), or keep other \
                 work off that CPU (taskset, cpuset, nice)."
            .into(),
    })
}

fn paused(cache: &Cache) -> Option<Finding> {
    let count = cache.readings()?.summary.discarded.tsc_gap;
    let (severity, pct) = weight(cache, count)?;
    Some(Finding {
        id: "probe-paused",
        severity,
        title: "The vCPU is stopped while it measures",
        evidence: lost(cache, count, pct, "gaps of 0.5 ms and more"),
        remedy: "The guest did not preempt the probe, so the host ran something else, or interrupts took long. Try \
                 another CPU (`--cpus`), move interrupts away (irqbalance), watch longer, or ask for vCPUs that are \
                 not overcommitted."
            .into(),
    })
}

fn costly(cache: &Cache) -> Option<Finding> {
    let cost = cache.readings()?.summary.cpu_ms_per_s;
    (cost > MOST_CPU_MS_PER_S).then(|| Finding {
        id: "probe-costly",
        severity: Severity::Warning,
        title: "The probe costs more CPU time than it should",
        evidence: format!(
            "{}: {cost:.1} ms a second, at most {MOST_CPU_MS_PER_S:.0} are meant; {}",
            cache.name(),
            cache.surroundings()
        ),
        remedy: "Use longer periods (`--period 2s`, or `--profile stable`): windows then come half as often. Memory \
                 is slow or the CPU shared; a calmer CPU (`--cpus`) is cheaper."
            .into(),
    })
}

fn busy_cpu(cache: &Cache) -> Option<Finding> {
    let time = cache.cpu_time.filter(|time| time.other_pct > BUSY_PCT[0])?;
    Some(Finding {
        id: "probe-cpu-busy",
        severity: if time.other_pct > BUSY_PCT[1] { Severity::Warning } else { Severity::Note },
        title: "The probe's CPU has other work to do",
        evidence: format!("{}: {}", cache.name(), cache.surroundings()),
        remedy: "What that work evicts is counted as this VM's own doing; whether it or a neighbor evicts can only be \
                 told if it pauses now and then. A calmer CPU measures better: name it alone (for example `--cpus 3`)."
            .into(),
    })
}

fn steal(cache: &Cache) -> Option<Finding> {
    cache.cpu_time.filter(|time| time.steal_pct > STEAL_PCT)?;
    Some(Finding {
        id: "steal",
        severity: Severity::Warning,
        title: "The host does not let the vCPU run whenever it wants",
        evidence: format!("{}: {}", cache.name(), cache.surroundings()),
        remedy: "Work here is slowed down by the wait itself, whatever the cache does. Ask for vCPUs that are not \
                 overcommitted, or check a CPU quota of the VM."
            .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::CpuTime;
    use crate::doctor::invented::cache;

    fn severity(rule: Rule<Cache>, change: impl FnOnce(&mut Cache)) -> Option<Severity> {
        let mut cache = cache();
        change(&mut cache);
        rule(&cache).map(|finding| finding.severity)
    }

    #[test]
    fn a_probe_that_runs_undisturbed_is_not_mentioned() {
        assert!(RULES.iter().all(|rule| rule(&cache()).is_none()));
    }

    #[test]
    fn a_probe_without_windows_is_survived() {
        let change = |cache: &mut Cache| cache.measured.as_mut().unwrap().summary.windows = 0;
        assert_eq!(severity(preempted, change), None);
    }

    /// The invented cache has 60 windows.
    #[test]
    fn lost_windows_weigh_by_their_share() {
        let by_preemption =
            |n| severity(preempted, |c| c.measured.as_mut().unwrap().summary.discarded.preempted = n);
        assert_eq!(by_preemption(10), None);
        assert_eq!(by_preemption(20), Some(Severity::Warning));
        assert_eq!(by_preemption(40), Some(Severity::Problem));
        let by_gaps = |n| severity(paused, |c| c.measured.as_mut().unwrap().summary.discarded.tsc_gap = n);
        assert_eq!((by_gaps(10), by_gaps(20)), (None, Some(Severity::Warning)));
        let few = severity(paused, |cache| {
            let summary = &mut cache.measured.as_mut().unwrap().summary;
            summary.windows = 10;
            summary.discarded.tsc_gap = 4;
        });
        assert_eq!(few, Some(Severity::Problem));
    }

    #[test]
    fn a_costly_probe_is_a_warning() {
        let cost = |ms| severity(costly, |c| c.measured.as_mut().unwrap().summary.cpu_ms_per_s = ms);
        assert_eq!((cost(9.0), cost(12.0)), (None, Some(Severity::Warning)));
    }

    #[test]
    fn other_work_and_steal_are_told_apart() {
        let time =
            |other_pct, steal_pct| move |c: &mut Cache| c.cpu_time = Some(CpuTime { other_pct, steal_pct });
        assert_eq!(severity(busy_cpu, time(30.0, 0.0)), Some(Severity::Note));
        assert_eq!(severity(busy_cpu, time(90.0, 0.0)), Some(Severity::Warning));
        assert_eq!(severity(steal, time(90.0, 0.0)), None);
        assert_eq!(severity(steal, time(0.0, 8.0)), Some(Severity::Warning));
        assert_eq!(severity(steal, |c| c.cpu_time = None), None);
    }

    #[test]
    fn lost_windows_come_with_the_load_as_evidence() {
        let mut cache = cache();
        cache.measured.as_mut().unwrap().summary.discarded.preempted = 30;
        cache.cpu_time = Some(CpuTime { other_pct: 88.0, steal_pct: 1.5 });
        let evidence = preempted(&cache).unwrap().evidence;
        assert!(evidence.contains("30 of 60") && evidence.contains("88 %") && evidence.contains("1.5 %"));
        cache.cpu_time = None;
        assert!(preempted(&cache).unwrap().evidence.contains("does not tell"));
    }
}
