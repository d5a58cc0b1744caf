//! Who shares a cache right now: the round trip of one cache line between two vCPUs.
//!
//! Two threads on different CPUs pass a cache line to and fro. Within one LLC that takes a few L3 latencies,
//! across LLCs a few DRAM latencies. A single exchange may be slow for many reasons, but none makes it too
//! fast, so the **minimum** of a few hundred exchanges is the figure that counts.
//!
//! [`Table`] is the cooperative part: one side calls [`Table::ping`], the other [`Table::pong`], or
//! [`Table::poll`] between other work. [`Pair`] is the convenient part: it keeps a helper thread on the
//! other CPU. Every call has a deadline, so a partner that lost its CPU never hangs anybody.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use quell_core::stats::quantile;
use quell_core::{CpuId, Ticks, tsc};
use serde::Serialize;

use crate::affinity::Pinned;
use crate::clock::{deadline_in, now_after_loads};
use crate::{Error, tsc_ticks_per_ms};

/// Exchanges in one measurement of a [`Pair`]: 40-150 µs on the machines seen.
pub const EXCHANGES: u32 = 400;
/// How long a [`Pair`] waits for its partner: a few time slices of a busy CPU.
const PATIENCE: Duration = Duration::from_millis(20);
/// With fewer exchanges the minimum says little.
const MIN_EXCHANGES: usize = 16;
/// Polls between two looks at the clock while waiting.
const POLLS_PER_LOOK: u32 = 64;

/// Result of one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RoundTrip {
    /// The fastest exchange, in nanoseconds: the figure to classify.
    pub min_ns: f64,
    /// The middle exchange (nearest rank), in nanoseconds.
    pub median_ns: f64,
    /// Exchanges that were timed.
    pub exchanges: u32,
    /// Exchanges slower than three times the median: interrupts, or a vCPU that lost its core.
    pub far_off: u32,
}

impl RoundTrip {
    /// Summarizes exchange durations in ticks; `None` for too few.
    fn of(ticks: &[f64], wanted: u32, ticks_per_ms: f64) -> Option<Self> {
        if ticks.len() < MIN_EXCHANGES.min(wanted as usize) {
            return None;
        }
        let min = quantile(ticks, 0.0)?;
        let median = quantile(ticks, 0.5)?;
        let to_ns = 1e6 / ticks_per_ms;
        Some(Self {
            min_ns: min * to_ns,
            median_ns: median * to_ns,
            exchanges: ticks.len() as u32,
            far_off: ticks.iter().filter(|&&t| t > 3.0 * median).count() as u32,
        })
    }
}

/// A value alone in its cache line; 128 bytes because some prefetchers fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded<T>(T);

/// Nobody pings.
const IDLE: u64 = 0;
/// The pinging side waits for an answer.
const REQUEST: u64 = 1;
/// The answering side has answered; the session goes on.
const ANSWERED: u64 = 2;
/// The bits that hold one of the three states above; the bits above count exchanges.
const STATE: u64 = 3;

/// A shared cache line and the rules by which two threads pass it to and fro.
///
/// One thread pings, any other answers. A round of measurements needs no thread creation, lock or system call.
#[derive(Debug)]
pub struct Table {
    ball: Padded<AtomicU64>,
    pinging: Padded<AtomicBool>,
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

impl Table {
    /// A table that nobody plays at. The first one in a process measures the counter's rate, which sleeps
    /// about 25 ms.
    #[must_use]
    pub fn new() -> Self {
        // Only to have the rate before the first deadline; `ping` reports a failure as no answer.
        let _ = tsc_ticks_per_ms();
        Self { ball: Padded::default(), pinging: Padded::default() }
    }

    /// Passes the line to the other side and back `exchanges` times (and once before, not timed, because the
    /// partner may have to wake up).
    ///
    /// `None` if the partner answered fewer than 16 times by `deadline`, if another thread is pinging on this
    /// table, or if there is no usable time-stamp counter.
    #[must_use]
    pub fn ping(&self, exchanges: u32, deadline: Ticks) -> Option<RoundTrip> {
        let ticks_per_ms = tsc_ticks_per_ms().ok()?;
        if exchanges == 0 || self.pinging.0.swap(true, Ordering::Acquire) {
            return None;
        }
        // The vector may grow by itself if somebody asks for millions.
        let mut ticks: Vec<f64> = Vec::with_capacity(exchanges.min(1 << 16) as usize);
        let ball = &self.ball.0;
        let mut number = ball.load(Ordering::Relaxed) & !STATE;
        let mut last = Ticks(0);
        for exchange in 0..=exchanges {
            number = number.wrapping_add(STATE + 1);
            ball.store(number | REQUEST, Ordering::Release);
            if !spin(deadline, || ball.load(Ordering::Acquire) == number | ANSWERED) {
                break;
            }
            let now = now_after_loads();
            if exchange > 0 {
                ticks.push(now.since(last).0 as f64);
            }
            last = now;
        }
        // A late answer to an abandoned request cannot follow: the other side answers by compare-exchange.
        ball.store(number | IDLE, Ordering::Release);
        self.pinging.0.store(false, Ordering::Release);
        RoundTrip::of(&ticks, exchanges, ticks_per_ms)
    }

    /// Waits for a session of pings and answers until it ends or `deadline` passes. Returns the answers given.
    pub fn pong(&self, deadline: Ticks) -> u32 {
        let mut answers = 0;
        spin(deadline, || match self.answer() {
            IDLE => answers > 0,
            REQUEST => {
                answers += 1;
                false
            }
            _ => false,
        });
        answers
    }

    /// For a thread with other work: returns 0 at once (one load from the own cache) if nobody pings, else
    /// serves that session, for at most `patience`, and returns the answers given.
    #[inline]
    pub fn poll(&self, patience: Ticks) -> u32 {
        if self.ball.0.load(Ordering::Relaxed) & STATE == REQUEST {
            self.pong(tsc::now() + patience)
        } else {
            0
        }
    }

    /// Answers a request if there is one, and returns the state before.
    #[inline]
    fn answer(&self) -> u64 {
        let seen = self.ball.0.load(Ordering::Acquire);
        if seen & STATE != REQUEST {
            return seen & STATE;
        }
        let answer = (seen & !STATE) | ANSWERED;
        let swapped = self.ball.0.compare_exchange(seen, answer, Ordering::AcqRel, Ordering::Relaxed);
        if swapped.is_ok() { REQUEST } else { ANSWERED }
    }
}

/// Spins until `done` says so (true) or `deadline` has passed (false).
#[inline]
fn spin(deadline: Ticks, mut done: impl FnMut() -> bool) -> bool {
    loop {
        // No PAUSE in here: it takes up to 140 cycles, and as a VM exit far more.
        for _ in 0..POLLS_PER_LOOK {
            if done() {
                return true;
            }
        }
        if tsc::now() >= deadline {
            return false;
        }
    }
}

/// What the owner of a helper thread tells it.
#[derive(Debug, Default)]
struct Orders {
    /// Serve one session until this deadline.
    serve_until: Option<Ticks>,
    stop: bool,
}

#[derive(Debug)]
struct Shared {
    table: Table,
    orders: Mutex<Orders>,
    wake: Condvar,
}

impl Shared {
    fn give(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.orders.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_one();
    }

    /// The helper's life: sleep until there is a session to serve, serve it, until told to stop.
    fn serve(&self) {
        loop {
            let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
            let deadline = loop {
                if orders.stop {
                    return;
                }
                if let Some(deadline) = orders.serve_until.take() {
                    break deadline;
                }
                orders = self.wake.wait(orders).unwrap_or_else(PoisonError::into_inner);
            };
            drop(orders);
            self.table.pong(deadline);
        }
    }
}

/// A sleeping thread on one CPU that answers pings from any other; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Helper {
    cpu: CpuId,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    pub(crate) fn on(cpu: CpuId) -> Result<Self, Error> {
        tsc_ticks_per_ms()?;
        let shared = Arc::new(Shared { table: Table::new(), orders: Mutex::default(), wake: Condvar::new() });
        let (report, pinned) = mpsc::channel();
        let for_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name(format!("quell-pong-{cpu}"))
            .stack_size(64 << 10)
            .spawn(move || match Pinned::to(cpu) {
                Ok(_guard) => {
                    if report.send(Ok(())).is_ok() {
                        for_thread.serve();
                    }
                }
                Err(error) => {
                    let _ = report.send(Err(error));
                }
            })
            .map_err(|source| Error::Helper { cpu, source })?;
        let helper = Self { cpu, shared, thread: Some(thread) };
        pinned.recv().map_err(|source| Error::Helper { cpu, source: io::Error::other(source) })??;
        Ok(helper)
    }

    /// One measurement between the helper's CPU and `from`, which the calling thread moves to meanwhile.
    pub(crate) fn measure_from(&self, from: CpuId) -> Result<Option<RoundTrip>, Error> {
        if from == self.cpu {
            return Err(Error::SameCpu { cpu: from });
        }
        let _pinned = Pinned::to(from)?;
        let deadline = deadline_in(PATIENCE)?;
        self.shared.give(|orders| orders.serve_until = Some(deadline));
        Ok(self.shared.table.ping(EXCHANGES, deadline))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.shared.give(|orders| orders.stop = true);
        if let Some(thread) = self.thread.take() {
            // It serves no longer than its deadline, so this wait is short; it has nothing to return.
            let _ = thread.join();
        }
    }
}

/// Two CPUs between which round trips are measured, with a sleeping helper thread on the second.
#[derive(Debug)]
pub struct Pair {
    a: CpuId,
    helper: Helper,
}

impl Pair {
    /// Prepares measurements between `a` and `b`: starts a helper thread, pinned to `b`, that sleeps
    /// between measurements and ends when the pair is dropped.
    ///
    /// # Errors
    /// [`Error::SameCpu`], [`Error::Pin`] if one of the CPUs cannot be used, [`Error::NoTsc`] and
    /// [`Error::TscRate`] without a usable counter, [`Error::Helper`] if no thread can be started.
    pub fn new(a: CpuId, b: CpuId) -> Result<Self, Error> {
        if a == b {
            return Err(Error::SameCpu { cpu: a });
        }
        drop(Pinned::to(a)?);
        Ok(Self { a, helper: Helper::on(b)? })
    }

    /// The two CPUs.
    #[must_use]
    pub fn cpus(&self) -> (CpuId, CpuId) {
        (self.a, self.helper.cpu)
    }

    /// Measures [`EXCHANGES`] exchanges; the calling thread is moved to the first CPU meanwhile.
    ///
    /// `Ok(None)` if the helper did not answer within 20 ms: its CPU was taken by something else.
    ///
    /// # Errors
    /// [`Error::Pin`] if a CPU has gone meanwhile.
    pub fn measure(&mut self) -> Result<Option<RoundTrip>, Error> {
        self.helper.measure_from(self.a)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::allowed;

    fn soon() -> Ticks {
        deadline_in(Duration::from_secs(5)).unwrap()
    }

    #[test]
    fn a_partner_that_never_answers_costs_only_the_deadline() {
        let table = Table::new();
        assert_eq!(table.ping(10, deadline_in(Duration::from_millis(2)).unwrap()), None);
        // And leaves no request behind that a later server would answer.
        assert_eq!(table.poll(Ticks(1_000_000)), 0);
        assert_eq!(table.pong(deadline_in(Duration::from_millis(2)).unwrap()), 0);
    }

    #[test]
    fn every_ping_is_answered_once_and_the_session_ends_for_both() {
        let table = Table::new();
        thread::scope(|scope| {
            let server = scope.spawn(|| table.pong(soon()));
            let round = table.ping(50, soon()).unwrap();
            assert_eq!(round.exchanges, 50);
            assert!(round.min_ns > 0.0 && round.min_ns <= round.median_ns);
            assert!(round.far_off <= 50);
            assert_eq!(server.join().unwrap(), 51);
        });
    }

    #[test]
    fn a_thread_with_other_work_serves_between() {
        let table = Table::new();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let mut answers = 0;
                while !done.load(Ordering::Relaxed) {
                    answers += table.poll(Ticks(u64::MAX / 4));
                    std::hint::black_box((0..100).sum::<u64>());
                }
                answers
            });
            for _ in 0..3 {
                assert_eq!(table.ping(20, soon()).unwrap().exchanges, 20);
            }
            done.store(true, Ordering::Relaxed);
            assert_eq!(server.join().unwrap(), 63);
        });
    }

    #[test]
    fn a_pair_measures_again_and_again_and_leaves_the_mask_alone() {
        let cpus = allowed().unwrap();
        let [a, b, ..] = cpus[..] else {
            println!("skipped: this process may use only one CPU");
            return;
        };
        let mut pair = Pair::new(a, b).unwrap();
        assert_eq!(pair.cpus(), (a, b));
        let rounds: Vec<_> = (0..50).filter_map(|_| pair.measure().unwrap()).collect();
        // On a busy machine the helper may miss its deadline now and then, but not always.
        assert!(!rounds.is_empty());
        assert!(rounds.iter().all(|round| round.exchanges <= EXCHANGES && round.min_ns > 0.0));
        drop(pair);
        assert_eq!(allowed().unwrap(), cpus);
    }

    #[test]
    fn pairs_that_cannot_exist_are_errors() {
        let cpu = allowed().unwrap()[0];
        assert!(matches!(Pair::new(cpu, cpu), Err(Error::SameCpu { .. })));
        assert!(matches!(Pair::new(cpu, CpuId(1_000)), Err(Error::Pin { .. })));
        assert!(matches!(Pair::new(CpuId(1_000), cpu), Err(Error::Pin { .. })));
    }

    #[test]
    fn slow_exchanges_are_counted_and_do_not_move_the_minimum() {
        let mut ticks = vec![100.0; 30];
        ticks.extend([90.0, 1_000.0, 5_000.0]);
        let round = RoundTrip::of(&ticks, 33, 1e6).unwrap();
        assert_eq!((round.min_ns, round.median_ns, round.exchanges, round.far_off), (90.0, 100.0, 33, 2));
        assert_eq!(RoundTrip::of(&ticks[..15], 33, 1e6), None);
    }
}
