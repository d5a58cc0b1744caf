//! Several vCPUs of the machine at work side by side, each with a helper where one is wanted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use quell_core::{CpuId, Crew, Line, Memory};
use quell_topology::Pinned;

use super::arena::Arena;
use super::loads;
use super::machine::{HwError, HwMemory};

/// A helper that does not answer for so long has lost its CPU; the trial goes on without it.
const HELPER_DEADLINE: Duration = Duration::from_millis(20);
/// Looks at the mailbox between two offers of the CPU to others.
const LOOKS: u32 = 4096;

/// A CPU that measures, and one of another core of the same LLC that loads along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// The measuring CPU.
    pub main: CpuId,
    /// The helper's CPU.
    pub helper: Option<CpuId>,
}

/// Threads on the CPUs of one LLC, over one arena.
#[derive(Debug)]
pub struct HwCrew {
    arena: Arc<Arena>,
    ticks_per_ms: f64,
    stations: Vec<Station>,
}

/// Why there is no crew.
#[derive(Debug, thiserror::Error)]
pub enum CrewError {
    /// No CPU was named.
    #[error("cannot measure without a CPU")]
    NoStation,
    /// A CPU cannot be used.
    #[error("cannot work on CPU {cpu}")]
    Cpu {
        /// The CPU.
        cpu: CpuId,
        /// Why.
        #[source]
        source: quell_topology::Error,
    },
    /// No memory.
    #[error("cannot prepare the memory to measure")]
    Memory(#[from] HwError),
}

impl HwCrew {
    /// Maps an arena of `pages` small pages for `stations`, of which there must be one at least. `ticks_per_ms` is
    /// the rate of the time-stamp counter.
    ///
    /// # Errors
    /// [`CrewError`].
    pub fn new(pages: u32, ticks_per_ms: f64, stations: Vec<Station>) -> Result<Self, CrewError> {
        if stations.is_empty() {
            return Err(CrewError::NoStation);
        }
        for cpu in stations.iter().flat_map(|station| [Some(station.main), station.helper]).flatten() {
            Pinned::to(cpu).map_err(|source| CrewError::Cpu { cpu, source })?;
        }
        Ok(Self { arena: HwMemory::map(pages)?, ticks_per_ms, stations })
    }

    /// Who works where.
    #[must_use]
    pub fn stations(&self) -> &[Station] {
        &self.stations
    }

    /// Works at one station until `work` returns, with its helper alongside.
    fn attend(&self, station: Station, work: impl FnOnce(&mut HwMemory)) {
        // That this works was checked before; if it no longer does, samples count as migrated.
        let _pin = Pinned::to(station.main);
        let mut memory = HwMemory::sharing(Arc::clone(&self.arena), self.ticks_per_ms);
        let Some(cpu) = station.helper else { return work(&mut memory) };
        let mailbox = Arc::new(Mailbox::default());
        memory.helper = Some(Arc::clone(&mailbox));
        thread::scope(|scope| {
            scope.spawn(|| {
                let _pin = Pinned::to(cpu);
                mailbox.serve(&self.arena);
            });
            let _closer = Closer(&mailbox);
            work(&mut memory);
        });
    }
}

impl Crew for HwCrew {
    fn members(&self) -> usize {
        self.stations.len()
    }

    fn run<J: Send, R: Send>(
        &mut self,
        jobs: Vec<J>,
        work: &(dyn Fn(&mut &mut dyn Memory, J) -> R + Sync),
    ) -> Vec<R> {
        let stations = &self.stations[..self.stations.len().min(jobs.len())];
        let queue: Mutex<VecDeque<(usize, J)>> = Mutex::new(jobs.into_iter().enumerate().collect());
        let results = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for &station in stations {
                let (crew, queue, results) = (&*self, &queue, &results);
                scope.spawn(move || {
                    crew.attend(station, |memory| {
                        loop {
                            let Some((number, job)) = lock(queue).pop_front() else { break };
                            let mut memory: &mut dyn Memory = &mut *memory;
                            let result = work(&mut memory, job);
                            lock(results).push((number, result));
                        }
                    });
                });
            }
        });
        let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.sort_by_key(|(number, _)| *number);
        results.into_iter().map(|(_, result)| result).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Batches of loads on their way to a helper, which waits for them without sleeping.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    lines: Mutex<Vec<Line>>,
    posted: AtomicU64,
    done: AtomicU64,
    closed: AtomicBool,
}

impl Mailbox {
    /// Asks the helper to load `lines`.
    pub(super) fn post(&self, lines: &[Line]) {
        let mut buffer = lock(&self.lines);
        buffer.clear();
        buffer.extend_from_slice(lines);
        self.posted.fetch_add(1, Ordering::Release);
    }

    /// Waits until the helper has loaded them.
    pub(super) fn wait(&self) {
        let wanted = self.posted.load(Ordering::Relaxed);
        let start = Instant::now();
        while self.done.load(Ordering::Acquire) < wanted && start.elapsed() < HELPER_DEADLINE {
            std::hint::spin_loop();
        }
    }

    fn serve(&self, arena: &Arena) {
        let (mut served, mut looks) = (0, 0_u32);
        loop {
            let posted = self.posted.load(Ordering::Acquire);
            if posted != served {
                loads::load(arena, &lock(&self.lines));
                served = posted;
                self.done.store(served, Ordering::Release);
            } else if self.closed.load(Ordering::Relaxed) {
                return;
            } else {
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(LOOKS) {
                    thread::yield_now();
                }
                std::hint::spin_loop();
            }
        }
    }
}

/// Sends the helper home, also when the work panics.
struct Closer<'a>(&'a Mailbox);

impl Drop for Closer<'_> {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two stations on one CPU, one of them with a helper there too: slow, but everybody gets their turn.
    #[test]
    fn jobs_are_done_in_order_whoever_does_them() {
        let cpu = quell_topology::affinity::allowed().unwrap()[0];
        let stations = vec![Station { main: cpu, helper: Some(cpu) }, Station { main: cpu, helper: None }];
        let mut crew = HwCrew::new(64, 2.5e6, stations).unwrap();
        let lines: Vec<Line> = (0..64).map(|page| Line::new(page, 3)).collect();
        let results = crew.run((0..6).collect(), &|memory, job: u32| {
            memory.load_shared(&lines);
            let mut samples = Vec::new();
            memory.time(&lines, &mut samples);
            (job, samples.len())
        });
        assert_eq!(results, (0..6).map(|job| (job, 64)).collect::<Vec<_>>());
        assert!(matches!(HwCrew::new(1, 1.0, vec![]), Err(CrewError::NoStation)));
    }
}
