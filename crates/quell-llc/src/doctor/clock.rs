//! The clock that everything is timed with.

use quell_topology::TscFacts;

use super::{Finding, Rule, Severity};

pub(super) const RULES: &[Rule<TscFacts>] = &[not_invariant, no_rdtscp, not_the_clocksource];

/// Clocks that hypervisors offer on top of the time-stamp counter.
const PARAVIRTUAL: [&str; 4] = ["kvm-clock", "hyperv_clocksource_tsc_page", "xen", "vmware"];

fn not_invariant(tsc: &TscFacts) -> Option<Finding> {
    let (severity, evidence, remedy) = match (tsc.invariant, tsc.constant) {
        (Some(true), _) => return None,
        (Some(false), Some(true)) => (
            Severity::Warning,
            "the kernel calls its rate constant, but CPUID does not promise that it runs on in deep sleep",
            "Results are right while the CPU is awake; if half-lives of different runs contradict each other, \
             choose a VM type with an invariant TSC.",
        ),
        (Some(false), _) => (
            Severity::Problem,
            "neither CPUID (leaf 0x80000007) nor the kernel's flags call its rate constant",
            "No latency can be measured with it. Choose a VM type that passes the invariant TSC on (under QEMU \
             `-cpu host,+invtsc`).",
        ),
        (None, _) => (
            Severity::Note,
            "neither CPUID nor the kernel's flags say whether its rate is constant",
            "The rate was measured against the kernel's clock instead; compare two runs before you rely on one.",
        ),
    };
    Some(Finding {
        id: "tsc-not-invariant",
        severity,
        title: "The time-stamp counter is not known to run at one rate",
        evidence: evidence.into(),
        remedy: remedy.into(),
    })
}

fn no_rdtscp(tsc: &TscFacts) -> Option<Finding> {
    (tsc.rdtscp == Some(false)).then(|| Finding {
        id: "rdtscp-missing",
        severity: Severity::Problem,
        title: "The CPU has no RDTSCP instruction",
        evidence: "CPUID leaf 0x80000001 does not list it".into(),
        remedy: "Without it a load that was moved to another CPU cannot be told from a slow one. Every x86-64 \
                 server CPU has it, so the hypervisor hides it: choose another CPU model (under QEMU `-cpu host`)."
            .into(),
    })
}

fn not_the_clocksource(tsc: &TscFacts) -> Option<Finding> {
    let source = tsc.clocksource.as_deref().filter(|source| *source != "tsc")?;
    let paravirtual = PARAVIRTUAL.contains(&source);
    Some(Finding {
        id: "tsc-not-clocksource",
        severity: if paravirtual { Severity::Note } else { Severity::Warning },
        title: "The kernel does not take its time from the time-stamp counter",
        evidence: format!("its clock is {source}"),
        remedy: if paravirtual {
            "Nothing to do: that clock is the same counter, scaled by the hypervisor.".into()
        } else {
            "The kernel distrusts the counter or was told to. Look for \"TSC\" and \"clocksource\" in the kernel \
             log; if it was marked unstable, do not rely on results and choose another VM type."
                .into()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::invented::clock;

    #[test]
    fn a_good_counter_is_not_mentioned() {
        assert!(RULES.iter().all(|rule| rule(&clock()).is_none()));
    }

    #[test]
    fn the_rate_is_a_problem_only_if_nothing_calls_it_constant() {
        let severity = |invariant, constant| {
            not_invariant(&TscFacts { invariant, constant, ..clock() }).map(|finding| finding.severity)
        };
        assert_eq!(severity(Some(false), Some(false)), Some(Severity::Problem));
        assert_eq!(severity(Some(false), None), Some(Severity::Problem));
        assert_eq!(severity(Some(false), Some(true)), Some(Severity::Warning));
        assert_eq!(severity(None, None), Some(Severity::Note));
    }

    #[test]
    fn rdtscp_must_not_be_missing() {
        let severity = |rdtscp| no_rdtscp(&TscFacts { rdtscp, ..clock() }).map(|finding| finding.severity);
        assert_eq!((severity(Some(false)), severity(None)), (Some(Severity::Problem), None));
    }

    #[test]
    fn a_paravirtual_clock_is_a_note_and_another_timer_a_warning() {
        let severity = |name: Option<&str>| {
            not_the_clocksource(&TscFacts { clocksource: name.map(str::to_owned), ..clock() })
                .map(|finding| finding.severity)
        };
        assert_eq!(severity(Some("kvm-clock")), Some(Severity::Note));
        assert_eq!(severity(Some("hpet")), Some(Severity::Warning));
        assert_eq!(severity(None), None);
    }
}
