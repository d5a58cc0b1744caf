//! From measured calls to a batch size.

use std::time::Duration;

use serde::Serialize;

use crate::plan::Call;
use crate::survey::CaseSummary;

/// With fewer samples the 99th percentile is only the maximum.
const FOR_P99: usize = 100;

/// How a recommendation was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// Real moves of that size were measured.
    MeasuredMoves,
    /// No-op moves were measured, and one fault-and-copy per page was added. A real move costs at least that.
    NoopPlusCopy,
}

/// The batch size for a latency budget.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recommendation {
    /// The budget, in nanoseconds.
    pub budget_ns: f64,
    /// How the answer was found.
    pub basis: Basis,
    /// The largest measured batch whose 99th percentile fits; `None` if not even the smallest does.
    pub pages: Option<u32>,
    /// That percentile (nearest rank), or the smallest batch's if none fits, in nanoseconds.
    pub p99_ns: Option<f64>,
    /// The answer in words.
    pub text: String,
}

/// Chooses the largest measured batch size whose 99th percentile (nearest rank) stays within the budget.
///
/// `copy_ns` is the cost of faulting in and filling one page, used where no real move was measured.
#[must_use]
pub fn recommend(cases: &[CaseSummary], copy_ns: f64, budget: Duration) -> Recommendation {
    let budget_ns = budget.as_nanos() as f64;
    let of = |call| cases.iter().filter(move |summary| summary.case.call == call);
    let (basis, mut costs): (_, Vec<(u32, f64)>) = if of(Call::Move).next().is_some() {
        (Basis::MeasuredMoves, of(Call::Move).map(|s| (s.case.pages, s.p99_nearest_rank_ns)).collect())
    } else {
        let cost =
            |s: &CaseSummary| (s.case.pages, s.p99_nearest_rank_ns + f64::from(s.case.pages) * copy_ns);
        (Basis::NoopPlusCopy, of(Call::Noop).map(cost).collect())
    };
    costs.sort_by_key(|(pages, _)| *pages);
    // A larger batch counts only if every smaller one fits too: a lucky size among bad ones is luck.
    let few = cases.iter().map(|summary| summary.samples).min().filter(|least| *least < FOR_P99);
    if let Some(least) = few {
        let text =
            format!("unknown: {least} calls of a kind, at least {FOR_P99} are needed for a 99th percentile");
        return Recommendation { budget_ns, basis, pages: None, p99_ns: None, text };
    }
    let fitting = costs.iter().take_while(|(_, cost)| *cost <= budget_ns).last();
    let answer = fitting.or(costs.first());
    let how = match basis {
        Basis::MeasuredMoves => "measured",
        Basis::NoopPlusCopy => "at least, from the no-op move plus a copy",
    };
    let text = match (fitting, answer) {
        (Some((pages, cost)), _) => {
            format!(
                "{pages} pages a call: P99 {:.0} us ({how}), within {:.0} us",
                cost / 1e3,
                budget_ns / 1e3
            )
        }
        (None, Some((pages, cost))) => format!(
            "no batch fits in {} us: even the smallest, of {pages}, takes {:.0} us at P99 ({how})",
            budget_ns / 1e3,
            cost / 1e3
        ),
        (None, None) => String::from("nothing was measured"),
    };
    Recommendation {
        budget_ns,
        basis,
        pages: fitting.map(|(pages, _)| *pages),
        p99_ns: answer.map(|(_, cost)| *cost),
        text,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Case, Toucher};

    fn summary(call: Call, pages: u32, p99: f64) -> CaseSummary {
        CaseSummary {
            case: Case { call, pages, touched_by: Toucher::Same, from: None, to: None },
            samples: 300,
            median_ns: p99 / 2.0,
            p99_floor_ns: p99,
            p99_nearest_rank_ns: p99,
            max_ns: p99 * 2.0,
            failed_pages: 0,
            misplaced_pages: 0,
            corrupt_pages: 0,
        }
    }

    fn ask(cases: &[CaseSummary], micros: u64) -> (Option<u32>, Basis) {
        let answer = recommend(cases, 1_000.0, Duration::from_micros(micros));
        (answer.pages, answer.basis)
    }

    #[test]
    fn real_moves_decide_where_there_are_any() {
        let cases = [
            summary(Call::Noop, 256, 1.0),
            summary(Call::Move, 16, 600e3),
            summary(Call::Move, 1, 400e3),
            summary(Call::Move, 256, 6e6),
        ];
        assert_eq!(ask(&cases, 1000), (Some(16), Basis::MeasuredMoves));
        assert_eq!(ask(&cases, 10_000), (Some(256), Basis::MeasuredMoves));
        assert_eq!(ask(&cases, 100), (None, Basis::MeasuredMoves));
    }

    #[test]
    fn with_one_node_the_copy_is_added() {
        let cases = [summary(Call::Noop, 1, 40e3), summary(Call::Noop, 64, 45e3)];
        assert_eq!(ask(&cases, 50), (Some(1), Basis::NoopPlusCopy));
        assert_eq!(ask(&cases, 120), (Some(64), Basis::NoopPlusCopy));
        assert_eq!(ask(&[], 120).0, None);
    }

    #[test]
    fn too_few_samples_are_no_percentile() {
        let few = CaseSummary { samples: 99, ..summary(Call::Move, 1, 1.0) };
        let answer = recommend(&[few], 1.0, Duration::from_secs(1));
        assert_eq!((answer.pages, answer.p99_ns), (None, None));
        assert!(answer.text.contains("unknown: 99 calls"), "{}", answer.text);
    }

    proptest! {
        #[test]
        fn a_larger_budget_never_gives_a_smaller_batch(
            costs in prop::collection::vec(1.0..1e7_f64, 1..6), a in 1_u64..20_000, b in 1_u64..20_000
        ) {
            let cases: Vec<_> =
                costs.iter().enumerate().map(|(i, cost)| summary(Call::Move, 1 << i, *cost)).collect();
            let (small, large) = (ask(&cases, a.min(b)).0, ask(&cases, a.max(b)).0);
            prop_assert!(small.unwrap_or(0) <= large.unwrap_or(0));
        }
    }
}
