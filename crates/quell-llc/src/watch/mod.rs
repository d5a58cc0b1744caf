//! The continuous measurement behind `quell watch`: one record per LLC and period, until stopped.

mod feed;
mod record;
mod sets;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

pub use self::feed::{Feed, FeedError};
pub use self::record::Record;
pub use self::sets::{SetWatch, watch_sets};
use serde::Serialize;

use crate::color::canary::WATCH_LINES;
use crate::color::{Classification, ColorCanary, L2};
use crate::hw::Raised;
use crate::monitor::{Monitor, Plan, Settings};
use crate::session::{Session, Target};

/// How to watch.
#[derive(Clone, Copy, Debug)]
pub struct WatchSettings {
    /// Windows, periods and tiers.
    pub monitor: Settings,
    /// Records per LLC after which to end; `None` = until stopped.
    pub periods: Option<u64>,
    /// What to measure with.
    pub engine: Engine,
    /// Whether to raise the probing threads' priority (needs root).
    pub priority: bool,
    /// Draws page offsets, window times and the like.
    pub seed: u64,
}

/// What a watch measures with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// The best that verifies itself here: colors, else the plain canary.
    Auto,
    /// A few hundred lines anywhere.
    Canary,
    /// Lines of every page color.
    Color,
    /// Minimal eviction sets of the LLC; needs [`watch_sets`].
    Evset,
}

impl Engine {
    /// The name as it appears in every output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Canary => "canary",
            Self::Color => "color",
            Self::Evset => "evset",
        }
    }
}

/// What comes out of a watch.
#[derive(Debug)]
pub enum Event {
    /// A period of one LLC.
    Record(Box<Record>),
    /// Something the user should know, in words.
    Note(String),
}

/// Watches all targets, one thread each, and hands every event to `deliver` on the calling thread. Ends when
/// `stop` is set, when `deliver` returns false, when the wanted periods are over, or when no LLC can be
/// watched (the notes say why). Returns the number of records delivered.
pub fn watch(
    targets: &[Target],
    settings: WatchSettings,
    stop: &AtomicBool,
    mut deliver: impl FnMut(Event) -> bool,
) -> u64 {
    let (sender, events) = mpsc::channel();
    thread::scope(|scope| {
        for target in targets {
            let its_sender = sender.clone();
            let not_watched =
                move |reason: String| Event::Note(format!("LLC {} is not watched: {reason}", target.llc));
            let started = thread::Builder::new().spawn_scoped(scope, move || {
                if let Err(reason) = watch_one(target, settings, stop, &its_sender) {
                    let _ = its_sender.send(not_watched(reason));
                }
            });
            if let Err(error) = started {
                let _ = sender.send(not_watched(format!("cannot start a measuring thread: {error}")));
            }
        }
        drop(sender);
        let mut records = 0;
        for event in events {
            records += u64::from(matches!(event, Event::Record(_)));
            if !deliver(event) {
                stop.store(true, Ordering::Relaxed);
            }
        }
        records
    })
}

fn watch_one(
    target: &Target,
    settings: WatchSettings,
    stop: &AtomicBool,
    events: &Sender<Event>,
) -> Result<(), String> {
    let _raised = settings.priority.then(Raised::calling_thread).and_then(|raised| match raised {
        Ok(raised) => Some(raised),
        Err(error) => {
            let _ = events.send(Event::Note(format!("the probe's priority was not raised: {error}")));
            None
        }
    });
    let pool = if settings.engine == Engine::Canary { 0 } else { target.l2_shape().map_or(0, pool_pages) };
    let mut session = Session::with_pool(target.clone(), pool, settings.seed)
        .map_err(|error| crate::error_chain(&error))?;
    let (mut engine, mut monitor, mut colors) = choose(&mut session, settings, events)?;
    let mut checked = Instant::now();
    let keep_on = || !stop.load(Ordering::Relaxed);
    let mut done = 0;
    while keep_on() && settings.periods.is_none_or(|wanted| done < wanted) {
        if checked.elapsed() >= CHECK_EVERY {
            checked = Instant::now();
            if let Some(note) =
                colors.as_ref().and_then(|colors| outdated(&mut session, colors, settings.seed))
            {
                let _ = events.send(Event::Note(format!("LLC {}: {note}", target.llc)));
                // A monitor that runs for months shall not end because the sorting fails once.
                let lenient = WatchSettings { engine: Engine::Auto, ..settings };
                (engine, monitor, colors) = choose(&mut session, lenient, events)?;
            }
        }
        let period = session.period(&mut monitor, Plan::Adaptive, keep_on);
        if !keep_on() {
            break; // a period cut short is no measurement
        }
        let companions = session.companions.summaries(session.calibration.memory_ns());
        let footprint = monitor.footprint(session.calibration.spill);
        let record = Record::new(target, engine, &period, footprint, &companions);
        if events.send(Event::Record(Box::new(record))).is_err() {
            break;
        }
        done += 1;
    }
    Ok(())
}

/// Pages to sort by color: several times what sorting needs, so that every color has enough for its canary.
fn pool_pages(l2: L2) -> u32 {
    (l2.least_pages() * POOL_OF_LEAST).max(LEAST_POOL)
}

const POOL_OF_LEAST: u32 = 4;
/// 16 MiB.
const LEAST_POOL: u32 = 4096;

/// Colors are tested this often: hosts move pages, on one cloud more than half of them within 12 hours (`CacheX`,
/// arXiv 2511.09956).
const CHECK_EVERY: Duration = Duration::from_secs(600);
/// Pages of each color in such a test, and the share that must be right.
const CHECKED_PAGES: usize = 4;
const LEAST_RIGHT: f64 = 0.9;

/// What to tell the user if pages have changed color.
fn outdated(session: &mut Session, colors: &Classification, seed: u64) -> Option<String> {
    let (memory, _) = session.parts();
    let right = colors.still_right(memory, CHECKED_PAGES, seed)?;
    (right < LEAST_RIGHT).then(|| {
        format!(
            "{:.0} % of a sample of pages still have the color they had; all are sorted again",
            right * 100.0
        )
    })
}

/// An engine with its monitor, and the colors if it goes by them.
type Chosen = (Engine, Monitor, Option<Classification>);

/// The engine asked for; `auto` falls back with a note that says why.
fn choose(session: &mut Session, settings: WatchSettings, events: &Sender<Event>) -> Result<Chosen, String> {
    let plain = |session: &Session| Ok((Engine::Canary, session.monitor(settings.monitor)?, None));
    if settings.engine == Engine::Canary {
        return plain(session);
    }
    match colored(session, settings) {
        Ok((monitor, colors)) => {
            let note = format!("LLC {} is watched by color: {} colors", session.target.llc, colors.colors());
            let _ = events.send(Event::Note(note));
            Ok((Engine::Color, monitor, Some(colors)))
        }
        Err(reason) if settings.engine == Engine::Color => {
            Err(format!("page colors are unknown here: {reason}; --engine canary needs none"))
        }
        Err(reason) => {
            let note = format!("LLC {} is watched without colors: {reason}", session.target.llc);
            let _ = events.send(Event::Note(note));
            plain(session)
        }
    }
}

/// A monitor by color, and the colors.
fn colored(session: &mut Session, settings: WatchSettings) -> Result<(Monitor, Classification), String> {
    let limits = session.calibration.discriminator.clone()?;
    let sorted = session.classify(settings.seed)?;
    let calibration = session.calibration.clone();
    let (_, layout) = session.parts();
    let canary = ColorCanary::new(&sorted, layout, &calibration, WATCH_LINES, settings.seed)?;
    Ok((Monitor::with_colors(settings.monitor, canary, limits, settings.seed), sorted))
}
