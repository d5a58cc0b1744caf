//! The one-shot measurement behind `quell scan`: every LLC of the machine, some ten seconds.

mod available;
pub mod calibration;
mod llc;
pub mod report;
pub mod targets;
mod verdict;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub use self::llc::{LlcScan, Measured};
pub use self::report::ScanReport;
pub use self::targets::{TargetError, targets};
use crate::hw::Raised;
use crate::monitor::{Plan, Settings};
use crate::session::{Session, Target};

/// How to scan.
#[derive(Clone, Copy, Debug)]
pub struct ScanSettings {
    /// Windows, periods and tiers.
    pub monitor: Settings,
    /// Adaptive periods after the sweep.
    pub periods: u32,
    /// Whether to measure how much of the LLC is usable.
    pub capacity: bool,
    /// Whether to raise the probing threads' priority (needs root).
    pub priority: bool,
    /// Draws page offsets, window times and the like.
    pub seed: u64,
}

/// How far a scan is; steps of all LLCs together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Steps done.
    pub done: usize,
    /// Steps in all.
    pub total: usize,
}

/// What the threads of one scan share.
struct Shared<'a> {
    settings: ScanSettings,
    stop: &'a AtomicBool,
    /// Only one LLC at a time fills its cache: memory stays bounded on machines with many.
    capacity_turn: Mutex<()>,
    progress: &'a (dyn Fn(Progress) + Sync),
    done: Mutex<usize>,
    total: usize,
}

impl Shared<'_> {
    fn keep_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn step(&self) {
        if let Ok(mut done) = self.done.lock() {
            *done += 1;
            (self.progress)(Progress { done: *done, total: self.total });
        }
    }
}

/// Scans all targets at once, one thread each. Setting `stop` ends the scan early with what there is.
pub fn scan(
    targets: &[Target],
    settings: ScanSettings,
    stop: &AtomicBool,
    progress: &(dyn Fn(Progress) + Sync),
) -> Vec<LlcScan> {
    let steps_per_llc = settings.periods as usize + 3;
    let shared = Shared {
        settings,
        stop,
        capacity_turn: Mutex::new(()),
        progress,
        done: Mutex::new(0),
        total: targets.len() * steps_per_llc,
    };
    thread::scope(|scope| {
        let shared = &shared;
        let start = |target| thread::Builder::new().spawn_scoped(scope, move || scan_one(target, shared));
        let threads: Vec<_> = targets.iter().map(|target| (target, start(target))).collect();
        threads
            .into_iter()
            .map(|(target, thread)| {
                let failed = |reason: String| LlcScan::failed(target, reason);
                match thread.map(thread::ScopedJoinHandle::join) {
                    Ok(Ok(scan)) => scan,
                    Ok(Err(_)) => failed("the measuring thread panicked".into()),
                    Err(error) => failed(format!("cannot start a measuring thread: {error}")),
                }
            })
            .collect()
    })
}

/// How long the placement is watched closely before the windows begin.
const DENSE: Duration = Duration::from_millis(1500);

fn scan_one(target: &Target, shared: &Shared<'_>) -> LlcScan {
    let settings = shared.settings;
    let mut notes = Vec::new();
    let _raised = settings.priority.then(Raised::calling_thread).and_then(|raised| match raised {
        Ok(raised) => Some(raised),
        Err(error) => {
            notes.push(format!("the probe's priority was not raised: {error}"));
            None
        }
    });
    let mut session = match Session::open(target.clone(), settings.seed) {
        Ok(session) => session,
        Err(error) => return LlcScan::failed(target, crate::error_chain(&error)),
    };
    shared.step();
    session.companions.dense(DENSE, || shared.keep_on());
    shared.step();
    let mut scan = LlcScan::new(&session, notes);
    let mut monitor = match session.monitor(settings.monitor) {
        Ok(monitor) => monitor,
        Err(reason) => {
            scan.measured = Err(reason);
            return scan;
        }
    };
    let sweep = session.period(&mut monitor, Plan::Sweep, || shared.keep_on());
    let mut periods = Vec::new();
    for _ in 0..settings.periods {
        if !shared.keep_on() {
            break;
        }
        periods.push(session.period(&mut monitor, Plan::Adaptive, || shared.keep_on()));
        shared.step();
    }
    let usable = llc::usable(target, &session.calibration, shared.settings, &shared.capacity_turn, || {
        shared.keep_on()
    });
    shared.step();
    scan.finish(&session, sweep, periods, usable, settings.monitor.tiers);
    scan
}
