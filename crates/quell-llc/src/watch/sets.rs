//! Watching with eviction sets: one crew per LLC.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quell_topology::Topology;

use super::{Engine, Event, Record, WatchSettings};
use crate::evset::llc::monitor::{Broken, EvsetMonitor, EvsetPeriod};
use crate::evset::llc::report::{crew_for, shape_of};
use crate::evset::llc::{BuildSettings, Stage};
use crate::session::Target;

/// What a watch with eviction sets needs beside the [`WatchSettings`].
#[derive(Clone, Copy, Debug)]
pub struct SetWatch<'a> {
    /// The machine.
    pub topology: &'a Topology,
    /// After this time all sets are built anew.
    pub rebuild: Duration,
    /// Set from outside to have all sets built anew; cleared then.
    pub reload: &'a AtomicBool,
}

/// No construction takes longer than this, in ms.
const TOTAL_MS: f64 = 60_000.0;
/// Broken sets that are named one by one in a note.
const NAMED: usize = 8;

/// Watches `target` with eviction sets on the calling thread and hands every event to `deliver`. Ends when `stop` is
/// set, when `deliver` returns false, or when the wanted periods are over. Returns the number of records delivered.
///
/// # Errors
/// Why there are no sets to rely upon, in words for the user.
pub fn watch_sets(
    target: &Target,
    settings: WatchSettings,
    how: SetWatch<'_>,
    stop: &AtomicBool,
    mut deliver: impl FnMut(Event) -> bool,
) -> Result<u64, String> {
    let text = |error: &dyn std::error::Error| crate::error_chain(error);
    let shape = shape_of(how.topology, target).map_err(|error| text(&error))?;
    let mut crew = crew_for(how.topology, target, shape).map_err(|error| text(&error))?;
    let build =
        BuildSettings { total_ms: TOTAL_MS, ..BuildSettings::new(shape.llc_ways as usize, settings.seed) };
    let keep_on = || !stop.load(Ordering::Relaxed);
    let rebuild_ms = how.rebuild.as_secs_f64() * 1e3;
    let building = |_: Stage| keep_on();
    let mut monitor = EvsetMonitor::open(&mut crew, shape, build, settings.monitor, rebuild_ms, &building)
        .map_err(|error| text(&error))?;
    let mut records = 0;
    while keep_on() && settings.periods.is_none_or(|wanted| records < wanted) {
        let asked = how.reload.swap(false, Ordering::Relaxed);
        let period = monitor.period(&mut crew, asked, &keep_on);
        if !keep_on() {
            break; // a period cut short is no measurement
        }
        let mut record = Record::new(target, Engine::Evset, &period.period, monitor.footprint(), &[]);
        record.coverage_pct = Some(period.coverage_pct);
        record.broken_sets = Some(period.broken.len());
        let mut events: Vec<Event> = note(target, &period).into_iter().map(Event::Note).collect();
        events.push(Event::Record(Box::new(record)));
        if !events.into_iter().all(&mut deliver) {
            break;
        }
        records += 1;
    }
    Ok(records)
}

/// What happened to the sets, if anything.
fn note(target: &Target, period: &EvsetPeriod) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(why) = period.rebuilt {
        parts.push(format!("all sets were built anew ({})", why.name()));
    }
    if !period.broken.is_empty() {
        let name = |broken: &Broken| format!("color {} offset {}", broken.color, broken.slot * 64);
        let named: Vec<String> = period.broken.iter().take(NAMED).map(name).collect();
        let more = if period.broken.len() > NAMED { " and more" } else { "" };
        parts.push(format!(
            "{} sets no longer evict their target and were taken out ({}{more}); {} were replaced",
            period.broken.len(),
            named.join(", "),
            period.refilled
        ));
    }
    (!parts.is_empty()).then(|| {
        format!(
            "LLC {}: {}; {:.1} % of the wanted sets are valid",
            target.llc,
            parts.join("; "),
            period.coverage_pct
        )
    })
}
