//! Invented facts of a sound machine, for the rules' tests to spoil.

use quell_core::stats::survival::Window;
use quell_core::{Bytes, CpuId, LlcId};
use quell_topology::TscFacts;

use super::{Cache, CpuTime, Facts, Machine, Placement, Readings};
use crate::attribution::{Source, Verdict};
use crate::calibrate::{Calibration, Discriminator, LatencyClass};
use crate::capacity::Usable;
use crate::curve::{Curve, Observation};
use crate::layout::Spill;
use crate::monitor::Discarded;
use crate::summary::Summary;
use crate::tier::TierLimits;
use crate::timer::Timer;

pub(super) fn clock() -> TscFacts {
    TscFacts {
        invariant: Some(true),
        constant: Some(true),
        nonstop: Some(true),
        rdtscp: Some(true),
        clocksource: Some("tsc".into()),
    }
}

pub(super) fn machine() -> Machine {
    Machine {
        online: 2,
        measured: vec![CpuId(0), CpuId(1)],
        llcs: [1, 0],
        cache_folders: true,
        huge_pages: Some("madvise".into()),
        ..Machine::default()
    }
}

/// The curve of a cache with this half-life and shape 2.5, seen through windows around it.
pub(super) fn curve(half_life_ms: f64) -> Curve {
    let observations: Vec<Observation> = (0..60_u32)
        .map(|i| {
            let exposure_ms = half_life_ms * (0.6 + 0.08 * f64::from(i % 12));
            let share = 1.0 - (-(exposure_ms / half_life_ms).powf(2.5) * std::f64::consts::LN_2).exp();
            Observation { window: Window::new(exposure_ms, share, i / 4), sentinels_lost: 0.0 }
        })
        .collect();
    Curve::fit(&observations, 0.0, 2.5)
}

/// The curve of windows of one length that all lost the same share.
pub(super) fn cut_off(exposure_ms: f64, share: f64) -> Curve {
    let window = |block| Window::new(exposure_ms, share, block);
    let observations: Vec<Observation> =
        (0..30).map(|i| Observation { window: window(i / 2), sentinels_lost: share }).collect();
    Curve::fit(&observations, 0.0, 2.5)
}

fn readings() -> Readings {
    let curve = curve(7.0);
    let summary = Summary {
        half_life_ms: curve.half_life_ms(),
        hazard_per_ms: curve.hazard_per_ms(),
        rate_pct_per_ms: curve.rate_pct_per_ms(),
        shape: curve.shape(),
        tier: curve.tier(TierLimits::default()),
        source: Verdict { source: Source::Outside, grounds: "our own VM was idle".into() },
        window_ms: 7.2,
        windows: 60,
        discarded: Discarded::default(),
        lost_at_once: Some(0.02),
        false_hits: Some(0.001),
        cpu_ms_per_s: 3.5,
        curve,
    };
    Readings {
        summary,
        periods: 5,
        refused: 0,
        refusal: None,
        lost_at_once: 0.02,
        usable: Usable::Range { lo: 25 << 20, hi: 31 << 20 },
    }
}

fn calibration() -> Calibration {
    let class = |name, single: f64, chain_ticks| LatencyClass {
        name,
        single_ticks: (0..300).map(|i| single + f64::from(i % 7)).collect(),
        chain_ticks,
    };
    Calibration {
        timer: Timer { ticks_per_ms: 2.45e6, step_ticks: 1.0, monotonic: true },
        classes: [class("L1/L2", 75.0, 12.0), class("LLC", 105.0, 45.0), class("memory", 350.0, 280.0)],
        discriminator: Ok(Discriminator { miss_above: 190, interrupted_above: 1750 }),
        single_loads_tell_l2_from_llc: true,
        spill: Spill::Congruent { lines: 2048 },
        spilled_share: 0.98,
        discarded: [3, 0],
    }
}

pub(super) fn cache() -> Cache {
    Cache {
        llc: LlcId(0),
        cpus: vec![CpuId(0), CpuId(1)],
        advertised: Some(Bytes::mib(32)),
        configured_ms: 7.0,
        calibration: Some(calibration()),
        measured: Ok(readings()),
        cpu_time: Some(CpuTime { other_pct: 3.0, steal_pct: 0.1 }),
    }
}

pub(super) fn facts() -> Facts {
    Facts { clock: clock(), machine: machine(), placement: Placement::default(), caches: vec![cache()] }
}
