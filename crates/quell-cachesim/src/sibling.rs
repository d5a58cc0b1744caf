//! The tenant of the core's other hyper-thread, who fills our L2 with lines of its own.
//!
//! An L2 is small and its set of lines changes within a fraction of a millisecond, so these insertions are
//! replayed in batches of about a microsecond: cheaper than asking a set at each of our accesses, and lines of
//! ours enter the LLC when they really leave L2.

use crate::config::Config;
use crate::machine::Machine;
use crate::rng::Rng;
use crate::sets::Victim;
use crate::traffic::{OUTSIDE, Path};
use crate::vcpu::Vcpu;

const STREAM_SIBLING: u64 = 2 << 32;
/// Length of a batch, in milliseconds.
const BATCH_MS: f64 = 0.001;
/// Insertions for which the simulator's own data is prefetched together.
const CHUNK: usize = 16;

#[derive(Clone, Debug)]
pub(crate) struct Sibling {
    path: Path,
    rng: Rng,
    /// Integrated insertions per set that have been replayed.
    seen: f64,
    sets: u32,
    /// Insertions per set after which nothing of ours is left.
    turnover: f64,
    batch: f64,
    protect: f64,
}

impl Sibling {
    /// The sibling of a configuration, if there is one; `stream` tells vCPUs apart.
    pub fn new(config: &Config, seed: u64, stream: u64) -> Option<Self> {
        let stream = STREAM_SIBLING + stream;
        let traffic = config.sibling.as_ref()?;
        let ticks_per_ms = config.timing.ticks_per_ms;
        Some(Self {
            path: Path::new(traffic, None, config.l2.sets, ticks_per_ms, Rng::new(seed, stream)),
            rng: Rng::new(seed, stream + 1),
            seen: 0.0,
            sets: config.l2.sets,
            turnover: f64::from(config.l2.ways),
            batch: BATCH_MS * ticks_per_ms,
            protect: traffic.reuse,
        })
    }

    /// Replays what is due at the vCPU's time and returns when to come back.
    pub fn run(&mut self, vcpu: &mut Vcpu, machine: &mut Machine) -> f64 {
        self.path.advance(vcpu.now);
        let due = self.path.at(vcpu.now)[OUTSIDE] - self.seen;
        self.seen += due;
        if due > self.turnover {
            self.clear(vcpu, machine);
        } else {
            let mut left = Rng::poisson(due * f64::from(self.sets), self.rng.unit()) as usize;
            while left > 0 {
                let n = left.min(CHUNK);
                self.insert(vcpu, machine, n);
                left -= n;
            }
        }
        vcpu.now + self.batch
    }

    /// Inserts `n` lines, at most [`CHUNK`], into random sets.
    fn insert(&mut self, vcpu: &mut Vcpu, machine: &mut Machine, n: usize) {
        let mut sets = [0; CHUNK];
        for set in &mut sets[..n] {
            *set = self.rng.below(self.sets) as usize;
            vcpu.expect_victim(machine, *set);
        }
        for &set in &sets[..n] {
            let protect = self.protect > 0.0 && self.rng.unit() < self.protect;
            let l2 = &mut machine.cores[vcpu.core].l2;
            let all = l2.all;
            let gone = l2.fill_foreign(set, all, protect, &mut self.rng);
            if gone != 0 {
                let way = gone.trailing_zeros();
                let victim = Victim { tag: l2.tag(set, way), reused: l2.reused(set, way) };
                vcpu.leave_l2(machine, victim);
            }
        }
    }

    /// Everything of ours leaves L2.
    fn clear(&mut self, vcpu: &mut Vcpu, machine: &mut Machine) {
        for set in 0..self.sets as usize {
            let l2 = &mut machine.cores[vcpu.core].l2;
            let state = l2.replacement_state(set);
            let mut gone = l2.reset_foreign(set, state);
            while gone != 0 {
                let way = gone.trailing_zeros();
                gone &= gone - 1;
                let l2 = &machine.cores[vcpu.core].l2;
                let victim = Victim { tag: l2.tag(set, way), reused: l2.reused(set, way) };
                vcpu.leave_l2(machine, victim);
            }
        }
    }

    /// Goes through a sleep that ends at `wake`: if L2 turns over in it, our lines enter the LLC then, not
    /// when the vCPU wakes.
    pub fn rest_until(&mut self, vcpu: &mut Vcpu, machine: &mut Machine, wake: f64) {
        self.path.advance(vcpu.now);
        while self.path.cell_end() < wake {
            let end = self.path.cell_end();
            let turned = self.path.at(end)[OUTSIDE] - self.seen;
            self.path.next_cell();
            if turned > self.turnover {
                vcpu.now = end;
                machine.advance(vcpu.llc, end);
                self.clear(vcpu, machine);
                self.path.advance(wake);
                self.seen = self.path.at(wake)[OUTSIDE];
                return;
            }
        }
    }
}
