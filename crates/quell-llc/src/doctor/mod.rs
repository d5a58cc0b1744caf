//! What keeps a measurement on this machine from being right, and what to do about it.
//!
//! [`examine`] measures and collects [`Facts`]; [`diagnose`] turns facts into findings and touches nothing.
//! Each area has a struct of facts and a list of rules of its own. A new area is a module with both, a field of
//! [`Facts`] and a line in [`diagnose`].

mod cache;
mod clock;
mod examine;
#[cfg(test)]
mod invented;
mod load;
mod machine;
mod placement;
mod report;

use quell_topology::TscFacts;
use serde::Serialize;

pub use self::cache::{Cache, Readings};
pub use self::examine::{PERIODS, examine, targets};
pub use self::load::CpuTime;
pub use self::machine::Machine;
pub use self::placement::Placement;
pub use self::report::DoctorReport;

/// How much a finding matters, the most serious first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Results are missing or cannot be trusted.
    Problem,
    /// Results are right but worse than they could be, or the machine is not what it seems.
    Warning,
    /// Good to know.
    Note,
    /// Checked and found right.
    Ok,
}

/// One thing that was found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Names the kind of finding, in kebab case; stable.
    pub id: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// The finding in a few words.
    pub title: &'static str,
    /// The figures it rests on.
    pub evidence: String,
    /// What to do, in plain words.
    pub remedy: String,
}

/// What is known when the diagnosis is made.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The time-stamp counter.
    pub clock: TscFacts,
    /// What this process may use and what the system says of itself.
    pub machine: Machine,
    /// Who shares a cache, as said and as seen.
    pub placement: Placement,
    /// One entry per LLC.
    pub caches: Vec<Cache>,
}

/// A rule looks at the facts of its area and either has something to say or not.
type Rule<F> = fn(&F) -> Option<Finding>;

/// Findings that differ in their evidence alone are put together; so many evidences are spelled out.
const SPELLED_OUT: usize = 4;

/// Applies all rules; the most serious findings come first.
#[must_use]
pub fn diagnose(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    ask(clock::RULES, &facts.clock, &mut findings);
    ask(machine::RULES, &facts.machine, &mut findings);
    ask(placement::RULES, &facts.placement, &mut findings);
    for cache in &facts.caches {
        for rules in cache::RULES {
            ask(rules, cache, &mut findings);
        }
    }
    let mut findings = put_together(findings);
    if findings.iter().all(|finding| finding.severity > Severity::Warning) {
        findings.push(cache::nothing_wrong(&facts.caches));
    }
    findings.sort_by_key(|finding| finding.severity);
    findings
}

fn ask<F>(rules: &[Rule<F>], facts: &F, findings: &mut Vec<Finding>) {
    findings.extend(rules.iter().filter_map(|rule| rule(facts)));
}

/// Makes one finding of those that say the same of several caches.
fn put_together(findings: Vec<Finding>) -> Vec<Finding> {
    let mut groups: Vec<(Finding, Vec<String>)> = Vec::new();
    for finding in findings {
        let alike = groups.iter_mut().find(|(first, _)| {
            (first.id, first.severity, &first.remedy) == (finding.id, finding.severity, &finding.remedy)
        });
        match alike {
            Some((_, evidences)) => evidences.push(finding.evidence),
            None => {
                let evidence = finding.evidence.clone();
                groups.push((finding, vec![evidence]));
            }
        }
    }
    groups
        .into_iter()
        .map(|(first, evidences)| Finding { evidence: listed(&evidences, "; "), ..first })
        .collect()
}

/// The first few texts, and how many more there are.
fn listed(texts: &[String], separator: &str) -> String {
    let mut text = texts[..texts.len().min(SPELLED_OUT)].join(separator);
    if texts.len() > SPELLED_OUT {
        text += &format!("{separator}and {} more like these", texts.len() - SPELLED_OUT);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::invented::facts;

    fn finding(id: &'static str, severity: Severity, evidence: &str) -> Finding {
        Finding { id, severity, title: "t", evidence: evidence.into(), remedy: "r".into() }
    }

    #[test]
    fn a_sound_machine_has_no_problem_and_is_told_so() {
        let findings = diagnose(&facts());
        let by_id = |id: &str| findings.iter().find(|finding| finding.id == id);
        assert_eq!(by_id("nothing-wrong").map(|finding| finding.severity), Some(Severity::Ok));
        assert!(findings.iter().all(|finding| finding.severity >= Severity::Note), "{findings:#?}");
    }

    #[test]
    fn the_worst_comes_first_and_then_nothing_is_called_right() {
        let mut facts = facts();
        facts.caches[0].measured = Err("the measuring thread panicked".into());
        facts.clock.clocksource = Some("hpet".into());
        let findings = diagnose(&facts);
        assert_eq!(findings[0].severity, Severity::Problem);
        assert!(findings.is_sorted_by_key(|finding| finding.severity));
        assert!(findings.iter().any(|finding| finding.severity == Severity::Warning));
        assert!(findings.iter().all(|finding| finding.id != "nothing-wrong"));
    }

    #[test]
    fn findings_alike_are_put_together_and_summed_up() {
        let mut many: Vec<Finding> =
            (0..6).map(|i| finding("a", Severity::Note, &format!("LLC {i}"))).collect();
        many.insert(2, finding("a", Severity::Warning, "other"));
        let together = put_together(many);
        assert_eq!(together.len(), 2);
        assert_eq!(together[0].evidence, "LLC 0; LLC 1; LLC 2; LLC 3; and 2 more like these");
        assert_eq!(together[1].evidence, "other");
    }
}
