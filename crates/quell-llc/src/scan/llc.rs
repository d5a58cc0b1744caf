//! The outcome of scanning one LLC.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use quell_core::{Bytes, CpuId};
use quell_topology::{Pinned, tsc_ticks_per_ms};

use super::ScanSettings;
use super::available::available_memory;
use crate::calibrate::Calibration;
use crate::capacity::{self, Usable};
use crate::hw::HwMemory;
use crate::layout::{Layout, Spill};
use crate::monitor::Period;
use crate::session::{Companion, Session, Target};
use crate::summary::Summary;
use crate::tier::TierLimits;

/// What was found out about one LLC.
#[derive(Clone, Debug)]
pub struct LlcScan {
    /// What was scanned.
    pub target: Target,
    /// What a hit and a miss look like; `None` if not even that could be measured.
    pub calibration: Option<Calibration>,
    /// How the other CPUs of the LLC moved relative to the probe's.
    pub companions: Vec<Companion>,
    /// The measurement, or why there is none.
    pub measured: Result<Measured, String>,
    /// Things the user should know, in words.
    pub notes: Vec<String>,
}

/// The measurement proper.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The estimates.
    pub summary: Summary,
    /// Windows of all lengths, for the picture of the survival curve.
    pub sweep: Period,
    /// The adaptive periods.
    pub periods: Vec<Period>,
    /// How much of the LLC can be held.
    pub usable: Usable,
    /// Bytes that one window brings into the cache.
    pub footprint: Bytes,
}

impl LlcScan {
    pub(super) fn failed(target: &Target, reason: String) -> Self {
        Self {
            target: target.clone(),
            calibration: None,
            companions: Vec::new(),
            measured: Err(reason),
            notes: Vec::new(),
        }
    }

    pub(super) fn new(session: &Session, notes: Vec<String>) -> Self {
        let calibration = session.calibration.clone();
        Self {
            companions: session.companions.summaries(calibration.memory_ns()),
            calibration: Some(calibration),
            notes,
            ..Self::failed(&session.target, "interrupted before the first period".into())
        }
    }

    pub(super) fn finish(
        &mut self,
        session: &Session,
        sweep: Period,
        periods: Vec<Period>,
        usable: Usable,
        tiers: TierLimits,
    ) {
        let spill: Spill = session.calibration.spill;
        self.companions = session.companions.summaries(session.calibration.memory_ns());
        if !periods.is_empty() {
            let summary = Summary::of(&periods, tiers);
            let footprint = Layout::footprint(spill);
            self.measured = Ok(Measured { summary, sweep, periods, usable, footprint });
        }
    }
}

/// The capacity measurement takes at most this part of the available memory.
const PART_OF_AVAILABLE: u64 = 4;
/// It never takes more than this, so that a scan stays below 600 MiB in all.
const MOST: Bytes = Bytes::mib(512);

/// Measures the usable capacity in a memory of its own, which is given back at once.
pub(super) fn usable(
    target: &Target,
    calibration: &Calibration,
    settings: ScanSettings,
    turn: &Mutex<()>,
    keep_on: impl FnMut() -> bool,
) -> Usable {
    if !settings.capacity {
        return Usable::unknown("not asked for");
    }
    if target.advertised.0 == 0 {
        return Usable::unknown("nothing tells the size of this cache");
    }
    let limits = match &calibration.discriminator {
        Ok(limits) => *limits,
        Err(reason) => return Usable::unknown(reason.clone()),
    };
    let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
    let most = available_memory(Path::new("/"))
        .map_or(MOST, |bytes| Bytes((bytes.0 / PART_OF_AVAILABLE).min(MOST.0)));
    let pages = capacity::pages(target.advertised).min((most.0 >> 12) as u32);
    match probe_memory(target.probe_cpu(), pages) {
        Ok(mut memory) => {
            capacity::usable(&mut memory, limits, target.advertised, target.l2, settings.seed, keep_on)
        }
        Err(error) => Usable::unknown(crate::error_chain(&*error)),
    }
}

fn probe_memory(cpu: CpuId, pages: u32) -> Result<HwMemory, Box<dyn std::error::Error>> {
    let _pin = Pinned::to(cpu)?;
    Ok(HwMemory::new(pages, tsc_ticks_per_ms()?)?)
}
