//! Ground truth: how long lines survive when nobody measures.
//!
//! A line is put into a set at a random time in the state in which priming leaves it: used again, so that
//! the policy protects it (RRIP value 0, most recently used). Then the foreign insertions into that set are
//! drawn one by one from the same intensity that the run of the same seed sees, until one evicts the line.

use std::ops::Range;

use crate::config::{Config, ConfigError};
use crate::rng::Rng;
use crate::sets::Ways;
use crate::shared::SharedCache;
use crate::traffic::{OUTSIDE, OWN};

const STREAM_TRUTH: u64 = 5 << 32;
/// A line that outlives this counts as never evicted, in milliseconds.
const HORIZON_MS: f64 = 2_000.0;
/// Resolution of the stored integral, in milliseconds: the traffic's own cells.
const GRID_MS: f64 = 0.1;

/// Which lines the truth is asked about.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The LLC that holds the lines.
    pub llc: usize,
    /// When they are put there, uniformly, in milliseconds since the start of the run.
    pub start_ms: Range<f64>,
    /// Their page color, or any.
    pub color: Option<u32>,
    /// Their number; 20,000 give about 1 % precision.
    pub lines: usize,
}

/// How long lines survive.
#[derive(Clone, Debug, PartialEq)]
pub struct Truth {
    /// Median survival in milliseconds; infinite if most lines are never evicted.
    pub median_ms: f64,
    /// 95 % confidence interval of the median, from order statistics. It covers the finite number of lines;
    /// the bursts are those of the run itself.
    pub ci95_ms: [f64; 2],
    /// Share of the evicted lines that our own VM evicted; zero if none was evicted.
    pub own_share: f64,
    /// Every survival time, sorted, in milliseconds.
    pub survival_ms: Vec<f64>,
}

impl Truth {
    fn new(mut survival_ms: Vec<f64>, own: usize) -> Self {
        survival_ms.sort_by(f64::total_cmp);
        let n = survival_ms.len();
        let at = |rank: f64| survival_ms[(rank.max(0.0) as usize).min(n - 1)];
        let half = n as f64 / 2.0;
        let spread = 1.96 * (n as f64).sqrt() / 2.0;
        let evicted = survival_ms.iter().filter(|ms| ms.is_finite()).count();
        Self {
            median_ms: at(half),
            ci95_ms: [at(half - spread), at(half + spread)],
            own_share: if evicted == 0 { 0.0 } else { own as f64 / evicted as f64 },
            survival_ms,
        }
    }

    /// Share of lines that are still there after `ms`.
    #[must_use]
    pub fn surviving(&self, ms: f64) -> f64 {
        1.0 - self.evicted(ms)
    }

    /// Share of lines that are gone after `ms`; the tiers of contention are defined at 7 ms.
    #[must_use]
    pub fn evicted(&self, ms: f64) -> f64 {
        self.survival_ms.partition_point(|&t| t <= ms) as f64 / self.survival_ms.len() as f64
    }
}

/// Median survival in the LLC where the vCPU starts, over the first 10 s of the run with this seed.
///
/// # Errors
/// If the configuration makes no sense or no line is asked for.
pub fn half_life_ms(config: &Config, seed: u64, lines: usize) -> Result<Truth, ConfigError> {
    survival(config, seed, &Question { llc: 0, start_ms: 0.0..10_000.0, color: None, lines })
}

/// Survival of the lines that `question` describes.
///
/// # Errors
/// If the configuration or the question makes no sense.
pub fn survival(config: &Config, seed: u64, question: &Question) -> Result<Truth, ConfigError> {
    config.check()?;
    check(config, question)?;
    let mut set = OneSet::new(config, seed, question);
    let span = question.start_ms.end - question.start_ms.start;
    let mut own = 0;
    let times = (0..question.lines).map(|_| {
        let start = question.start_ms.start + span * set.rng.unit();
        let (survival, by_own) = set.survive(start);
        own += usize::from(by_own);
        survival
    });
    let times = times.collect();
    Ok(Truth::new(times, own))
}

fn check(config: &Config, question: &Question) -> Result<(), ConfigError> {
    let Range { start, end } = question.start_ms;
    if !(start >= 0.0 && end > start && end.is_finite()) {
        return Err(ConfigError::new("the end of the asked interval", "after its start, from 0 on", end));
    }
    if question.lines == 0 {
        return Err(ConfigError::new("the number of lines", "positive", 0.0));
    }
    if question.llc >= config.neighbors.len() {
        return Err(ConfigError::new("the asked LLC", "an existing one", question.llc as f64));
    }
    let color = question.color.unwrap_or(0);
    if color >= config.colors() {
        return Err(ConfigError::new("the asked color", "an existing one", f64::from(color)));
    }
    Ok(())
}

/// A set with its traffic, visited at any time.
struct OneSet {
    cache: SharedCache,
    our_ways: Ways,
    ticks_per_ms: f64,
    /// Integral of the intensity at the end of each cell of the grid.
    integral: Vec<[f64; 2]>,
    /// Intensity of the line's color relative to the average.
    color: Option<u32>,
    colors: u32,
    rng: Rng,
}

impl OneSet {
    fn new(config: &Config, seed: u64, question: &Question) -> Self {
        let mut cache = SharedCache::new(config, seed, question.llc);
        cache.sets.truncate();
        Self {
            cache,
            our_ways: Ways::new(config.llc.our_ways),
            ticks_per_ms: config.timing.ticks_per_ms,
            integral: vec![[0.0; 2]],
            color: question.color,
            colors: config.colors(),
            rng: Rng::new(seed, STREAM_TRUTH),
        }
    }

    /// Integral at grid point `i`, drawing the path further where needed.
    fn integral(&mut self, i: usize) -> [f64; 2] {
        while self.integral.len() <= i {
            // Just before the end of the cell, so that the path need not move on to the next.
            let end = self.integral.len() as f64 * GRID_MS * self.ticks_per_ms;
            let path = &mut self.cache.path;
            while path.cell_end() < end - 1.0 {
                path.next_cell();
            }
            self.integral.push(path.at(end));
        }
        self.integral[i]
    }

    /// How long a line survives from `start` (both in milliseconds), and whether our own VM evicted it.
    fn survive(&mut self, start: f64) -> (f64, bool) {
        let color = self.color.unwrap_or_else(|| self.rng.below(self.colors));
        let pressure = self.cache.any_pressure(&mut self.rng);
        let weight = self.cache.weight(color as usize).map(|weight| weight * pressure);
        // Independent of the line before: more insertions than the set can remember.
        self.cache.renew(&mut self.rng);
        self.cache.sets.fill(0, self.our_ways, 0, true, true, &mut self.rng);
        let mut cell = (start / GRID_MS) as usize;
        let mut now = start;
        let last = ((start + HORIZON_MS) / GRID_MS) as usize;
        let mut left = self.rng.exponential();
        while cell < last {
            let (from, to) = (self.integral(cell), self.integral(cell + 1));
            let rate = [OUTSIDE, OWN].map(|i| (to[i] - from[i]) / GRID_MS * weight[i]);
            let total = rate[OUTSIDE] + rate[OWN];
            let end = (cell + 1) as f64 * GRID_MS;
            let room = total * (end - now);
            if left >= room {
                left -= room.max(0.0);
                now = end;
                cell += 1;
                continue;
            }
            now += left / total;
            left = self.rng.exponential();
            let own = rate[OWN] > 0.0 && self.rng.unit() * total < rate[OWN];
            if self.cache.insert(0, f64::from(u8::from(own)), &mut self.rng) != 0 {
                return (now - start, own);
            }
        }
        (f64::INFINITY, false)
    }
}
