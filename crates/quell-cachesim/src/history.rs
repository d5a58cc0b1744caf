//! What happened to the vCPU during a run, for comparing with what an algorithm reported.

use std::ops::Range;

/// Pauses shorter than this are not recorded, in milliseconds.
pub const RECORDED_PAUSE_MS: f64 = 0.1;

/// Moves between LLCs and long pauses, in order.
#[derive(Clone, Debug, Default)]
pub struct History {
    moves: Vec<(f64, usize)>,
    pauses: Vec<(f64, f64)>,
}

impl History {
    pub(crate) fn moved(&mut self, at_ms: f64, llc: usize) {
        self.moves.push((at_ms, llc));
    }

    pub(crate) fn paused(&mut self, at_ms: f64, length_ms: f64) {
        if length_ms >= RECORDED_PAUSE_MS {
            self.pauses.push((at_ms, length_ms));
        }
    }

    /// Moves as (time in milliseconds, index of the LLC from then on).
    #[must_use]
    pub fn moves(&self) -> &[(f64, usize)] {
        &self.moves
    }

    /// Pauses of at least [`RECORDED_PAUSE_MS`] as (start, length) in milliseconds.
    #[must_use]
    pub fn pauses(&self) -> &[(f64, f64)] {
        &self.pauses
    }

    /// Number of moves in an interval, in milliseconds.
    #[must_use]
    pub fn moves_in(&self, ms: Range<f64>) -> usize {
        self.moves.iter().filter(|(at, _)| ms.contains(at)).count()
    }

    /// Number of recorded pauses that start in an interval, in milliseconds.
    #[must_use]
    pub fn pauses_in(&self, ms: Range<f64>) -> usize {
        self.pauses.iter().filter(|(at, _)| ms.contains(at)).count()
    }

    /// The LLC that the vCPU was in at a time, in milliseconds.
    #[must_use]
    pub fn llc_at(&self, ms: f64) -> usize {
        self.moves.iter().take_while(|(at, _)| *at <= ms).last().map_or(0, |&(_, llc)| llc)
    }
}
