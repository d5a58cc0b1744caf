//! A thread on another vCPU that streams through memory for a given share of the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use quell_core::memory::PAGE_BYTES;
use quell_core::{Bytes, CpuId, Memory, Ticks, tsc};
use quell_topology::{Pinned, Table};

use super::DetectError;
use crate::hw::HwMemory;

/// One on-off cycle, in ms: shorter than any window.
const CYCLE_MS: f64 = 1.0;
/// Pages read between two looks at the clock and at the ping table: a few microseconds.
const CHUNK_PAGES: usize = 16;

#[derive(Debug, Default)]
struct Controls {
    duty_pct: AtomicU32,
    stop: AtomicBool,
    chunks: AtomicU64,
}

/// What a polluter streams through.
#[derive(Debug)]
pub(super) enum Stream {
    /// Memory of its own, so much of it, as fast as it can.
    Sequential(Bytes),
    /// Some pages of memory that it shares.
    Pages {
        /// The memory.
        memory: HwMemory,
        /// The pages.
        pages: Vec<u32>,
        /// Most bytes to read per ms while it streams.
        bytes_per_ms: f64,
    },
}

impl Stream {
    /// The memory, the pages and the least time of one chunk in ticks, from the polluter's own CPU.
    fn prepare(self, ticks_per_ms: f64) -> Result<(HwMemory, Vec<u32>, Ticks), DetectError> {
        match self {
            Self::Sequential(working_set) => {
                let pages = (working_set.0 / u64::from(PAGE_BYTES)).max(1);
                let memory = HwMemory::new(u32::try_from(pages).unwrap_or(u32::MAX), ticks_per_ms)?;
                let pages = (0..memory.pages()).collect();
                Ok((memory, pages, Ticks(0)))
            }
            Self::Pages { memory, pages, bytes_per_ms } => {
                let chunk = CHUNK_PAGES as f64 * f64::from(PAGE_BYTES);
                Ok((memory, pages, Ticks((chunk / bytes_per_ms * ticks_per_ms) as u64)))
            }
        }
    }
}

/// The running polluter; it ends when this is dropped. While it runs, it answers pings on [`Polluter::table`].
#[derive(Debug)]
pub(super) struct Polluter {
    controls: Arc<Controls>,
    table: Arc<Table>,
    thread: Option<JoinHandle<()>>,
}

impl Polluter {
    /// Starts a polluter on `cpu` that streams through `stream` in order; its duty is 0 at first.
    ///
    /// Between streaming it spins, so that arms of different duty differ in memory traffic alone.
    pub(super) fn start(cpu: CpuId, stream: Stream, ticks_per_ms: f64) -> Result<Self, DetectError> {
        let controls = Arc::new(Controls::default());
        let table = Arc::new(Table::new());
        let (ready, started) = std::sync::mpsc::channel();
        let (its_controls, its_table) = (Arc::clone(&controls), Arc::clone(&table));
        let thread = thread::Builder::new()
            .name("quell-polluter".into())
            .spawn(move || {
                let prepare = || -> Result<_, DetectError> {
                    let pin = Pinned::to(cpu)?;
                    Ok((pin, stream.prepare(ticks_per_ms)?))
                };
                match prepare() {
                    Ok((_pin, (memory, pages, pace))) => {
                        let _ = ready.send(Ok(()));
                        pollute(memory, (&pages, pace), &its_controls, &its_table, ticks_per_ms);
                    }
                    Err(error) => drop(ready.send(Err(error))),
                }
            })
            .map_err(DetectError::Thread)?;
        let polluter = Self { controls, table, thread: Some(thread) };
        match started.recv_timeout(Duration::from_secs(10)) {
            Ok(outcome) => outcome.map(|()| polluter),
            Err(_) => Err(DetectError::PolluterSilent(cpu)),
        }
    }

    /// Sets the share of time spent streaming, 0 to 100 percent.
    pub(super) fn set_duty(&self, duty_pct: u32) {
        self.controls.duty_pct.store(duty_pct.min(100), Ordering::Relaxed);
    }

    /// Where to ping it.
    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// Bytes read so far.
    pub(super) fn bytes(&self) -> u64 {
        self.controls.chunks.load(Ordering::Relaxed) * CHUNK_PAGES as u64 * u64::from(PAGE_BYTES)
    }
}

impl Drop for Polluter {
    fn drop(&mut self) {
        self.controls.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn pollute(
    mut memory: HwMemory,
    (pages, pace): (&[u32], Ticks),
    controls: &Controls,
    table: &Table,
    ticks_per_ms: f64,
) {
    let patience = Ticks(ticks_per_ms as u64);
    let cycle = CYCLE_MS * ticks_per_ms;
    let mut chunks = pages.chunks(CHUNK_PAGES).cycle();
    let start = tsc::now();
    let mut next = start;
    while !controls.stop.load(Ordering::Relaxed) {
        table.poll(patience);
        let duty = f64::from(controls.duty_pct.load(Ordering::Relaxed)) / 100.0;
        let now = tsc::now();
        let phase = (now.since(start).0 as f64 / cycle).fract();
        if phase < duty && now >= next {
            next = now + pace;
            memory.load_pages(chunks.next().unwrap_or_default());
            controls.chunks.fetch_add(1, Ordering::Relaxed);
        } else {
            for _ in 0..16 {
                std::hint::spin_loop();
            }
        }
    }
}
