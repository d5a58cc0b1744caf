//! Arguments of every command that monitors.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use quell_core::Bytes;
use quell_core::memory::PAGE_BYTES;
use quell_llc::planner::WINDOW_MS;
use quell_llc::scan::targets;
use quell_llc::session::Target;
use quell_llc::{Settings, TierLimits};
use quell_topology::Topology;

use super::values::{cpu_list, percentage, time};

/// Where and how to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct MonitorArgs {
    /// CPUs to measure on, for example `0,2-3` [default: all that this process may use]
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,

    /// Starting window and period for a kind of workload; --window and --period override them
    #[arg(long, value_enum, default_value_t = Profile::Default)]
    profile: Profile,

    /// Length of the first windows, for example `5ms`; later ones adapt
    #[arg(long, value_parser = time, value_name = "TIME")]
    window: Option<Duration>,

    /// One result per period, for example `500ms`
    #[arg(long, value_parser = time, value_name = "TIME")]
    period: Option<Duration>,

    /// Percent evicted within 7 ms at which contention becomes moderate, heavy and saturated
    #[arg(long, value_parser = percentage, value_delimiter = ',', value_name = "A,B,C", default_value = "40,65,85")]
    tiers: Vec<f64>,

    /// Raise the probe's scheduling priority while measuring (needs root)
    #[arg(long)]
    pub priority: bool,

    /// Seed for everything random [default: different each time]
    #[arg(long, allow_negative_numbers = true)]
    seed: Option<u64>,
}

/// Workloads with settings of their own.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Profile {
    /// Windows from 7 ms, one result per second
    Default,
    /// Latency-critical services: windows from 4 ms
    Latency,
    /// Batch jobs: windows from 12 ms
    Batch,
    /// Load that comes in bursts: one result per 500 ms
    Bursty,
    /// Steady load: one result per 2 s
    Stable,
}

impl Profile {
    /// Starting window and period, in ms.
    fn timing(self) -> (f64, f64) {
        match self {
            Self::Default => (7.0, 1000.0),
            Self::Latency => (4.0, 1000.0),
            Self::Batch => (12.0, 1000.0),
            Self::Bursty => (7.0, 500.0),
            Self::Stable => (7.0, 2000.0),
        }
    }
}

/// Periods may have these lengths, in ms: below, there is no room for windows; beyond, nobody waits.
const PERIOD_MS: std::ops::RangeInclusive<f64> = 100.0..=60_000.0;

impl MonitorArgs {
    /// The settings asked for.
    ///
    /// # Errors
    /// Which value makes no sense, and what would.
    pub(crate) fn settings(&self) -> Result<Settings> {
        let (window, period) = self.profile.timing();
        let ms = |time: Option<Duration>, or: f64| time.map_or(or, |time| time.as_secs_f64() * 1e3);
        let (window_ms, period_ms) = (ms(self.window, window), ms(self.period, period));
        if !PERIOD_MS.contains(&period_ms) {
            bail!("--period {period_ms} ms is out of range: it may be 100 ms to 60 s");
        }
        if !WINDOW_MS.contains(&window_ms) {
            bail!(
                "--window {window_ms} ms is out of range: it may be {} to {} ms",
                WINDOW_MS.start(),
                WINDOW_MS.end()
            );
        }
        let tiers = self.tier_limits()?;
        Ok(Settings { window_ms, period_ms, tiers: TierLimits(tiers) })
    }

    fn tier_limits(&self) -> Result<[f64; 3]> {
        let tiers: Option<[f64; 3]> = self.tiers.clone().try_into().ok();
        tiers.filter(|tiers| tiers.is_sorted_by(|a, b| a < b)).with_context(|| {
            let given = self.tiers.iter().map(f64::to_string).collect::<Vec<_>>().join(",");
            format!(
                "--tiers {given} cannot be used: it takes three ascending percentages, for example 40,65,85"
            )
        })
    }

    /// The machine and the caches to measure.
    ///
    /// # Errors
    /// What is wrong with the machine or the choice of CPUs.
    pub(crate) fn targets(&self) -> Result<(Topology, Vec<Target>)> {
        let topology = read_topology()?;
        let cpus = self.cpus.as_deref().map(cpu_list).transpose()?;
        let targets = targets(&topology, cpus.as_deref())?;
        Ok((topology, targets))
    }

    /// The seed given, or a random one.
    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(random_seed)
    }
}

/// How many periods a duration holds, rounded.
///
/// # Errors
/// If it does not hold a single one.
pub(crate) fn whole_periods(duration: Duration, settings: Settings) -> Result<u32> {
    let periods = (duration.as_secs_f64() * 1e3 / settings.period_ms).round();
    if periods < 1.0 {
        bail!(
            "--duration {} is too short: it must hold at least one period of {} ms",
            humantime::format_duration(duration),
            settings.period_ms
        );
    }
    Ok(periods as u32)
}

/// Pages of a pool of about `wanted` bytes: not more than 256 MiB, whatever the LLC.
pub(crate) fn pool_pages(wanted: Bytes) -> u32 {
    let pages = wanted.0.min(MAX_POOL.0) / u64::from(PAGE_BYTES);
    u32::try_from(pages).unwrap_or(u32::MAX)
}

const MAX_POOL: Bytes = Bytes::mib(256);

/// The machine this runs on.
///
/// # Errors
/// What could not be read.
pub(crate) fn read_topology() -> Result<Topology> {
    Topology::read(Path::new("/")).context("cannot find out what this machine looks like")
}

/// A seed that differs from run to run.
pub(crate) fn random_seed() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
