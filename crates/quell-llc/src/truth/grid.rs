//! The grid of simulated machines.

use quell_cachesim::{Burst, Config, Placement, Polluter};
use serde::Serialize;

/// A simulated machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Intel Skylake-SP: non-inclusive LLC, 20 slices.
    SkylakeSp,
    /// AMD Milan: exclusive victim LLC.
    Milan,
}

/// What makes measuring harder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disturbance {
    /// Neighbors of constant intensity.
    Steady,
    /// Neighbors whose log intensity has a standard deviation of 0.95 and correlation times of 7 and 123 ms:
    /// burstier than the measured host, whose log *hazard* varies that much.
    Bursty,
    /// Neighbors that are active for 30 ms and silent for 10 ms on average.
    OnOff,
    /// The host moves the vCPU to another LLC every 110 ms of sleep on average; bursty neighbors.
    Jumps,
    /// Every other two seconds a thread of our own VM evicts nine times as much as the (bursty) neighbors.
    OwnLoad,
    /// The same, but as much as the neighbors.
    EqualLoad,
    /// The same, but a tenth of the neighbors.
    SlightLoad,
    /// Neighbors that empty the cache within the shortest window: no half-life may be given.
    Saturated,
    /// Neighbors that evict next to nothing within the longest window: no half-life may be given.
    Quiet,
}

/// One cell of the grid.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The machine.
    pub preset: Preset,
    /// The neighbors' insertions per set of the LLC and ms.
    pub insertions_per_set_ms: f64,
    /// The disturbance.
    pub disturbance: Disturbance,
}

impl Preset {
    /// Both presets.
    pub const ALL: [Self; 2] = [Self::SkylakeSp, Self::Milan];

    /// The name on the command line and in every output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SkylakeSp => "skylake-sp",
            Self::Milan => "milan",
        }
    }

    /// The simulated machine.
    #[must_use]
    pub fn config(self) -> Config {
        match self {
            Self::SkylakeSp => Config::skylake_sp(),
            Self::Milan => Config::milan(),
        }
    }
}

impl Disturbance {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Steady,
        Self::Bursty,
        Self::OnOff,
        Self::Jumps,
        Self::OwnLoad,
        Self::EqualLoad,
        Self::SlightLoad,
        Self::Saturated,
        Self::Quiet,
    ];

    /// The name on the command line and in every output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Bursty => "bursty",
            Self::OnOff => "on-off",
            Self::Jumps => "jumps",
            Self::OwnLoad => "own-load",
            Self::EqualLoad => "equal-load",
            Self::SlightLoad => "slight-load",
            Self::Saturated => "saturated",
            Self::Quiet => "quiet",
        }
    }

    /// The neighbors' insertions per set and ms in the cells of this disturbance.
    fn rates(self) -> Vec<f64> {
        let five = |least: f64| (0..5).map(|step| least * 50_f64.powf(f64::from(step) / 4.0)).collect();
        match self {
            Self::Saturated => vec![100.0],
            Self::Quiet => vec![0.02],
            Self::OwnLoad => vec![0.3, 1.0, 3.0],
            Self::EqualLoad | Self::SlightLoad => vec![1.0, 4.0, 12.0],
            Self::Steady | Self::Bursty | Self::OnOff | Self::Jumps => five(0.75),
        }
    }

    fn burst(self) -> Burst {
        match self {
            Self::Steady | Self::Saturated | Self::Quiet => Burst::Constant,
            Self::OnOff => Burst::OnOff { on_ms: 30.0, off_ms: 10.0 },
            Self::Bursty | Self::Jumps | Self::OwnLoad | Self::EqualLoad | Self::SlightLoad => {
                Burst::LogNormal { log_sd: 0.95, slow_share: 0.36, fast_ms: 7.0, slow_ms: 123.0 }
            }
        }
    }
}

/// Mean stay in one LLC, in ms of sleep.
const DWELL_MS: f64 = 110.0;

/// When a round's first period starts, in ms of simulated time. Our own load begins then, so that it changes
/// between periods, where the truth of a period is clear.
pub(super) const START_MS: f64 = 1000.0;

fn polluter(per_ms: f64) -> Polluter {
    Polluter { per_ms, period_ms: 4000.0, duty: 0.5, start_ms: START_MS, llc: 0, color: None, reuse: 0.2 }
}

impl Cell {
    /// The simulated machine of this cell.
    #[must_use]
    pub fn config(&self) -> Config {
        let mut config = self.preset.config();
        // The question is how long lines live in the LLC, not how they get there.
        config.llc.snoop_filter = None;
        let per_ms = self.insertions_per_set_ms * f64::from(config.llc_sets());
        let mut neighbor = config.neighbors[0].clone();
        neighbor.per_ms = per_ms;
        neighbor.burst = self.disturbance.burst();
        config.neighbors = vec![neighbor.clone()];
        config.placement = None;
        match self.disturbance {
            Disturbance::Jumps => {
                config.neighbors.push(neighbor);
                config.placement = Some(Placement { dwell_ms: DWELL_MS, calmer_running: 8.0 });
            }
            Disturbance::OwnLoad => config.polluter = Some(polluter(per_ms * 9.0)),
            Disturbance::EqualLoad => config.polluter = Some(polluter(per_ms)),
            Disturbance::SlightLoad => config.polluter = Some(polluter(per_ms * 0.1)),
            Disturbance::Steady
            | Disturbance::Bursty
            | Disturbance::OnOff
            | Disturbance::Saturated
            | Disturbance::Quiet => {}
        }
        config
    }
}

/// The whole grid: both presets, every disturbance, neighbor rates over a factor of 50.
#[must_use]
pub fn grid() -> Vec<Cell> {
    let mut cells = Vec::new();
    for preset in Preset::ALL {
        for disturbance in Disturbance::ALL {
            let rates = disturbance.rates().into_iter();
            cells.extend(rates.map(|insertions_per_set_ms| Cell {
                preset,
                insertions_per_set_ms,
                disturbance,
            }));
        }
    }
    cells
}
