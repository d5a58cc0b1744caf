//! How much else ran on a CPU, and how much of it the host withheld, from `/proc/stat`.

use quell_core::CpuId;

/// A CPU over the time of the examination.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuTime {
    /// Percent of the time that it ran something other than this program.
    pub other_pct: f64,
    /// Percent of the time that the host ran something else although the CPU had work (0 also where the
    /// hypervisor does not tell).
    pub steal_pct: f64,
}

/// Running totals of one CPU, in ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Totals {
    busy: f64,
    steal: f64,
    all: f64,
}

/// `/proc/stat` counts in units of 1/`USER_HZ`, which is 100 on every Linux architecture we run on (proc(5)).
const STEP_MS: f64 = 10.0;
/// A span must be accounted for at least to this share, or the counters are not kept.
const ACCOUNTED: f64 = 0.5;

impl Totals {
    /// The totals of `cpu` in the text of `/proc/stat`; `None` if it has no such line.
    pub(super) fn of(text: &str, cpu: CpuId) -> Option<Self> {
        let name = format!("cpu{cpu} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name))?;
        let fields: Vec<f64> = line
            .split_ascii_whitespace()
            .take(8)
            .map(|field| field.parse::<u64>().map(|n| n as f64 * STEP_MS))
            .collect::<Result<_, _>>()
            .ok()?;
        // Guest time (fields 9 and 10) is part of user time, proc(5).
        let [user, nice, system, idle, iowait, irq, softirq, steal] = fields[..] else { return None };
        let busy = user + nice + system + irq + softirq;
        Some(Self { busy, steal, all: busy + idle + iowait + steal })
    }
}

impl CpuTime {
    /// What happened between two readings, of which this program used `own_ms` on that CPU. `None` if the
    /// counters do not account for `span_ms`, the time between the two.
    pub(super) fn between(before: Totals, after: Totals, own_ms: f64, span_ms: f64) -> Option<Self> {
        let all = after.all - before.all;
        if span_ms <= 0.0 || all < ACCOUNTED * span_ms {
            return None;
        }
        let percent = |ms: f64| (100.0 * ms / all).clamp(0.0, 100.0);
        Some(Self {
            other_pct: percent(after.busy - before.busy - own_ms),
            steal_pct: percent(after.steal - before.steal),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str =
        "cpu  9 9 9 9 9 9 9 9 0 0\ncpu1 100 0 50 1000 10 0 0 40 0 0\ncpu11 1 2 3 4 5 6 7 8 9 10\n";
    const AFTER: &str = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu1 300 0 150 1600 10 0 0 140 0 0\n";

    #[test]
    fn other_work_and_steal_are_told_apart() {
        let (before, after) = (Totals::of(BEFORE, CpuId(1)).unwrap(), Totals::of(AFTER, CpuId(1)).unwrap());
        let time = CpuTime::between(before, after, 1000.0, 10_000.0).unwrap();
        assert_eq!((time.other_pct, time.steal_pct), (20.0, 10.0));
        let own_alone = CpuTime::between(before, after, 1e6, 10_000.0).unwrap();
        assert_eq!(own_alone.other_pct, 0.0);
    }

    #[test]
    fn counters_that_stand_still_say_nothing() {
        let totals = Totals::of(BEFORE, CpuId(1)).unwrap();
        assert_eq!(CpuTime::between(totals, totals, 0.0, 8000.0), None);
        assert_eq!(CpuTime::between(totals, totals, 0.0, 0.0), None);
    }

    #[test]
    fn a_cpu_that_is_not_listed_or_malformed_is_unknown() {
        assert_eq!(Totals::of(BEFORE, CpuId(2)), None);
        assert_eq!(Totals::of("cpu0 1 2 three 4 5 6 7 8", CpuId(0)), None);
        assert_eq!(Totals::of("cpu0 1 2 3", CpuId(0)), None);
    }
}
