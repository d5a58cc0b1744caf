//! Foreign traffic as an intensity that is known at any time, whoever looks and however often.
//!
//! The intensity is piecewise constant on cells of 0.1 ms and depends on the seed alone, never on what the
//! measuring side does: the ground truth and the measured run see the same bursts.

use std::collections::VecDeque;

use crate::config::{Burst, Polluter, Traffic};
use crate::rng::Rng;

/// Length of a cell, in milliseconds.
const CELL_MS: f64 = 0.1;
/// Cells that are remembered for vCPUs whose clock lags behind another's.
const REMEMBERED: usize = 20_000;

/// Which of the two sources of traffic: somebody outside our VM, or our own VM on another vCPU.
pub(crate) const OUTSIDE: usize = 0;
pub(crate) const OWN: usize = 1;

/// The varying factor of an intensity, with mean 1.
#[derive(Clone, Debug)]
enum Factor {
    Constant,
    OnOff { on: bool, height: f64, leave: [f64; 2] },
    LogNormal { state: [f64; 2], decay: [f64; 2], sd: [f64; 2], mean: f64 },
}

impl Factor {
    fn new(burst: Burst, rng: &mut Rng) -> Self {
        match burst {
            Burst::Constant => Self::Constant,
            Burst::OnOff { on_ms, off_ms } => {
                let duty = on_ms / (on_ms + off_ms);
                let leave = [off_ms, on_ms].map(|mean| 1.0 - libm::exp(-CELL_MS / mean));
                Self::OnOff { on: rng.unit() < duty, height: 1.0 / duty, leave }
            }
            Burst::LogNormal { log_sd, slow_share, fast_ms, slow_ms } => {
                let sd = [1.0 - slow_share, slow_share].map(|share| log_sd * share.sqrt());
                let decay = [fast_ms, slow_ms].map(|tau| libm::exp(-CELL_MS / tau));
                let state = sd.map(|sd| sd * rng.normal());
                Self::LogNormal { state, decay, sd, mean: -log_sd * log_sd / 2.0 }
            }
        }
    }

    fn next(&mut self, rng: &mut Rng) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::OnOff { on, height, leave } => {
                if rng.unit() < leave[usize::from(*on)] {
                    *on = !*on;
                }
                if *on { *height } else { 0.0 }
            }
            Self::LogNormal { state, decay, sd, mean } => {
                for i in 0..2 {
                    let noise = sd[i] * (1.0 - decay[i] * decay[i]).sqrt();
                    state[i] = decay[i] * state[i] + noise * rng.normal();
                }
                libm::exp(state[0] + state[1] + *mean)
            }
        }
    }
}

/// Expected insertions into an average set, integrated over time, for both sources.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    rng: Rng,
    factor: Factor,
    /// Mean insertions per set and millisecond.
    outside: f64,
    polluter: Option<(Polluter, f64)>,
    cell_ticks: f64,
    /// The cell that is looked at.
    cell: u64,
    start: f64,
    now: Cell,
    /// The latest cells, and the number of the first of them.
    cells: VecDeque<Cell>,
    first: u64,
}

/// One cell: the integral at its start, and the intensity in it.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    base: [f64; 2],
    per_tick: [f64; 2],
}

impl Path {
    /// Traffic into a cache of `sets` sets.
    pub fn new(
        traffic: &Traffic,
        polluter: Option<Polluter>,
        sets: u32,
        ticks_per_ms: f64,
        mut rng: Rng,
    ) -> Self {
        let factor = Factor::new(traffic.burst, &mut rng);
        let mut path = Self {
            rng,
            factor,
            outside: traffic.per_ms / f64::from(sets),
            polluter: polluter.map(|p| (p, p.per_ms / f64::from(sets))),
            cell_ticks: CELL_MS * ticks_per_ms,
            cell: 0,
            start: 0.0,
            now: Cell::default(),
            cells: VecDeque::new(),
            first: 0,
        };
        path.draw([0.0; 2]);
        path.now = path.cells[0];
        path
    }

    /// Draws the cell behind the latest one. `base` is the integral at its start.
    fn draw(&mut self, base: [f64; 2]) {
        let number = self.first + self.cells.len() as u64;
        let outside = if self.outside > 0.0 { self.outside * self.factor.next(&mut self.rng) } else { 0.0 };
        let own = self.polluter.map_or(0.0, |(polluter, per_ms)| {
            let from = number as f64 * CELL_MS;
            let busy = polluter.busy_until(from + CELL_MS) - polluter.busy_until(from);
            per_ms * busy / CELL_MS
        });
        let per_tick = [outside, own].map(|per_ms| per_ms * CELL_MS / self.cell_ticks);
        if self.cells.len() == REMEMBERED {
            self.cells.pop_front();
            self.first += 1;
        }
        self.cells.push_back(Cell { base, per_tick });
    }

    /// End of the current cell, in ticks.
    pub fn cell_end(&self) -> f64 {
        (self.cell + 1) as f64 * self.cell_ticks
    }

    /// Moves to the next cell.
    pub fn next_cell(&mut self) {
        self.cell += 1;
        self.start = self.cell as f64 * self.cell_ticks;
        if self.cell == self.first + self.cells.len() as u64 {
            let Cell { base, per_tick } = self.now;
            self.draw([0, 1].map(|i| base[i] + per_tick[i] * self.cell_ticks));
        }
        self.now = self.cells[(self.cell - self.first) as usize];
    }

    /// Moves to the cell that contains `ticks`: forward, or back as far as is remembered.
    pub fn advance(&mut self, ticks: f64) {
        if ticks < self.start {
            self.cell = ((ticks / self.cell_ticks) as u64).max(self.first);
            self.start = self.cell as f64 * self.cell_ticks;
            self.now = self.cells[(self.cell - self.first) as usize];
        }
        while ticks >= self.cell_end() {
            self.next_cell();
        }
    }

    /// The integral until `ticks`, which lies in the current cell.
    #[inline]
    pub fn at(&self, ticks: f64) -> [f64; 2] {
        let since = ticks - self.start;
        let Cell { base, per_tick } = self.now;
        [base[0] + per_tick[0] * since, base[1] + per_tick[1] * since]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Insertions per set in each of `n` intervals of `ms`.
    fn increments(burst: Burst, ms: f64, n: usize) -> Vec<f64> {
        let traffic = Traffic { per_ms: 3.0, burst, reuse: 0.0, by_color: vec![] };
        let mut path = Path::new(&traffic, None, 1, 1000.0, Rng::new(9, 9));
        let mut last = 0.0;
        (1..=n)
            .map(|i| {
                let ticks = i as f64 * ms * 1000.0;
                path.advance(ticks);
                let now = path.at(ticks)[OUTSIDE];
                let step = now - last;
                last = now;
                step
            })
            .collect()
    }

    fn correlation(values: &[f64], lag: usize) -> f64 {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let cov = |lag: usize| -> f64 {
            values.iter().zip(&values[lag..]).map(|(a, b)| (a - mean) * (b - mean)).sum()
        };
        cov(lag) / cov(0)
    }

    #[test]
    fn every_kind_of_burst_keeps_the_mean_rate() {
        let log_normal = Burst::LogNormal { log_sd: 1.0, slow_share: 0.4, fast_ms: 7.0, slow_ms: 100.0 };
        for burst in [Burst::Constant, Burst::OnOff { on_ms: 5.0, off_ms: 20.0 }, log_normal] {
            let steps = increments(burst, 10.0, 20_000);
            let mean = steps.iter().sum::<f64>() / steps.len() as f64;
            assert!((mean / 30.0 - 1.0).abs() < 0.08, "{burst:?}: {mean}");
        }
    }

    #[test]
    fn log_intensity_has_the_configured_spread_and_correlation() {
        let burst = Burst::LogNormal { log_sd: 0.8, slow_share: 0.4, fast_ms: 7.0, slow_ms: 100.0 };
        let logs: Vec<f64> = increments(burst, 0.1, 2_000_000).iter().map(|v| v.ln()).collect();
        let mean = logs.iter().sum::<f64>() / logs.len() as f64;
        let sd = (logs.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / logs.len() as f64).sqrt();
        assert!((sd - 0.8).abs() < 0.04, "{sd}");
        for lag_ms in [10.0, 50.0] {
            let expected = 0.6 * f64::exp(-lag_ms / 7.0) + 0.4 * f64::exp(-lag_ms / 100.0);
            let found = correlation(&logs, (lag_ms * 10.0) as usize);
            assert!((found - expected).abs() < 0.06, "lag {lag_ms}: {found}, expected {expected}");
        }
    }

    #[test]
    fn a_path_can_be_looked_at_again() {
        let burst = Burst::OnOff { on_ms: 1.0, off_ms: 1.0 };
        let traffic = Traffic { per_ms: 3.0, burst, reuse: 0.0, by_color: vec![] };
        let mut path = Path::new(&traffic, None, 1, 1000.0, Rng::new(9, 9));
        let mut look = |ticks: f64| {
            path.advance(ticks);
            path.at(ticks)
        };
        let times = [10.0, 50.5, 7_000.0, 9_999.0];
        let first = times.map(&mut look);
        assert_eq!(times.map(&mut look), first);
    }

    #[test]
    fn the_polluter_runs_in_the_first_part_of_each_cycle() {
        let polluter = Polluter {
            per_ms: 10.0,
            period_ms: 4.0,
            duty: 0.25,
            start_ms: 2.0,
            llc: 0,
            color: None,
            reuse: 0.0,
        };
        for (ms, busy) in [(0.0, 0.0), (2.5, 0.5), (3.0, 1.0), (6.0, 1.0), (6.5, 1.5), (42.0, 10.0)] {
            assert!((polluter.busy_until(ms) - busy).abs() < 1e-9, "at {ms}");
        }
        let silent = Traffic { per_ms: 0.0, burst: Burst::Constant, reuse: 0.0, by_color: vec![] };
        let mut path = Path::new(&silent, Some(polluter), 5, 1000.0, Rng::new(0, 0));
        path.advance(42_000.0);
        assert!((path.at(42_000.0)[OWN] - 10.0 * 10.0 / 5.0).abs() < 1e-6);
    }
}
