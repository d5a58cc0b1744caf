//! The monitor: windows spread over a period, and what they say about the cache.

use quell_core::memory::LINE_BYTES;
use quell_core::stats::survival::{DEFAULT_SHAPE, Window};
use quell_core::stats::{Ewma, Hysteresis, quantile};
use quell_core::{Bytes, Estimate, Memory, Ticks};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::attribution::{Attribution, LoadedWindow, Verdict};
use crate::calibrate::{Discriminator, MAX_FALSE_HITS};
use crate::canary::{Canary, Wait, WindowResult};
use crate::color::canary::{ColorCanary, color_window};
use crate::color::rates::{ColorWindow, Law, rates};
use crate::color::tracker::{ColorPeriod, ColorTracker};
use crate::curve::{Curve, Observation};
use crate::layout::{Layout, Spill};
use crate::planner::{Planner, WINDOW_MS, sweep};
use crate::tier::{Tier, TierLimits};

/// How to monitor. Checked by the caller: `window_ms` lies in [`WINDOW_MS`] and below `period_ms`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Length of the first windows, in ms; later ones adapt.
    pub window_ms: f64,
    /// One result per period, in ms.
    pub period_ms: f64,
    /// Limits of the tiers.
    pub tiers: TierLimits,
}

impl Default for Settings {
    fn default() -> Self {
        Self { window_ms: 7.0, period_ms: 1000.0, tiers: TierLimits::default() }
    }
}

/// CPU time that windows and controls aim to use, in ms per second. Reading our own VM's load, fitting and
/// ping-pong come on top, so that the whole stays well below 10 ms.
const CPU_MS_PER_S: f64 = 4.5;
/// The same with colors, whose canary has more lines.
const COLORS_CPU_MS_PER_S: f64 = 5.5;
/// What a window is taken to cost before any was measured, in ms of CPU time.
const FIRST_COST_MS: f64 = 0.45;
/// Windows per period, whatever they cost.
const WINDOWS: std::ops::RangeInclusive<usize> = 4..=16;
/// Zero-wait controls per period.
const CONTROLS: usize = 2;
/// A tier changes after this many periods in a row.
pub(crate) const TIER_ROUNDS: u32 = 3;
/// Weight of the old value in the moving average of the eviction rate.
pub(crate) const EWMA_OLD: f64 = 0.85;
/// Their median over so many is what the fit takes out.
const RECENT_CONTROLS: usize = 21;
/// Zero-wait losses beyond this mean that the canary cannot be held at all.
pub(crate) const MAX_LOST_AT_ONCE: f64 = 0.3;
/// Windows next to one another depend on one another; so many form one block of the confidence interval.
const BLOCK: usize = 2;
/// Time that a slot keeps free for priming, probing and timer latency, in ms.
const SLOT_MARGIN_MS: f64 = 4.0;

/// Windows thrown away, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Discarded {
    /// The vCPU moved to another cache: everything was lost at once.
    pub placement: usize,
    /// The host took time from the vCPU while it primed or probed.
    pub tsc_gap: usize,
    /// The guest kernel took the CPU away while it primed or probed.
    pub preempted: usize,
}

impl Discarded {
    /// Adds another stretch's counts.
    pub fn add(&mut self, other: Self) {
        self.placement += other.placement;
        self.tsc_gap += other.tsc_gap;
        self.preempted += other.preempted;
    }

    /// All of them.
    #[must_use]
    pub fn total(self) -> usize {
        self.placement + self.tsc_gap + self.preempted
    }
}

/// One period's result.
#[derive(Clone, Debug)]
pub struct Period {
    /// Periods before this one.
    pub index: u32,
    /// Windows that took part in the estimates, with their sentinels.
    pub observations: Vec<Observation>,
    /// The same with our own VM's load; empty where that cannot be read.
    pub loaded: Vec<LoadedWindow>,
    /// The survival curve of this period.
    pub curve: Curve,
    /// Median survival in ms, or why it is unknown.
    pub half_life_ms: Estimate,
    /// Hazard at the half-life, per ms.
    pub hazard_per_ms: Estimate,
    /// Percent evicted per ms over the reference window.
    pub rate_pct_per_ms: Estimate,
    /// Moving average of the rate; none while it is unknown.
    pub ewma_rate_pct_per_ms: Option<f64>,
    /// Center of the windows used, in ms.
    pub window_ms: f64,
    /// The tier in force, after hysteresis, or why it cannot be told.
    pub tier: Result<Tier, String>,
    /// Who evicts.
    pub source: Verdict,
    /// Windows measured, discarded ones included.
    pub windows: usize,
    /// Windows thrown away.
    pub discarded: Discarded,
    /// By page color; empty for a canary without colors.
    pub colors: Vec<ColorPeriod>,
    /// Why nothing may be said of this period, if a control failed; then every estimate is unknown.
    pub refusal: Option<String>,
    /// Share of flushed lines that read as hits (control).
    pub false_hits: Option<f64>,
    /// Share lost without any wait (control), running mean.
    pub lost_at_once: f64,
    /// CPU time of the probing thread over the whole period, in ms.
    pub cpu_ms: f64,
    /// Length of the period, in ms.
    pub wall_ms: f64,
    /// Wall-clock time of each probe, in ms.
    pub probe_ms: Vec<f64>,
}

impl Period {
    /// A quantile of the probes' own duration, in ms.
    #[must_use]
    pub fn probe_ms_quantile(&self, p: f64) -> Option<f64> {
        quantile(&self.probe_ms, p)
    }
}

/// Which windows a period takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Around the half-life, as far as it is known.
    Adaptive,
    /// From the shortest to the longest allowed window: shows the whole curve.
    Sweep,
}

/// Watches one LLC from one vCPU.
#[derive(Debug)]
pub struct Monitor {
    settings: Settings,
    limits: Discriminator,
    canary: Canary,
    planner: Planner,
    rng: Xoshiro256PlusPlus,
    attribution: Attribution,
    tier: Hysteresis<Tier>,
    rate: Ewma,
    shape: Ewma,
    lost_at_once: Vec<f64>,
    window_cpu_ms: Ewma,
    controls_cpu_ms: Ewma,
    colors: Option<ColorTracker>,
    index: u32,
}

/// Windows of one period as they come in.
#[derive(Debug, Default)]
struct Harvest {
    observations: Vec<Observation>,
    loaded: Vec<LoadedWindow>,
    by_color: Vec<ColorWindow>,
    discarded: Discarded,
    windows: usize,
    probe_ms: Vec<f64>,
}

impl Monitor {
    /// A monitor with a calibrated canary. `seed` draws the times of the windows.
    #[must_use]
    pub fn new(settings: Settings, canary: Canary, limits: Discriminator, seed: u64) -> Self {
        Self {
            settings,
            limits,
            canary,
            planner: Planner::new(settings.window_ms),
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            attribution: Attribution::default(),
            tier: Hysteresis::new(TIER_ROUNDS),
            rate: Ewma::new(EWMA_OLD),
            shape: Ewma::new(EWMA_OLD),
            lost_at_once: Vec::new(),
            window_cpu_ms: Ewma::starting_at(EWMA_OLD, FIRST_COST_MS),
            controls_cpu_ms: Ewma::new(EWMA_OLD),
            colors: None,
            index: 0,
        }
    }

    /// A monitor that tells colors apart as well.
    #[must_use]
    pub fn with_colors(settings: Settings, canary: ColorCanary, limits: Discriminator, seed: u64) -> Self {
        let colors = ColorTracker::new(canary.colors(), EWMA_OLD, TIER_ROUNDS);
        Self { colors: Some(colors), ..Self::new(settings, canary.into_canary(), limits, seed) }
    }

    /// Every byte that one window brings into the cache, with a canary that `spill` pushes out of the L2.
    #[must_use]
    pub fn footprint(&self, spill: Spill) -> Bytes {
        let plain = Layout::footprint(spill);
        let more = self.canary.layout().canary.len() as u64 * 2 * u64::from(LINE_BYTES);
        Bytes(plain.0 - 2 * Layout::canary_bytes().0 + more)
    }

    /// Runs one period. `idle` is called in each pause between windows and may use the time until the point it
    /// is given; when it returns false, the period ends early and its result is that of the windows so far.
    pub fn period(
        &mut self,
        memory: &mut impl Memory,
        plan: Plan,
        mut idle: impl FnMut(Ticks) -> bool,
    ) -> Period {
        let (start, cpu) = (memory.now(), memory.cpu_ms());
        let false_hits = self.canary.false_hits(memory, self.limits);
        for _ in 0..CONTROLS {
            self.control_lost_at_once(memory);
        }
        self.controls_cpu_ms.update(memory.cpu_ms() - cpu);
        let mut harvest = Harvest::default();
        let count = self.window_count();
        let factors = Planner::factors(count, &mut self.rng);
        let lengths = sweep(count);
        let slot_ms = self.settings.period_ms / count as f64;
        let center_ms = self.planner.center_ms();
        let mut stopped = false;
        let mut last_load = (memory.now(), memory.own_load());
        for (slot, factor) in factors.into_iter().enumerate() {
            let wanted_ms = match plan {
                Plan::Adaptive => self.planner.window_ms(factor),
                Plan::Sweep => lengths[slot * 5 % count],
            };
            let length_ms = wanted_ms.min(slot_ms - SLOT_MARGIN_MS).max(*WINDOW_MS.start());
            let room_ms = (slot_ms - length_ms - SLOT_MARGIN_MS).max(0.0);
            let offset_ms = slot as f64 * slot_ms + room_ms * self.rng.random::<f64>();
            let begin = after(start, offset_ms, memory.ticks_per_ms());
            stopped = !idle(begin);
            if stopped {
                break;
            }
            memory.sleep_until(begin);
            let result = self.canary.window(memory, Wait::Sleep(length_ms), self.limits);
            if let (Plan::Adaptive, Some(share)) = (plan, result.share) {
                self.planner.saw(length_ms, share);
            }
            self.window_cpu_ms.update(result.cpu_ms);
            let load = (memory.now(), memory.own_load());
            let own_cpus = own_cpus(last_load, load, memory.ticks_per_ms());
            last_load = load;
            self.collect(&mut harvest, &result, own_cpus);
        }
        let end = after(start, self.settings.period_ms, memory.ticks_per_ms());
        if !stopped && idle(end) {
            memory.sleep_until(end);
        }
        let cpu_ms = memory.cpu_ms() - cpu;
        let wall_ms = memory.now().since(start).0 as f64 / memory.ticks_per_ms();
        self.conclude(harvest, false_hits, center_ms, cpu_ms, wall_ms)
    }

    /// How many windows fit the CPU budget and the period.
    fn window_count(&self) -> usize {
        let longest_ms = self.planner.window_ms(f64::INFINITY).min(self.planner.center_ms() * 2.0);
        let by_time = self.settings.period_ms / (longest_ms + 2.0 * SLOT_MARGIN_MS);
        let per_s = if self.colors.is_some() { COLORS_CPU_MS_PER_S } else { CPU_MS_PER_S };
        let budget_ms = per_s * self.settings.period_ms / 1e3 - self.controls_cpu_ms.get().unwrap_or(0.0);
        let by_cost = self.window_cpu_ms.get().map_or(f64::INFINITY, |cost| budget_ms / cost.max(1e-3));
        (by_time.min(by_cost) as usize).clamp(*WINDOWS.start(), *WINDOWS.end())
    }

    /// The control for losses by priming and probing alone.
    fn control_lost_at_once(&mut self, memory: &mut impl Memory) {
        let result = self.canary.window(memory, Wait::None, self.limits);
        if let (Some(share), false) = (result.share, result.gap || result.preempted) {
            self.lost_at_once.push(share);
        }
    }

    /// Median of the recent controls: a single interrupted one must not shift every estimate.
    fn lost_at_once(&self) -> f64 {
        let recent = self.lost_at_once.len().saturating_sub(RECENT_CONTROLS);
        quantile(&self.lost_at_once[recent..], 0.5).unwrap_or(0.0)
    }

    fn collect(&self, harvest: &mut Harvest, result: &WindowResult, own_cpus: Option<f64>) {
        harvest.windows += 1;
        harvest.probe_ms.push(result.probe_ms);
        let Some(share) = result.share else {
            harvest.discarded.tsc_gap += 1;
            return;
        };
        if result.preempted {
            harvest.discarded.preempted += 1;
            return;
        }
        if result.gap {
            harvest.discarded.tsc_gap += 1;
            return;
        }
        let block = self.index * 64 + (harvest.windows / BLOCK) as u32;
        let window = Window::new(result.exposure_ms, share, block);
        harvest.observations.push(Observation { window, sentinels_lost: result.sentinels_lost });
        harvest.by_color.extend(color_window(result, block));
        if let Some(own_cpus) = own_cpus {
            harvest.loaded.push(LoadedWindow { own_cpus, exposure_ms: result.exposure_ms, share });
        }
    }

    fn conclude(
        &mut self,
        harvest: Harvest,
        false_hits: Option<f64>,
        window_ms: f64,
        cpu_ms: f64,
        wall_ms: f64,
    ) -> Period {
        let lost_at_once = self.lost_at_once();
        let curve = Curve::fit(&harvest.observations, lost_at_once, self.expected_shape());
        if let Some(law) = curve.guess {
            self.planner.fitted(law.half_life_ms());
            self.shape.update(law.shape);
        }
        let refusal = refusal(false_hits, lost_at_once);
        let estimate = |known: Estimate| match &refusal {
            None => known,
            Some(reason) => Estimate::unknown(reason.clone()),
        };
        let tier = match &refusal {
            None => curve.tier(self.settings.tiers),
            Some(reason) => Err(reason.clone()),
        };
        if tier.is_err() {
            self.tier.reset();
        }
        let rate = estimate(curve.rate_pct_per_ms());
        if rate.value().is_none() {
            self.rate = Ewma::new(EWMA_OLD);
        }
        let source = match &refusal {
            None => self.attribution.label(&harvest.loaded, self.expected_shape()),
            Some(reason) => Verdict::unknown(reason.clone()),
        };
        let law = Law { lost_at_once, shape: self.expected_shape(), tiers: self.settings.tiers };
        let colors = self.colors.as_mut().map_or_else(Vec::new, |tracker| {
            tracker.update(rates(&harvest.by_color, tracker.colors(), law), refusal.as_deref())
        });
        let period = Period {
            index: self.index,
            colors,
            half_life_ms: estimate(curve.half_life_ms()),
            hazard_per_ms: estimate(curve.hazard_per_ms()),
            ewma_rate_pct_per_ms: rate.value().map(|value| self.rate.update(value)),
            rate_pct_per_ms: rate,
            window_ms,
            tier: tier.map(|seen| self.tier.update(seen)),
            source,
            windows: harvest.windows,
            discarded: Discarded { placement: curve.jumps.round() as usize, ..harvest.discarded },
            refusal,
            false_hits,
            lost_at_once,
            cpu_ms,
            wall_ms,
            probe_ms: harvest.probe_ms,
            observations: harvest.observations,
            loaded: harvest.loaded,
            curve,
        };
        self.index += 1;
        period
    }

    /// The shape that fits lean to: this host's so far.
    #[must_use]
    pub fn expected_shape(&self) -> f64 {
        self.shape.get().unwrap_or(DEFAULT_SHAPE)
    }
}

/// Why nothing may be said, if a control failed.
pub(crate) fn refusal(false_hits: Option<f64>, lost_at_once: f64) -> Option<String> {
    match false_hits {
        None => Some("the flush control gave no valid sample".into()),
        Some(share) if share > MAX_FALSE_HITS => {
            Some(format!("{:.1} % of flushed lines read as hits, so misses are being hidden", share * 100.0))
        }
        Some(_) if lost_at_once > MAX_LOST_AT_ONCE => Some(format!(
            "saturated, or a cache that does not keep what was primed: {:.0} % of the lines are gone without any wait",
            lost_at_once * 100.0
        )),
        Some(_) => None,
    }
}

fn after(start: Ticks, ms: f64, ticks_per_ms: f64) -> Ticks {
    start + Ticks((ms * ticks_per_ms) as u64)
}

/// CPUs' worth of work between two readings of the VM's load; `None` if the interval is too short to tell.
fn own_cpus(
    (from, before): (Ticks, Option<quell_core::memory::OwnLoad>),
    (to, now): (Ticks, Option<quell_core::memory::OwnLoad>),
    ticks_per_ms: f64,
) -> Option<f64> {
    let (before, now) = (before?, now?);
    let wall_ms = to.since(from).0 as f64 / ticks_per_ms;
    (wall_ms >= 2.0 * now.step_ms).then(|| ((now.busy_ms - before.busy_ms) / wall_ms).max(0.0))
}
