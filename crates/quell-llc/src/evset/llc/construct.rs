//! From nothing to verified sets: calibration, colors, candidates, sets.

use quell_core::memory::PAGE_BYTES;
use quell_core::stats::quantile;
use quell_core::{Bytes, Crew, Memory, Ticks};

use super::build::{BuildSettings, Built, Failure, build};
use super::filter::sort_by_color;
use super::search::SearchFailure;
use super::test::LlcTest;
use crate::calibrate::{Calibration, Discriminator, calibrate};
use crate::color::{Classification, ClassifyError, L2, Pool, classify};
use crate::evset::test::Level;
use crate::layout::Layout;

/// The caches as the machine describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The private L2.
    pub l2: L2,
    /// Size of the LLC.
    pub llc: Bytes,
    /// Ways of the LLC.
    pub llc_ways: u32,
}

/// Candidates per line of the LLC.
const POOL_FACTOR: u64 = 3;
/// Pages of the pool from which colors are learnt, over the least that can be sorted …
const COLOR_POOL_OF_LEAST: u32 = 3;
/// … and at least.
const COLOR_PAGES: u32 = 1024;

impl Shape {
    /// Pages that the arena needs: three times the LLC, so that nearly every LLC set gets more lines than it has
    /// ways.
    #[must_use]
    pub fn pages(self) -> u32 {
        let pages = u32::try_from(POOL_FACTOR * self.llc.0 / u64::from(PAGE_BYTES)).unwrap_or(u32::MAX);
        pages.max(self.color_pool().count).max(Layout::pages(self.l2.size))
    }

    fn color_pool(self) -> Pool {
        Pool { first: 0, count: (self.l2.least_pages() * COLOR_POOL_OF_LEAST).max(COLOR_PAGES) }
    }
}

/// What a construction is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Learning what a hit and a miss look like.
    Calibrating,
    /// Learning the page colors from the private L2.
    Coloring,
    /// Sorting all candidates by color.
    Filtering,
    /// Building; so many sets so far.
    Building(usize),
}

/// Why no construction took place.
#[derive(Debug, thiserror::Error)]
pub enum ConstructError {
    /// Hits and misses cannot be told apart.
    #[error("hits and misses cannot be told apart here: {0}")]
    Calibration(String),
    /// There are no colors to filter candidates by.
    #[error("the L2 gives no page colors to filter candidates by")]
    Colors(#[from] ClassifyError),
    /// The caller said so.
    #[error("interrupted")]
    Interrupted,
}

/// A construction with what it rests on.
#[derive(Clone, Debug)]
pub struct Construction {
    /// What it was built for.
    pub shape: Shape,
    /// The hit/miss limit.
    pub limits: Discriminator,
    /// The colors of a small pool.
    pub colors: Classification,
    /// All candidates by color.
    pub pages: Vec<Vec<u32>>,
    /// The test, for further use.
    pub test: LlcTest,
    /// The sets.
    pub built: Built,
    /// Whether every vCPU had a helper.
    pub helpers: bool,
    /// Time before the sets: calibration and coloring, filtering; in ms.
    pub before_ms: [f64; 2],
}

/// Sets must exist for at least this share of what was wanted, in percent, or nothing rests on them.
pub const LEAST_COVERAGE_PCT: f64 = 50.0;

/// Learns colors and candidates and builds sets. `settings.slots` and the like say which.
///
/// # Errors
/// [`ConstructError`]. A construction that found no or few sets is no error; see [`Construction::verdict`].
pub fn construct(
    crew: &mut impl Crew,
    shape: Shape,
    settings: &BuildSettings,
    progress: &(dyn Fn(Stage) -> bool + Sync),
) -> Result<Construction, ConstructError> {
    let go_on = |stage| if progress(stage) { Ok(()) } else { Err(ConstructError::Interrupted) };
    go_on(Stage::Calibrating)?;
    let seed = settings.seed;
    let layout = Layout::new(shape.l2.size, seed);
    let start = one(crew, &|memory| memory.now());
    let calibration = one(crew, &|memory| calibrate(memory, shape.l2.size, &layout));
    let limits = limits(&calibration).map_err(ConstructError::Calibration)?;
    go_on(Stage::Coloring)?;
    let pool = shape.color_pool();
    let colors = one(crew, &|memory| classify(memory, shape.l2, pool, seed))?;
    let colored = one(crew, &|memory| memory.now());
    go_on(Stage::Filtering)?;
    let (pages, per_ms, helpers) =
        one(crew, &|memory| (memory.pages(), memory.ticks_per_ms(), memory.has_helper()));
    let rest: Vec<u32> = (pool.count..shape.pages().min(pages)).collect();
    let mut pages = sort_by_color(crew, &colors, &rest, shape.l2.ways, seed);
    for (color, pages) in pages.iter_mut().enumerate() {
        pages.extend(colors.pages_of(color as u32));
    }
    let filtered = one(crew, &|memory| memory.now());
    let test = LlcTest::new(Level::llc(limits));
    let mut built = build(crew, &test, &pages, settings, &|sets| progress(Stage::Building(sets)));
    // Colors that were not found are missing sets as well.
    built.wanted = settings.wanted(pages.len().max(shape.l2.expected_colors() as usize));
    let ms = |from: Ticks, to: Ticks| to.since(from).0 as f64 / per_ms;
    let before_ms = [ms(start, colored), ms(colored, filtered)];
    Ok(Construction { shape, limits, colors, pages, test, built, helpers, before_ms })
}

/// The hit/miss limit, if lines in the LLC read as hits by it: a limit between L2 and LLC would make eviction sets
/// of the L2 look right. Lines that took as long as memory are no sign of that; they have really been evicted.
fn limits(calibration: &Calibration) -> Result<Discriminator, String> {
    let limits = calibration.discriminator.clone()?;
    let [_, llc, memory] = &calibration.classes;
    let fast_miss = quantile(&memory.single_ticks, 0.05).unwrap_or(f64::INFINITY);
    let between = f64::from(limits.miss_above)..fast_miss;
    let misread = llc.single_ticks.iter().filter(|ticks| between.contains(ticks)).count();
    if 2 * misread > llc.single_ticks.len() {
        return Err(format!("{misread} of {} lines in the LLC read as misses", llc.single_ticks.len()));
    }
    Ok(limits)
}

fn one<R: Send>(crew: &mut impl Crew, work: &(dyn Fn(&mut &mut dyn Memory) -> R + Sync)) -> R {
    let mut results = crew.run(vec![()], &|memory, ()| work(memory));
    results.remove(0)
}

impl Construction {
    /// Whether the sets can be used.
    ///
    /// # Errors
    /// Why not, from what was seen, in a sentence or two.
    pub fn verdict(&self) -> Result<(), String> {
        let built = &self.built;
        if built.coverage_pct() >= LEAST_COVERAGE_PCT {
            return Ok(());
        }
        let per_color = self.pages.iter().map(Vec::len).sum::<usize>() / self.pages.len().max(1);
        let count = |failure: Failure| built.failures.get(&failure).copied().unwrap_or(0);
        let tries: u32 = built.failures.values().sum();
        let none = count(SearchFailure::NoEviction.into());
        if 2 * none >= tries && built.sets.is_empty() {
            return Err(format!(
                "in {none} of {tries} searches, all {per_color} lines of one color at one page offset together did not push \
                 a line out of the LLC. {} lines of one LLC set should have been among them {POOL_FACTOR} times over. \
                 An LLC that takes its lines from the L2 only, as on AMD Zen, shows this: without knowing its hash no \
                 minimal set can be built. Use `--engine color`, which needs none",
                self.shape.llc_ways
            ));
        }
        let worst = built.failures.iter().max_by_key(|(_, count)| **count);
        let why = worst.map_or_else(
            || "the time was over".into(),
            |(failure, count)| format!("{failure} ({count} of {tries} failures)"),
        );
        if built.ways.is_none() && !built.sizes.is_empty() {
            let sizes: Vec<String> =
                built.sizes.iter().map(|(size, count)| format!("{count} of {size} lines")).collect();
            return Err(format!(
                "the sets found have no common size ({}), so none is taken as right; {why}",
                sizes.join(", ")
            ));
        }
        Err(format!("only {} of {} sets could be verified; {why}", built.sets.len(), built.wanted))
    }

    /// Whether the LLC shows fewer ways than it is said to have: the sign of way limits, such as Intel CAT. `None`
    /// if no sets tell.
    #[must_use]
    pub fn way_limited(&self) -> Option<bool> {
        self.built.ways.map(|ways| ways < self.shape.llc_ways as usize)
    }
}
