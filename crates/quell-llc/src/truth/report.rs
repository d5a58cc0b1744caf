//! The grid's outcome in the form that leaves the program: schema `quell.truth/1`, see `docs/json.md`.

use serde::Serialize;

use super::CellResult;
use crate::planner::WINDOW_MS;

/// Name and version of the schema.
pub const SCHEMA: &str = "quell.truth/1";
/// Share of the intervals that must hold the truth.
const COVERAGE: f64 = 0.93;
/// Share of the labels other than `unknown` that must be right.
const SOURCES: f64 = 0.95;

/// All cells with their rounds, and the totals.
#[derive(Clone, Debug, Serialize)]
pub struct TruthReport {
    /// Name and version of the schema.
    pub schema: &'static str,
    /// Always true: none of this was measured on real hardware.
    pub simulated: bool,
    /// Simulated scans.
    pub rounds: usize,
    /// Scans that gave a half-life.
    pub known: usize,
    /// Share of these whose interval holds the truth.
    pub coverage: Option<f64>,
    /// Periods labeled with a source.
    pub sources: u32,
    /// Share of these whose label is right.
    pub sources_right: Option<f64>,
    /// Scans that gave a half-life although it lies far outside of what windows can resolve.
    pub false_numbers: usize,
    /// The cells.
    pub cells: Vec<CellResult>,
}

impl TruthReport {
    /// Adds up the cells.
    #[must_use]
    pub fn new(cells: Vec<CellResult>) -> Self {
        let rounds = || cells.iter().flat_map(|cell| &cell.rounds);
        let known = rounds().filter(|round| round.covered.is_some()).count();
        let covered = rounds().filter(|round| round.covered == Some(true)).count();
        let [right, sources] =
            rounds().fold([0, 0], |sum, round| [sum[0] + round.sources[0], sum[1] + round.sources[1]]);
        // Half of the shortest, and ten times the longest window.
        let resolvable = WINDOW_MS.start() / 2.0..WINDOW_MS.end() * 10.0;
        let out_of_reach = |truth: Option<f64>| truth.is_none_or(|truth| !resolvable.contains(&truth));
        let false_numbers = rounds()
            .filter(|round| round.estimate_ms.is_some() && out_of_reach(round.true_half_life_ms))
            .count();
        Self {
            schema: SCHEMA,
            simulated: true,
            rounds: rounds().count(),
            known,
            coverage: (known > 0).then(|| covered as f64 / known as f64),
            sources,
            sources_right: (sources > 0).then(|| f64::from(right) / f64::from(sources)),
            false_numbers,
            cells,
        }
    }

    /// Whether all aims are reached (where there is anything to judge).
    #[must_use]
    pub fn passed(&self) -> bool {
        self.coverage.is_none_or(|share| share >= COVERAGE)
            && self.sources_right.is_none_or(|share| share >= SOURCES)
            && self.false_numbers == 0
    }
}
