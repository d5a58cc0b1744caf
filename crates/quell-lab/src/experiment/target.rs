//! What an experiment has to reach: smallest ratios of the baseline to an arm, fixed in its file.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::analysis::{Comparison, Verdict};
use crate::guest::Accelerator;

/// A target as the experiment's file states it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The dimensions that it is about; others do not matter.
    pub of: BTreeMap<String, String>,
    /// The arm, which is compared with the first.
    pub arm: String,
    /// `median` or `p99`.
    pub statistic: String,
    /// Under TCG.
    #[serde(default)]
    pub tcg: Option<Aim>,
    /// Under KVM.
    #[serde(default)]
    pub kvm: Option<Aim>,
}

/// How much is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Aim {
    /// The baseline takes at least this many times as long.
    AtLeast(f64),
    /// The data do not show that the arm takes longer.
    Word(NotLonger),
}

/// The word for the weakest aim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotLonger {
    /// The only one.
    #[serde(rename = "not longer")]
    NotLonger,
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(ratio) => write!(f, "{ratio}x"),
            Self::Word(NotLonger::NotLonger) => f.write_str("not longer"),
        }
    }
}

/// What became of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The measured ratio is at least the aim.
    Reached,
    /// It is below.
    Missed,
    /// This run has no value for it: the accelerator did not run, or no guest gave samples.
    NotMeasured,
}

impl Outcome {
    /// In words for tables.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Reached => "reached",
            Self::Missed => "MISSED",
            Self::NotMeasured => "not measured",
        }
    }
}

/// A target for one accelerator with its outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetResult {
    /// The dimensions that it is about.
    pub of: BTreeMap<String, String>,
    /// The arm.
    pub arm: String,
    /// `median` or `p99`.
    pub statistic: String,
    /// The accelerator that it holds for.
    pub accelerator: Accelerator,
    /// What was asked for.
    pub aim: Aim,
    /// The ratio that was measured.
    pub ratio: Option<f64>,
    /// The outcome.
    pub outcome: Outcome,
}

impl Target {
    /// Checks it against the names of the arms.
    ///
    /// # Errors
    /// The reason, in words.
    pub(super) fn validate(&self, arms: &[&str]) -> Result<(), String> {
        if !arms.iter().skip(1).any(|arm| *arm == self.arm) {
            return Err(format!("a [[target]] names the arm {:?}, which is not compared", self.arm));
        }
        if !["median", "p99"].contains(&self.statistic.as_str()) {
            return Err(format!(
                "a [[target]] has the statistic {:?}: must be median or p99",
                self.statistic
            ));
        }
        let aims = [self.tcg, self.kvm];
        if aims
            .iter()
            .flatten()
            .any(|aim| matches!(aim, Aim::AtLeast(ratio) if !ratio.is_finite() || *ratio <= 0.0))
        {
            return Err(String::from("the ratio of a [[target]] must be above 0"));
        }
        Ok(())
    }

    fn results(&self, comparisons: &[Comparison], ran: Accelerator) -> Vec<TargetResult> {
        let found = comparisons.iter().find(|comparison| {
            comparison.arm_b == self.arm
                && comparison.statistic == self.statistic
                && self.of.iter().all(|(name, value)| comparison.dimensions.get(name) == Some(value))
        });
        let one = |(accelerator, aim): (Accelerator, Aim)| {
            let found = found.filter(|_| accelerator == ran);
            TargetResult {
                of: self.of.clone(),
                arm: self.arm.clone(),
                statistic: self.statistic.clone(),
                accelerator,
                aim,
                ratio: found.map(|comparison| comparison.ratio),
                outcome: found.map_or(Outcome::NotMeasured, |comparison| outcome(aim, comparison)),
            }
        };
        let aims = [(Accelerator::Tcg, self.tcg), (Accelerator::Kvm, self.kvm)];
        aims.into_iter().filter_map(|(accelerator, aim)| Some((accelerator, aim?))).map(one).collect()
    }
}

fn outcome(aim: Aim, comparison: &Comparison) -> Outcome {
    let reached = match aim {
        Aim::AtLeast(ratio) => comparison.ratio >= ratio,
        Aim::Word(NotLonger::NotLonger) => match comparison.verdict {
            Verdict::Longer => false,
            Verdict::Shorter | Verdict::NoDifference => true,
            Verdict::Unknown => return Outcome::NotMeasured,
        },
    };
    if reached { Outcome::Reached } else { Outcome::Missed }
}

/// Every target for every accelerator that it names.
pub(super) fn judge(targets: &[Target], comparisons: &[Comparison], ran: Accelerator) -> Vec<TargetResult> {
    targets.iter().flat_map(|target| target.results(comparisons, ran)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(ratio: f64, verdict: Verdict) -> Comparison {
        Comparison {
            metric: String::from("move_pages"),
            statistic: String::from("median"),
            dimensions: BTreeMap::from([
                (String::from("call"), String::from("noop")),
                (String::from("pages"), String::from("1")),
            ]),
            arm_a: String::from("global"),
            arm_b: String::from("targeted"),
            ratio,
            ci95: None,
            ci95_reason: None,
            p_value: None,
            n_a: 4,
            n_b: 4,
            verdict,
        }
    }

    fn target(text: &str) -> Target {
        let text = format!("of = {{ call = \"noop\" }}\narm = \"targeted\"\nstatistic = \"median\"\n{text}");
        toml::from_str(&text).unwrap()
    }

    #[test]
    fn only_the_accelerator_that_ran_is_judged() {
        let target = target("tcg = 10\nkvm = 15.0");
        let outcomes = |ratio, ran| {
            let results = judge(std::slice::from_ref(&target), &[comparison(ratio, Verdict::Shorter)], ran);
            results.iter().map(|result| (result.aim.to_string(), result.outcome)).collect::<Vec<_>>()
        };
        let pair = |tcg, kvm| vec![(String::from("10x"), tcg), (String::from("15x"), kvm)];
        assert_eq!(outcomes(12.0, Accelerator::Tcg), pair(Outcome::Reached, Outcome::NotMeasured));
        assert_eq!(outcomes(9.9, Accelerator::Tcg), pair(Outcome::Missed, Outcome::NotMeasured));
        assert_eq!(outcomes(12.0, Accelerator::Kvm), pair(Outcome::NotMeasured, Outcome::Missed));
    }

    #[test]
    fn not_longer_asks_for_the_verdict_and_a_missing_cell_is_not_measured() {
        let target = target("tcg = \"not longer\"");
        let outcome = |comparisons: &[Comparison]| {
            judge(std::slice::from_ref(&target), comparisons, Accelerator::Tcg)[0].outcome
        };
        assert_eq!(outcome(&[comparison(0.9, Verdict::NoDifference)]), Outcome::Reached);
        assert_eq!(outcome(&[comparison(0.9, Verdict::Longer)]), Outcome::Missed);
        assert_eq!(outcome(&[comparison(0.9, Verdict::Unknown)]), Outcome::NotMeasured);
        assert_eq!(outcome(&[]), Outcome::NotMeasured);
    }

    #[test]
    fn targets_that_cannot_be_judged_are_refused() {
        let arms = ["global", "targeted"];
        let refused = |target: Target| target.validate(&arms).unwrap_err();
        let good = target("tcg = 2");
        good.validate(&arms).unwrap();
        assert!(refused(Target { arm: String::from("global"), ..good.clone() }).contains("not compared"));
        assert!(
            refused(Target { statistic: String::from("mean"), ..good.clone() }).contains("median or p99")
        );
        assert!(refused(Target { tcg: Some(Aim::AtLeast(0.0)), ..good }).contains("above 0"));
    }
}
