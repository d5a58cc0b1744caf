//! Who shares a cache: as said, and as seen.

use quell_topology::{PairReport, Verdict, hidden_siblings};

use super::{Finding, Rule, Severity, listed};

/// The pairs of vCPUs that were watched.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// What was said and seen of each.
    pub pairs: Vec<PairReport>,
}

impl Placement {
    /// A finding on the pairs that `concerned` selects, quoted with `words`.
    fn finding(
        &self,
        concerned: impl Fn(&PairReport) -> bool,
        words: impl Fn(&PairReport) -> String,
        finding: impl FnOnce(String) -> Finding,
    ) -> Option<Finding> {
        let texts: Vec<String> = self.pairs.iter().filter(|pair| concerned(pair)).map(words).collect();
        (!texts.is_empty()).then(|| finding(listed(&texts, "; ")))
    }
}

pub(super) const RULES: &[Rule<Placement>] =
    &[apart_though_said_shared, together_though_said_apart, floating, siblings, unsaid, unseen];

fn apart_though_said_shared(placement: &Placement) -> Option<Finding> {
    placement.finding(
        |pair| pair.said_shared == Some(true) && pair.placement.verdict == Verdict::Far,
        PairReport::sentence,
        |evidence| Finding {
            id: "shared-cache-not-shared",
            severity: Severity::Problem,
            title: "CPUs that are said to share a cache do not",
            evidence,
            remedy: "The kernel schedules by a wrong map, and what is measured on one of these CPUs does not hold \
                     for the other. If `quell topo --watch` sees them together at other times, the host moves the \
                     vCPUs. Otherwise let the hypervisor pass the real topology on (pinned vCPUs, one virtual \
                     socket or die per host LLC), and until then measure each CPU by itself (`--cpus`)."
                .into(),
        },
    )
}

fn together_though_said_apart(placement: &Placement) -> Option<Finding> {
    placement.finding(
        |pair| pair.said_shared == Some(false) && pair.placement.verdict == Verdict::Near,
        PairReport::sentence,
        |evidence| Finding {
            id: "separate-caches-shared",
            severity: Severity::Warning,
            title: "CPUs that are said to have caches of their own share one",
            evidence,
            remedy: "Count these LLCs once: work on one of these CPUs evicts the lines of the other. The \
                     hypervisor's CPU topology is where to correct it."
                .into(),
        },
    )
}

fn floating(placement: &Placement) -> Option<Finding> {
    let words = |pair: &PairReport| {
        // Rounds far apart do not show when a change happened: then there is a share but no rate.
        let rate = pair.placement.switches_per_s.value().filter(|rate| *rate >= 0.05);
        pair.sentence()
            + &rate.map_or_else(String::new, |rate| format!(", at least {rate:.1} times a second"))
    };
    placement.finding(
        |pair| pair.placement.verdict == Verdict::Floating,
        words,
        |evidence| Finding {
            id: "vcpus-floating",
            severity: Severity::Warning,
            title: "The host moves vCPUs between caches",
            evidence,
            remedy:
                "Windows hit by a move are left out, so the half-life stays right. But pinning threads by \
                     the guest's topology gains little here: what one CPU brings into the cache is often not \
                     there for the other. Pinned vCPUs or dedicated hosts end it."
                    .into(),
        },
    )
}

fn siblings(placement: &Placement) -> Option<Finding> {
    let texts: Vec<String> = hidden_siblings(&placement.pairs)
        .into_iter()
        .map(|(a, b, ns, typical)| {
            format!("CPU {a} and {b} answer in {ns:.0} ns, others of one cache in {typical:.0} ns")
        })
        .collect();
    (!texts.is_empty()).then(|| Finding {
        id: "hidden-siblings",
        severity: Severity::Warning,
        title: "CPUs look like two threads of one core, which the kernel does not know",
        evidence: listed(&texts, "; "),
        remedy: "Do not run two busy threads on such a pair; let the hypervisor pass threads per core on."
            .into(),
    })
}

fn unsaid(placement: &Placement) -> Option<Finding> {
    placement.finding(
        |pair| pair.said_shared.is_none() && pair.placement.verdict != Verdict::Unknown,
        PairReport::sentence,
        |evidence| Finding {
            id: "sharing-not-said",
            severity: Severity::Note,
            title: "The kernel does not know who shares a cache",
            evidence,
            remedy: "Go by what was seen; the kernel's scheduler cannot.".into(),
        },
    )
}

fn unseen(placement: &Placement) -> Option<Finding> {
    placement.finding(
        |pair| pair.placement.verdict == Verdict::Unknown,
        PairReport::sentence,
        |evidence| Finding {
            id: "placement-unknown",
            severity: Severity::Note,
            title: "Whether CPUs share a cache could not be told",
            evidence,
            remedy: "Run `quell topo` when the machine is calmer: a CPU that is busy or paused answers late."
                .into(),
        },
    )
}

#[cfg(test)]
mod tests {
    use quell_core::{CpuId, Estimate};
    use quell_topology::PlacementSummary;

    use super::*;

    fn pair(cpus: [u32; 2], said_shared: Option<bool>, verdict: Verdict, near_pct: f64) -> PairReport {
        let known = |value: f64| Estimate::known(value, [value, value], 40);
        PairReport {
            a: CpuId(cpus[0]),
            b: CpuId(cpus[1]),
            said_shared,
            said_siblings: false,
            placement: PlacementSummary {
                near_pct: if verdict == Verdict::Unknown {
                    Estimate::unknown("the other vCPU answered in none of 40 rounds")
                } else {
                    known(near_pct)
                },
                switches_per_s: known(12.5),
                near_dwell_ms: Estimate::unknown("never seen"),
                far_dwell_ms: Estimate::unknown("never seen"),
                rtt_ns: Some(90.0),
                rounds: 40,
                unclear: 0,
                unanswered: 0,
                verdict,
            },
        }
    }

    fn ids(pairs: Vec<PairReport>) -> Vec<&'static str> {
        let placement = Placement { pairs };
        RULES.iter().filter_map(|rule| rule(&placement)).map(|finding| finding.id).collect()
    }

    #[test]
    fn what_is_as_said_is_not_mentioned() {
        let pairs = vec![
            pair([0, 1], Some(true), Verdict::Near, 100.0),
            pair([0, 2], Some(false), Verdict::Far, 0.0),
        ];
        assert!(ids(pairs).is_empty());
        assert!(ids(Vec::new()).is_empty());
    }

    #[test]
    fn each_contradiction_has_a_finding() {
        for (said, verdict, id) in [
            (Some(true), Verdict::Far, "shared-cache-not-shared"),
            (Some(false), Verdict::Near, "separate-caches-shared"),
            (Some(true), Verdict::Floating, "vcpus-floating"),
            (Some(false), Verdict::Floating, "vcpus-floating"),
            (None, Verdict::Near, "sharing-not-said"),
            (Some(true), Verdict::Unknown, "placement-unknown"),
        ] {
            assert_eq!(ids(vec![pair([0, 1], said, verdict, 50.0)]), [id]);
        }
    }

    #[test]
    fn floating_shows_share_and_rate() {
        let placement = Placement { pairs: vec![pair([0, 1], Some(true), Verdict::Floating, 62.0)] };
        let evidence = floating(&placement).unwrap().evidence;
        assert!(evidence.contains("62 %") && evidence.contains("12.5 times"), "{evidence}");
    }

    #[test]
    fn a_pair_much_faster_than_the_others_is_one_core() {
        let mut pairs: Vec<PairReport> =
            (1..5).map(|cpu| pair([0, cpu], Some(true), Verdict::Near, 100.0)).collect();
        pairs[2].placement.rtt_ns = Some(25.0);
        assert_eq!(ids(pairs), ["hidden-siblings"]);
    }

    #[test]
    fn many_pairs_are_summed_up() {
        let placement =
            Placement { pairs: (1..9).map(|cpu| pair([0, cpu], Some(true), Verdict::Far, 0.0)).collect() };
        let evidence = apart_though_said_shared(&placement).unwrap().evidence;
        assert!(evidence.ends_with("and 4 more like these"), "{evidence}");
    }
}
