//! The color-stratified canary: lines of every color, primed and probed together.

use std::collections::HashSet;

use quell_core::{Estimate, Line, Memory, Ticks};
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::classify::Classification;
use super::rates::{ColorRate, ColorWindow, GROUPS, Law, excess, rates};
use crate::calibrate::{Calibration, Discriminator};
use crate::canary::{Canary, Wait, WindowResult};
use crate::curve::Observation;
use crate::evset::l2::octet;
use crate::layout::Layout;
use crate::tier::TierLimits;
use quell_core::stats::quantile;
use quell_core::stats::survival::{DEFAULT_SHAPE, Window};

/// Lines of each color, at most …
pub const LINES_PER_COLOR: usize = 64;
/// … and of all colors together: with more, priming and probing take longer than they tell.
pub const MAX_LINES: usize = 1024;
/// Zero-wait controls before the first round, and how many of them are remembered.
const CONTROLS: usize = 5;
const RECENT_CONTROLS: usize = 21;

/// What one round of windows says.
#[derive(Clone, Debug)]
pub struct ColorRound {
    /// By color, or why nothing may be said.
    pub colors: Result<Vec<ColorRate>, String>,
    /// Windows that took part.
    pub windows: usize,
    /// Windows that were interrupted.
    pub discarded: usize,
    /// CPU time of the round, in ms.
    pub cpu_ms: f64,
}

/// Lines of every color with what is needed to measure them by themselves; [`crate::Monitor`] uses the same lines
/// for continuous measurement.
#[derive(Debug)]
pub struct ColorCanary {
    canary: Canary,
    limits: Discriminator,
    colors: u32,
    pages: HashSet<u32>,
    lost_at_once: Vec<f64>,
}

impl ColorCanary {
    /// Draws lines for the colors of `sorted`, whose pool must lie outside of the pages of `layout`.
    ///
    /// # Errors
    /// Why there cannot be such a canary here.
    pub fn new(
        sorted: &Classification,
        layout: &Layout,
        calibration: &Calibration,
        seed: u64,
    ) -> Result<Self, String> {
        let limits = calibration.discriminator.clone()?;
        let colors = sorted.colors();
        if colors < 2 {
            return Err("all pages have the same color, so there is nothing to compare".into());
        }
        let each = (MAX_LINES / colors / GROUPS * GROUPS).clamp(GROUPS, LINES_PER_COLOR);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut lines: Vec<(Line, usize)> = Vec::new();
        for color in 0..colors {
            let pages: Vec<u32> = sorted.pages_of(color as u32).collect();
            if pages.len() < each {
                return Err(format!(
                    "color {color} has {} pages, fewer than the {each} that a canary takes; use a larger pool",
                    pages.len()
                ));
            }
            for (i, &page) in pages.sample(&mut rng, each).enumerate() {
                let place = rng.random_range(0..8);
                lines.push((octet(page, layout.residue())[place], color * GROUPS + i % GROUPS));
            }
        }
        lines.shuffle(&mut rng);
        let (lines, strata): (Vec<Line>, Vec<usize>) = lines.into_iter().unzip();
        let pages = lines.iter().map(|line| line.page()).collect();
        let canary = calibration.canary(layout.with_canary(lines)).stratified(&strata);
        Ok(Self { canary, limits, colors: colors as u32, pages, lost_at_once: Vec::new() })
    }

    /// Number of colors.
    #[must_use]
    pub fn colors(&self) -> u32 {
        self.colors
    }

    /// Whether one of its lines lies on this page of the arena.
    #[must_use]
    pub fn uses(&self, page: u32) -> bool {
        self.pages.contains(&page)
    }

    /// A color's loss minus the mean of `others`, in percentage points, over some windows; `None` if they tell
    /// nothing.
    #[must_use]
    pub fn excess_pct(&self, windows: &[ColorWindow], color: u32, others: &[u32]) -> Option<f64> {
        let kept: Vec<&ColorWindow> = windows.iter().collect();
        excess(&kept, color, others).map(|share| share * 100.0)
    }

    /// The lines, for a monitor.
    #[must_use]
    pub fn into_canary(self) -> Canary {
        self.canary
    }

    /// The control for losses by priming and probing alone; a round runs it when it has none yet.
    pub fn control(&mut self, memory: &mut impl Memory) {
        let result = self.canary.window(memory, Wait::None, self.limits);
        if let (Some(share), false) = (result.share, result.gap || result.preempted) {
            self.lost_at_once.push(share);
        }
        let old = self.lost_at_once.len().saturating_sub(RECENT_CONTROLS);
        self.lost_at_once.drain(..old);
    }

    /// One window; `None` if it was interrupted. With its CPU time in ms.
    pub fn window(&mut self, memory: &mut impl Memory, length_ms: f64) -> (Option<ColorWindow>, f64) {
        let result = self.canary.window(memory, Wait::Sleep(length_ms), self.limits);
        (color_window(&result, 0), result.cpu_ms)
    }

    /// A round: windows of these lengths in ms, each after a pause in ms. `shape` is the Weibull shape, where it is
    /// known.
    pub fn round(
        &mut self,
        memory: &mut impl Memory,
        lengths_ms: &[f64],
        pause_ms: f64,
        shape: Option<f64>,
    ) -> ColorRound {
        while self.lost_at_once.len() < CONTROLS {
            let before = self.lost_at_once.len();
            self.control(memory);
            if self.lost_at_once.len() == before {
                break;
            }
        }
        let mut windows = Vec::new();
        let mut cpu_ms = 0.0;
        for &length in lengths_ms {
            let until = memory.now() + Ticks((pause_ms * memory.ticks_per_ms()) as u64);
            memory.sleep_until(until);
            let (window, cost) = self.window(memory, length);
            windows.extend(window);
            cpu_ms += cost;
        }
        let lost_at_once = quantile(&self.lost_at_once, 0.5);
        let law = |lost_at_once| Law {
            lost_at_once,
            shape: shape.unwrap_or(DEFAULT_SHAPE),
            tiers: TierLimits::default(),
        };
        let colors = match lost_at_once {
            None => Err("every control was interrupted".into()),
            Some(lost) if lost > crate::monitor::MAX_LOST_AT_ONCE => Err(format!(
                "saturated, or a cache that does not keep what was primed: {:.0} % of the lines are gone without any wait",
                lost * 100.0
            )),
            Some(_) if windows.is_empty() => Err("every window was interrupted".into()),
            Some(lost) => Ok(rates(&windows, self.colors, law(lost))),
        };
        ColorRound { colors, discarded: lengths_ms.len() - windows.len(), windows: windows.len(), cpu_ms }
    }
}

/// A window as the rates take it; `None` if it was interrupted or has no strata. `block` numbers windows that depend
/// on one another.
pub(crate) fn color_window(result: &WindowResult, block: u32) -> Option<ColorWindow> {
    let share = result.share.filter(|_| !result.gap && !result.preempted && !result.strata.is_empty())?;
    let window = Window::new(result.exposure_ms, share, block);
    let observation = Observation { window, sentinels_lost: result.sentinels_lost };
    Some(ColorWindow { observation, strata: result.strata.clone() })
}

impl ColorRound {
    /// A color's excess loss in percentage points.
    #[must_use]
    pub fn excess_pct(&self, color: u32) -> Estimate {
        match &self.colors {
            Ok(colors) => colors[color as usize].excess_pct.clone(),
            Err(reason) => Estimate::unknown(reason.clone()),
        }
    }
}
