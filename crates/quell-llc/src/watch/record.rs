//! One period of one LLC in the form that leaves the program: schema `quell.watch/1`, see `docs/json.md`.

use std::time::SystemTime;

use quell_core::{Bytes, CpuId, Estimate, LlcId};
use serde::Serialize;

use super::Engine;
use crate::attribution::Source;
use crate::color::tracker::ColorPeriod;
use crate::monitor::{Discarded, Period};
use crate::scan::report::Cost;
use crate::session::{Companion, Target};
use crate::tier::Tier;

/// Name and version of the schema.
pub const SCHEMA: &str = "quell.watch/1";

/// One period of one LLC.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// Name and version of the schema.
    pub schema: &'static str,
    /// End of the period, in seconds since 1970.
    pub time_s: f64,
    /// The LLC.
    pub llc: LlcId,
    /// Its CPUs according to the kernel.
    pub cpus: Vec<CpuId>,
    /// Number of the period, from 0.
    pub period: u32,
    /// What measured: `canary`, `color` or `evset`.
    pub engine: Engine,
    /// Median survival of a line in this period, in ms.
    pub half_life_ms: Estimate,
    /// Hazard at the half-life, per ms.
    pub hazard_per_ms: Estimate,
    /// Percent evicted per ms over 7 ms.
    pub rate_pct_per_ms: Estimate,
    /// Moving average of the rate (0.85 old, 0.15 new).
    pub ewma_rate_pct_per_ms: Option<f64>,
    /// Center of the windows used, in ms.
    pub window_ms: f64,
    /// Tier in force, after hysteresis.
    pub tier: Option<Tier>,
    /// Why there is no tier.
    pub tier_reason: Option<String>,
    /// Who evicts.
    pub source: Source,
    /// On what grounds.
    pub source_grounds: String,
    /// Windows measured.
    pub windows: usize,
    /// Windows thrown away.
    pub discarded_windows: Discarded,
    /// Who shares the cache: the pair that does so least, over the last minute or two.
    pub placement: RecentPlacement,
    /// Duration of the probe itself.
    pub latency: Latency,
    /// What the period cost.
    pub cost: Cost,
    /// By page color; empty if the engine is `canary`.
    pub colors: Vec<ColorPeriod>,
    /// Eviction sets that were valid at the end of the period, in percent of those wanted; none unless the engine
    /// is `evset`.
    pub coverage_pct: Option<f64>,
    /// Eviction sets found broken in this period, and taken out; none unless the engine is `evset`.
    pub broken_sets: Option<usize>,
}

/// Placement of the recent past.
#[derive(Clone, Debug, Serialize)]
pub struct RecentPlacement {
    /// Share of the time in one LLC, in percent.
    pub near_pct: Estimate,
    /// Moves per second.
    pub switches_per_s: Estimate,
}

/// How long the probes of a period took, in ms (nearest rank).
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Median.
    pub probe_ms_p50: Option<f64>,
    /// 99th percentile.
    pub probe_ms_p99: Option<f64>,
    /// Longest.
    pub probe_ms_max: Option<f64>,
}

impl Record {
    pub(super) fn new(
        target: &Target,
        engine: Engine,
        period: &Period,
        footprint: Bytes,
        companions: &[Companion],
    ) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let advertised = (target.advertised.0 > 0).then_some(target.advertised);
        Self {
            schema: SCHEMA,
            time_s: now.as_secs_f64(),
            llc: target.llc,
            cpus: target.cpus.clone(),
            period: period.index,
            engine,
            half_life_ms: period.half_life_ms.clone(),
            hazard_per_ms: period.hazard_per_ms.clone(),
            rate_pct_per_ms: period.rate_pct_per_ms.clone(),
            ewma_rate_pct_per_ms: period.ewma_rate_pct_per_ms,
            window_ms: period.window_ms,
            tier: period.tier.as_ref().ok().copied(),
            tier_reason: period.tier.as_ref().err().cloned(),
            source: period.source.source,
            source_grounds: period.source.grounds.clone(),
            windows: period.windows,
            discarded_windows: period.discarded,
            placement: RecentPlacement::new(companions),
            latency: Latency {
                probe_ms_p50: period.probe_ms_quantile(0.5),
                probe_ms_p99: period.probe_ms_quantile(0.99),
                probe_ms_max: period.probe_ms_quantile(1.0),
            },
            cost: Cost::new(period.cpu_ms / period.wall_ms * 1e3, footprint, advertised),
            colors: period.colors.clone(),
            coverage_pct: None,
            broken_sets: None,
        }
    }
}

impl RecentPlacement {
    fn new(companions: &[Companion]) -> Self {
        let near = |c: &&Companion| c.summary.near_pct.value().unwrap_or(f64::INFINITY);
        match companions.iter().min_by(|a, b| near(a).total_cmp(&near(b))) {
            Some(c) => Self {
                near_pct: c.summary.near_pct.clone(),
                switches_per_s: c.summary.switches_per_s.clone(),
            },
            None => {
                let unknown = || Estimate::unknown("there is no second CPU in this LLC to watch");
                Self { near_pct: unknown(), switches_per_s: unknown() }
            }
        }
    }
}
