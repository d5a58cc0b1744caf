//! What to measure.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{MigrateError, Result};

/// Most pages in one call.
const MAX_PAGES: u32 = 65_536;

/// Which form of `move_pages` is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    /// Asks where the pages are; moves nothing and waits for nothing.
    Query,
    /// Moves pages to the node where they already are: no copy, but the whole preparation.
    Noop,
    /// Moves pages to another node.
    Move,
}

/// Which CPU faulted the pages in, and so whose LRU batch they may sit in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Toucher {
    /// The CPU that makes the call.
    #[default]
    Same,
    /// Another one.
    Other,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Query => "query",
            Self::Noop => "noop",
            Self::Move => "move",
        })
    }
}

impl fmt::Display for Toucher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Same => "same",
            Self::Other => "other",
        })
    }
}

/// One kind of call, measured many times.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The form of the call.
    pub call: Call,
    /// Pages in one call.
    pub pages: u32,
    /// Who faulted them in.
    #[serde(default)]
    pub touched_by: Toucher,
    /// Node that they start on; by default the first with memory.
    #[serde(default)]
    pub from: Option<u32>,
    /// Node that they go to (only for [`Call::Move`]); by default the first other one.
    #[serde(default)]
    pub to: Option<u32>,
}

/// What to measure, and how often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Samples of each case.
    pub samples: u32,
    /// Rounds over all cases before the first sample.
    #[serde(default = "default_warmup")]
    pub warmup: u32,
    /// CPU that makes the calls.
    #[serde(default)]
    pub cpu: u32,
    /// The cases, measured in turn so that drift hits all of them alike.
    pub cases: Vec<Case>,
}

const fn default_warmup() -> u32 {
    10
}

impl Plan {
    /// Checks what can be checked without the machine.
    ///
    /// # Errors
    /// [`MigrateError::BadPlan`] with the reason.
    pub fn validate(&self) -> Result<()> {
        let bad = |reason: String| Err(MigrateError::BadPlan { reason });
        if self.samples == 0 {
            return bad(String::from("it takes no samples"));
        }
        if self.cases.is_empty() {
            return bad(String::from("it has no cases"));
        }
        for case in &self.cases {
            if !(1..=MAX_PAGES).contains(&case.pages) {
                return bad(format!("{} pages in one call: must be 1 to {MAX_PAGES}", case.pages));
            }
            if case.call != Call::Move && case.to.is_some() {
                return bad(String::from("only a `move` has a `to`"));
            }
            if case.from.is_some() && case.from == case.to {
                return bad(String::from("a `move` needs two different nodes"));
            }
        }
        Ok(())
    }

    /// The plan with the machine's nodes filled in where a case leaves them open.
    ///
    /// # Errors
    /// [`MigrateError::BadPlan`] if a case needs a node that `nodes`, those with memory, does not have.
    pub(crate) fn resolve(&self, nodes: &[u32]) -> Result<Vec<Case>> {
        self.validate()?;
        let bad = |reason: String| MigrateError::BadPlan { reason };
        let first = *nodes.first().ok_or_else(|| bad(String::from("no node has memory")))?;
        let known = |node: u32| {
            let text = || bad(format!("node {node} has no memory here (those that have: {nodes:?})"));
            nodes.contains(&node).then_some(node).ok_or_else(text)
        };
        self.cases
            .iter()
            .map(|case| {
                let from = known(case.from.unwrap_or(if case.to == Some(first) {
                    nodes.iter().copied().find(|node| *node != first).unwrap_or(first)
                } else {
                    first
                }))?;
                let to = match (case.call, case.to) {
                    (Call::Move, Some(to)) => Some(known(to)?),
                    (Call::Move, None) => {
                        let other = nodes.iter().copied().find(|node| *node != from);
                        Some(other.ok_or_else(|| bad(String::from("a `move` needs two nodes with memory")))?)
                    }
                    (Call::Noop, _) => Some(from),
                    (Call::Query, _) => None,
                };
                if case.call == Call::Move && to == Some(from) {
                    return Err(bad(String::from("a `move` needs two different nodes")));
                }
                Ok(Case { from: Some(from), to, ..case.clone() })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(call: Call, from: Option<u32>, to: Option<u32>) -> Case {
        Case { call, pages: 4, touched_by: Toucher::Same, from, to }
    }

    fn plan(cases: Vec<Case>) -> Plan {
        Plan { samples: 3, warmup: 0, cpu: 0, cases }
    }

    #[test]
    fn open_nodes_are_filled_in() {
        let resolve = |case: Case, nodes: &[u32]| {
            let resolved = plan(vec![case]).resolve(nodes).map(|mut cases| cases.remove(0));
            resolved.map(|case| (case.from.unwrap(), case.to)).map_err(|error| error.to_string())
        };
        assert_eq!(resolve(case(Call::Move, None, None), &[0, 1]), Ok((0, Some(1))));
        assert_eq!(resolve(case(Call::Move, Some(1), None), &[0, 1]), Ok((1, Some(0))));
        assert_eq!(resolve(case(Call::Move, None, Some(0)), &[0, 2]), Ok((2, Some(0))));
        assert_eq!(resolve(case(Call::Noop, None, None), &[3]), Ok((3, Some(3))));
        assert_eq!(resolve(case(Call::Query, None, None), &[0]), Ok((0, None)));
        assert!(resolve(case(Call::Move, None, None), &[0]).unwrap_err().contains("two nodes"));
        assert!(
            resolve(case(Call::Move, None, Some(7)), &[0, 1]).unwrap_err().contains("node 7 has no memory")
        );
    }

    #[test]
    fn plans_that_make_no_sense_are_refused() {
        let reason = |plan: Plan| plan.validate().unwrap_err().to_string();
        assert!(reason(plan(vec![])).contains("no cases"));
        assert!(
            reason(Plan { samples: 0, ..plan(vec![case(Call::Noop, None, None)]) }).contains("no samples")
        );
        assert!(reason(plan(vec![case(Call::Noop, None, Some(1))])).contains("only a `move`"));
        assert!(reason(plan(vec![case(Call::Move, Some(1), Some(1))])).contains("two different"));
        let zero = Case { pages: 0, ..case(Call::Noop, None, None) };
        assert!(reason(plan(vec![zero])).contains("0 pages"));
    }
}
