//! Contention by eviction sets: Prime+Probe in windows, with sets that are tested again and again.
//!
//! In each period half of the sets are primed and probed, then tested once more: only those that still evict their
//! target count, so no figure rests on a set that a change of the host's mapping has broken. The other half follows
//! in the next period.

use quell_core::stats::survival::DEFAULT_SHAPE;
use quell_core::stats::{Ewma, Hysteresis, mean, quantile};
use quell_core::{Crew, Estimate, Line, Memory, Ticks};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::build::{BuildSettings, EvictionSet, refill};
use super::construct::{ConstructError, Construction, Shape, Stage, construct};
use super::window::{Harvest, Shot, false_hits, retest, share_of, shots};
use crate::attribution::Verdict;
use crate::color::ColorRate;
use crate::color::tracker::{ColorPeriod, ColorTracker};
use crate::curve::Curve;
use crate::monitor::{Discarded, EWMA_OLD, Period, Settings, TIER_ROUNDS, refusal};
use crate::planner::{Planner, WINDOW_MS};
use crate::tier::Tier;

/// Windows per period; half of all sets take part in each.
const WINDOWS: usize = 4;
/// Time that a slot keeps free for priming, probing and timer latency, in ms.
const SLOT_MARGIN_MS: f64 = 8.0;
/// Sets are rebuilt altogether when fewer than this share of the wanted ones is valid, in percent.
pub const LEAST_COVERAGE_PCT: f64 = 95.0;
/// Broken sets that are replaced one by one in a period.
const REFILLS: usize = 32;
/// A rebuild that failed is tried again after this time, in ms.
const RETRY_MS: f64 = 60_000.0;
/// Zero-wait controls whose median is taken out.
const RECENT_CONTROLS: usize = 21;

/// When all sets are built anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebuild {
    /// The regular time has come.
    Scheduled,
    /// Too few sets are valid.
    Coverage,
    /// The user wants it.
    Asked,
}

impl Rebuild {
    /// The name in every output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Coverage => "coverage",
            Self::Asked => "asked",
        }
    }
}

/// A set that no longer evicts its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Color of its pages.
    pub color: u32,
    /// Page offset, in lines.
    pub slot: u32,
    /// Its target.
    pub target: Line,
}

/// One period.
#[derive(Clone, Debug)]
pub struct EvsetPeriod {
    /// What the canary's periods hold as well.
    pub period: Period,
    /// Valid sets over wanted ones at the end of the period, in percent.
    pub coverage_pct: f64,
    /// Sets found broken in this period; they are taken out, and took no part in its figures.
    pub broken: Vec<Broken>,
    /// Sets that were built to replace broken ones.
    pub refilled: usize,
    /// Why all sets were built anew before this period, if they were.
    pub rebuilt: Option<Rebuild>,
}

/// Watches one LLC with eviction sets.
#[derive(Debug)]
pub struct EvsetMonitor {
    settings: Settings,
    build: BuildSettings,
    /// How often everything is built anew, in ms.
    rebuild_ms: f64,
    construction: Construction,
    /// Why there are no sets any more.
    lost: Option<String>,
    built_at: Ticks,
    retry_at: Ticks,
    planner: Planner,
    rng: Xoshiro256PlusPlus,
    shape: Ewma,
    all: Track,
    colors: ColorTracker,
    lost_at_once: Vec<f64>,
    index: u32,
}

/// Smoothed figures of the whole LLC or of a color.
#[derive(Clone, Debug)]
struct Track {
    rate: Ewma,
    tier: Hysteresis<Tier>,
}

impl Default for Track {
    fn default() -> Self {
        Self { rate: Ewma::new(EWMA_OLD), tier: Hysteresis::new(TIER_ROUNDS) }
    }
}

impl Track {
    fn rate(&mut self, rate: &Estimate) -> Option<f64> {
        if rate.value().is_none() {
            self.rate = Ewma::new(EWMA_OLD);
        }
        rate.value().map(|value| self.rate.update(value))
    }

    fn tier(&mut self, tier: Result<Tier, String>) -> Result<Tier, String> {
        if tier.is_err() {
            self.tier.reset();
        }
        tier.map(|seen| self.tier.update(seen))
    }
}

/// Why there is nothing to watch with.
#[derive(Debug, thiserror::Error)]
pub enum EvsetError {
    /// It did not come to building.
    #[error(transparent)]
    Construct(#[from] ConstructError),
    /// The sets cannot be relied upon.
    #[error("no eviction sets can be verified here: {0}")]
    Unverified(String),
}

impl EvsetMonitor {
    /// Builds the sets for a monitor. `rebuild_ms` is the time after which all are built anew.
    ///
    /// # Errors
    /// [`EvsetError`].
    pub fn open(
        crew: &mut impl Crew,
        shape: Shape,
        build: BuildSettings,
        settings: Settings,
        rebuild_ms: f64,
        progress: &(dyn Fn(Stage) -> bool + Sync),
    ) -> Result<Self, EvsetError> {
        let construction = construct(crew, shape, &build, progress)?;
        construction.verdict().map_err(EvsetError::Unverified)?;
        let built_at = now(crew).0;
        Ok(Self {
            settings,
            rebuild_ms,
            lost: None,
            built_at,
            retry_at: built_at,
            planner: Planner::new(settings.window_ms),
            rng: Xoshiro256PlusPlus::seed_from_u64(build.seed),
            shape: Ewma::new(EWMA_OLD),
            all: Track::default(),
            colors: tracker(&construction),
            lost_at_once: Vec::new(),
            index: 0,
            build,
            construction,
        })
    }

    /// What the sets rest on.
    #[must_use]
    pub fn construction(&self) -> &Construction {
        &self.construction
    }

    /// Bytes that one window touches: the lines of half of the sets.
    #[must_use]
    pub fn footprint(&self) -> quell_core::Bytes {
        let lines: usize = self.construction.built.sets.iter().map(|set| set.lines.len()).sum();
        quell_core::Bytes(lines as u64 / 2 * u64::from(quell_core::memory::LINE_BYTES))
    }

    /// Runs one period. `asked` builds all sets anew first. When `keep_on` returns false, the period ends early.
    pub fn period(
        &mut self,
        crew: &mut impl Crew,
        asked: bool,
        keep_on: &(dyn Fn() -> bool + Sync),
    ) -> EvsetPeriod {
        let (start, per_ms) = now(crew);
        let rebuilt = self.rebuild(crew, start, per_ms, asked, keep_on);
        let (begin, _) = now(crew);
        let half: Vec<EvictionSet> = self.of_this_period();
        let shares: Vec<&[EvictionSet]> = half.chunks(half.len().div_ceil(crew.members()).max(1)).collect();
        let limits = self.construction.limits;
        let false_hits = one(crew, &|memory| false_hits(memory, &half, limits));
        let mut harvest = Harvest::new(self.index);
        let control = shots(crew, &shares, begin, None, limits);
        let lost_at_once = self.control(&control, &shares);
        harvest.cpu_ms += control.iter().map(|shot| shot.cpu_ms).sum::<f64>();

        let center_ms = self.planner.center_ms();
        let slot_ms = self.settings.period_ms / WINDOWS as f64;
        let mut windows = Vec::new();
        for (slot, factor) in Planner::factors(WINDOWS, &mut self.rng).into_iter().enumerate() {
            if !keep_on() || half.is_empty() {
                break;
            }
            let length_ms =
                self.planner.window_ms(factor).min(slot_ms - SLOT_MARGIN_MS).max(*WINDOW_MS.start());
            let room_ms = (slot_ms - length_ms - SLOT_MARGIN_MS).max(0.0);
            let offset_ms = slot as f64 * slot_ms + room_ms * self.rng.random::<f64>();
            let at = begin + Ticks((offset_ms * per_ms) as u64);
            let shots = shots(crew, &shares, at, Some(length_ms), limits);
            harvest.cpu_ms += shots.iter().map(|shot| shot.cpu_ms).sum::<f64>();
            if let Some(share) = share_of(&shots, |_| true) {
                self.planner.saw(length_ms, share);
            }
            windows.push(shots);
        }

        // Whatever broke before or during the windows shows now.
        let test = self.construction.test.fresh();
        let (valid, cpu_ms) = retest(crew, &shares, &test);
        harvest.cpu_ms += cpu_ms;
        let broken = self.take_out(&half, &valid);
        harvest.collect(&windows, &half, &valid, self.colors.colors() as usize);
        let refilled = if broken.is_empty() || !keep_on() { 0 } else { self.refill(crew) };
        let end = begin + Ticks((self.settings.period_ms * per_ms) as u64);
        if keep_on() {
            crew.run(vec![(); crew.members()], &|memory, ()| memory.sleep_until(end));
        }
        let wall_ms = now(crew).0.since(start).0 as f64 / per_ms;
        let mut period = self.conclude(&harvest, false_hits, lost_at_once, center_ms, wall_ms);
        period.colors = self.conclude_colors(&harvest, lost_at_once, period.refusal.as_deref());
        self.index += 1;
        EvsetPeriod {
            period,
            coverage_pct: self.construction.built.coverage_pct(),
            broken,
            refilled,
            rebuilt,
        }
    }

    /// The sets whose page offset is even or odd, as the period is; neighbors in the list are of different colors.
    fn of_this_period(&self) -> Vec<EvictionSet> {
        // With a single page offset there is nothing to take turns.
        let all = self.build.slots.len() < 2;
        let place = |slot| self.build.slots.iter().position(|&other| other == slot).unwrap_or(0) as u32;
        let mut half: Vec<EvictionSet> = self.construction.built.sets.clone();
        half.retain(|set| all || place(set.slot) % 2 == self.index % 2);
        half.sort_by_key(|set| (set.slot, set.color));
        half
    }

    /// Builds everything anew if that is due.
    fn rebuild(
        &mut self,
        crew: &mut impl Crew,
        start: Ticks,
        per_ms: f64,
        asked: bool,
        keep_on: &(dyn Fn() -> bool + Sync),
    ) -> Option<Rebuild> {
        let age_ms = start.since(self.built_at).0 as f64 / per_ms;
        let why = if asked {
            Rebuild::Asked
        } else if start >= self.retry_at && self.construction.built.coverage_pct() < LEAST_COVERAGE_PCT {
            Rebuild::Coverage
        } else if age_ms >= self.rebuild_ms {
            Rebuild::Scheduled
        } else {
            return None;
        };
        // Other targets and orders than last time.
        self.build.seed = self.build.seed.wrapping_add(1);
        let outcome = construct(crew, self.construction.shape, &self.build, &|_| keep_on());
        self.built_at = now(crew).0;
        self.retry_at = self.built_at + Ticks((RETRY_MS * per_ms) as u64);
        self.lost = match outcome {
            Ok(construction) => {
                let verdict = construction.verdict();
                // Colors are named anew, so their past means nothing.
                self.colors = tracker(&construction);
                self.construction = construction;
                verdict.err()
            }
            Err(error) => Some(crate::error_chain(&error)),
        };
        if self.lost.is_some() {
            self.construction.built.sets.clear();
        }
        Some(why)
    }

    /// Notes the control's loss and returns the recent median.
    fn control(&mut self, shots: &[Shot], shares: &[&[EvictionSet]]) -> f64 {
        let disturbed = shots.iter().any(|shot| shot.gap || shot.preempted) || shares.is_empty();
        if let (Some(share), false) = (share_of(shots, |_| true), disturbed) {
            self.lost_at_once.push(share);
        }
        let recent = self.lost_at_once.len().saturating_sub(RECENT_CONTROLS);
        quantile(&self.lost_at_once[recent..], 0.5).unwrap_or(0.0)
    }

    /// Takes sets that failed out of the construction and names them.
    fn take_out(&mut self, half: &[EvictionSet], valid: &[bool]) -> Vec<Broken> {
        let broken: Vec<Broken> = half
            .iter()
            .zip(valid)
            .filter(|(_, valid)| !**valid)
            .map(|(set, _)| Broken { color: set.color, slot: set.slot, target: set.target })
            .collect();
        let gone: std::collections::HashSet<Line> = broken.iter().map(|broken| broken.target).collect();
        self.construction.built.sets.retain(|set| !gone.contains(&set.target));
        broken
    }

    /// Replaces some of the missing sets, unless so many are missing that all will be built anew.
    fn refill(&mut self, crew: &mut impl Crew) -> usize {
        let built = &mut self.construction.built;
        if built.coverage_pct() < LEAST_COVERAGE_PCT {
            return 0;
        }
        let before = built.sets.len();
        refill(crew, &self.construction.test, &self.construction.pages, &self.build, built, REFILLS);
        built.sets.len() - before
    }

    fn conclude(
        &mut self,
        harvest: &Harvest,
        false_hits: Option<f64>,
        lost_at_once: f64,
        window_ms: f64,
        wall_ms: f64,
    ) -> Period {
        let observations = harvest.all.clone();
        let curve = Curve::fit(&observations, lost_at_once, self.expected_shape());
        if let Some(law) = curve.guess {
            self.planner.fitted(law.half_life_ms());
            self.shape.update(law.shape);
        }
        let refusal = self.lost.clone().or_else(|| refusal(false_hits, lost_at_once));
        let estimate = |known: Estimate| refusal.clone().map_or(known, Estimate::unknown);
        let rate = estimate(curve.rate_pct_per_ms());
        let tier = refusal.clone().map_or_else(|| curve.tier(self.settings.tiers), Err);
        Period {
            index: self.index,
            loaded: Vec::new(),
            half_life_ms: estimate(curve.half_life_ms()),
            hazard_per_ms: estimate(curve.hazard_per_ms()),
            ewma_rate_pct_per_ms: self.all.rate(&rate),
            rate_pct_per_ms: rate,
            window_ms,
            tier: self.all.tier(tier),
            source: Verdict::unknown("eviction sets are not compared with this VM's own load; the canary is"),
            windows: harvest.windows,
            colors: Vec::new(),
            discarded: Discarded { placement: curve.jumps.round() as usize, ..harvest.discarded },
            refusal,
            false_hits,
            lost_at_once,
            cpu_ms: harvest.cpu_ms,
            wall_ms,
            probe_ms: harvest.probe_ms.clone(),
            observations,
            curve,
        }
    }

    fn conclude_colors(
        &mut self,
        harvest: &Harvest,
        lost_at_once: f64,
        refusal: Option<&str>,
    ) -> Vec<ColorPeriod> {
        let (shape, tiers) = (self.expected_shape(), self.settings.tiers);
        let lost: Vec<Vec<f64>> = harvest
            .colors
            .iter()
            .map(|windows| windows.iter().map(|o| (o.window.share - lost_at_once) * 100.0).collect())
            .collect();
        let rates = harvest.colors.iter().enumerate().map(|(color, observations)| {
            let curve = Curve::fit(observations, lost_at_once, shape);
            let others: Vec<&Vec<f64>> =
                lost.iter().enumerate().filter(|(other, _)| *other != color).map(|(_, lost)| lost).collect();
            let excess: Vec<f64> = lost[color]
                .iter()
                .enumerate()
                .filter_map(|(window, lost)| {
                    let others: Vec<f64> =
                        others.iter().filter_map(|lost| lost.get(window)).copied().collect();
                    Some(lost - mean(&others)?)
                })
                .collect();
            ColorRate {
                color: color as u32,
                lost_pct: mean_of(&lost[color]),
                excess_pct: mean_of(&excess),
                rate_pct_per_ms: curve.rate_pct_per_ms(),
                tier: curve.tier(tiers),
            }
        });
        self.colors.update(rates.collect(), refusal)
    }

    fn expected_shape(&self) -> f64 {
        self.shape.get().unwrap_or(DEFAULT_SHAPE)
    }
}

fn tracker(construction: &Construction) -> ColorTracker {
    ColorTracker::new(construction.pages.len() as u32, EWMA_OLD, TIER_ROUNDS)
}

/// The mean of a few windows, with an interval from their spread.
fn mean_of(values: &[f64]) -> Estimate {
    let n = values.len();
    let Some(center) = mean(values).filter(|_| n >= 2) else {
        return Estimate::unknown("fewer than 2 valid windows");
    };
    let variance = values.iter().map(|value| (value - center).powi(2)).sum::<f64>() / (n - 1) as f64;
    let half = 1.96 * (variance / n as f64).sqrt();
    Estimate::known(center, [center - half, center + half], n)
}

fn now(crew: &mut impl Crew) -> (Ticks, f64) {
    one(crew, &|memory| (memory.now(), memory.ticks_per_ms()))
}

fn one<R: Send>(crew: &mut impl Crew, work: &(dyn Fn(&mut &mut dyn Memory) -> R + Sync)) -> R {
    crew.run(vec![()], &|memory, ()| work(memory)).remove(0)
}
