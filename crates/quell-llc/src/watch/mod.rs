//! The continuous measurement behind `quell watch`: one record per LLC and period, until stopped.

mod feed;
mod record;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;

pub use self::feed::{Feed, FeedError};
pub use self::record::Record;
use crate::hw::Raised;
use crate::layout::Layout;
use crate::monitor::{Monitor, Plan, Settings};
use crate::session::{Session, Target};

/// How to watch.
#[derive(Clone, Copy, Debug)]
pub struct WatchSettings {
    /// Windows, periods and tiers.
    pub monitor: Settings,
    /// Records per LLC after which to end; `None` = until stopped.
    pub periods: Option<u64>,
    /// Whether to raise the probing threads' priority (needs root).
    pub priority: bool,
    /// Draws page offsets, window times and the like.
    pub seed: u64,
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
    let mut session =
        Session::open(target.clone(), settings.seed).map_err(|error| crate::error_chain(&error))?;
    let mut monitor: Monitor = session.monitor(settings.monitor)?;
    let footprint = Layout::footprint(session.calibration.spill);
    let keep_on = || !stop.load(Ordering::Relaxed);
    let mut done = 0;
    while keep_on() && settings.periods.is_none_or(|wanted| done < wanted) {
        let period = session.period(&mut monitor, Plan::Adaptive, keep_on);
        if !keep_on() {
            break; // a period cut short is no measurement
        }
        let companions = session.companions.summaries(session.calibration.memory_ns());
        let record = Record::new(target, &period, footprint, &companions);
        if events.send(Event::Record(Box::new(record))).is_err() {
            break;
        }
        done += 1;
    }
    Ok(())
}
