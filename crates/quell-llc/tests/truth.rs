//! The monitor against simulated machines whose truth is known: a part of `quell bench truth`.

use std::sync::atomic::AtomicBool;

use quell_llc::truth::{Cell, Disturbance, TruthReport, grid, run};

/// The middle rate of each disturbance of each machine; and the only one where there is only one.
fn cells() -> Vec<Cell> {
    let mut cells = grid();
    let all = cells.clone();
    cells.retain(|cell| {
        let rates: Vec<f64> = all
            .iter()
            .filter(|other| other.preset == cell.preset && other.disturbance == cell.disturbance)
            .map(|other| other.insertions_per_set_ms)
            .collect();
        cell.insertions_per_set_ms == rates[rates.len() / 2]
    });
    cells
}

/// Seeds are fixed, so this cannot fail by chance; the whole grid with many seeds is `quell bench truth`.
#[test]
fn intervals_hold_the_truth_and_sources_are_right() {
    let report = TruthReport::new(run(&cells(), 2, &AtomicBool::new(false), &|_| {}).unwrap());
    let known = report.known as f64;
    let covered = report.coverage.unwrap() * known;
    assert!(known >= 20.0, "only {known} of {} scans gave a half-life", report.rounds);
    assert!(covered >= 0.9 * known, "{covered} of {known} intervals hold the truth");
    assert!(report.sources_right.unwrap() >= 0.95, "sources right: {:?}", report.sources_right);
}

#[test]
fn saturated_and_quiet_caches_are_never_given_a_number() {
    let extremes: Vec<Cell> = grid()
        .into_iter()
        .filter(|cell| matches!(cell.disturbance, Disturbance::Saturated | Disturbance::Quiet))
        .collect();
    for result in run(&extremes, 2, &AtomicBool::new(false), &|_| {}).unwrap() {
        for round in &result.rounds {
            let name = result.cell.disturbance.name();
            assert_eq!(round.estimate_ms, None, "{name}");
            assert!(round.reason.as_deref().unwrap().contains(name), "{name}: {:?}", round.reason);
        }
    }
}
