//! One vCPU: what it accesses, its clock, and what interrupts and moves it.

use crate::config::{Config, Inclusion};
use crate::history::History;
use crate::machine::Machine;
use crate::rng::Rng;
use crate::sets::Victim;
use crate::sibling::Sibling;
use crate::tlb::Tlb;

/// Where a load found its line.
pub(crate) const IN_L1: usize = 0;
pub(crate) const IN_L2: usize = 1;
pub(crate) const IN_LLC: usize = 2;
pub(crate) const IN_MEMORY: usize = 3;

const STREAM_SCHEDULE: u64 = 2 << 32;

/// One vCPU; its caches are in [`Machine::cores`].
#[derive(Clone, Debug)]
pub(crate) struct Vcpu {
    /// Index of its core.
    pub core: usize,
    sibling: Option<Sibling>,
    pub tlb: Tlb,
    /// The LLC it is in.
    pub llc: usize,
    /// Time in ticks, not rounded to the timer's step.
    pub now: f64,
    next_event: f64,
    next_pause: Vec<f64>,
    /// Units of hazard until the next move, valid from `moved_at` on.
    until_move: f64,
    hazard_from: f64,
    schedule: Rng,
    pub slept: f64,
    pub switches: u64,
    /// Longest pause since the caller last reset it, in ticks.
    pub longest_pause: f64,
    pub history: History,
    last_load: u32,
    last_step: i64,
    /// Time that prefetches would add to overlapping loads, in ticks; the caller takes it.
    pub prefetch_ticks: f64,
}

impl Vcpu {
    /// The vCPU number `core` of a machine.
    pub fn new(config: &Config, seed: u64, core: usize) -> Self {
        let stream = (core as u64) << 40;
        let mut vcpu = Self {
            core,
            sibling: Sibling::new(config, seed, stream),
            tlb: Tlb::new(config.timing.tlb_entries, config.backing),
            llc: 0,
            now: 0.0,
            next_event: 0.0,
            next_pause: vec![0.0; config.pauses.len()],
            until_move: 0.0,
            hazard_from: 0.0,
            schedule: Rng::new(seed, STREAM_SCHEDULE + stream),
            slept: 0.0,
            switches: 0,
            longest_pause: 0.0,
            history: History::default(),
            last_load: 0,
            last_step: 0,
            prefetch_ticks: 0.0,
        };
        vcpu.until_move = vcpu.schedule.exponential();
        vcpu.draw_pauses(config);
        vcpu
    }

    /// Loads a line, moves it between the levels, and returns the level that had it.
    #[inline]
    pub fn access(&mut self, machine: &mut Machine, tag: u32) -> usize {
        let l2_set = machine.geometry.l2_set(tag);
        if machine.config.llc.inclusion == Inclusion::Inclusive {
            let set = machine.geometry.llc_set(tag);
            self.settle_llc(machine, set);
        } else if !machine.filters.is_empty() {
            machine.settle_filter(self.llc, machine.geometry.llc_set(tag), self.now);
        }
        let core = &mut machine.cores[self.core];
        if core.l1.hit(tag) {
            return IN_L1;
        }
        let level = if let Some(way) = core.l2.find(l2_set, tag) {
            core.l2.touch(l2_set, way);
            IN_L2
        } else {
            let level = self.fetch(machine, tag, l2_set);
            self.prefetch_around(machine, tag);
            level
        };
        machine.cores[self.core].l1.fill(tag);
        level
    }

    /// Gets the simulator's own data ready for an access that comes soon. Changes nothing.
    #[inline]
    pub fn expect(&self, machine: &Machine, tag: u32) {
        let set = machine.geometry.llc_set(tag);
        machine.llcs[self.llc].sets.hint(set);
        if let Some(filter) = machine.filters.get(self.llc) {
            filter.sets.hint(set);
        }
        self.expect_victim(machine, machine.geometry.l2_set(tag));
    }

    /// The same for a fill into an L2 set.
    #[inline]
    pub fn expect_victim(&self, machine: &Machine, l2_set: usize) {
        if let Some(victim) = machine.cores[self.core].l2.probable_victim(l2_set) {
            machine.llcs[self.llc].sets.hint(machine.geometry.llc_set(victim));
        }
    }

    /// Follows the stride of a load stream and fetches ahead.
    #[inline]
    pub fn follow_stride(&mut self, machine: &mut Machine, tag: u32) {
        if !machine.config.prefetch.stride {
            return;
        }
        let step = i64::from(tag) - i64::from(self.last_load);
        let ahead = i64::from(tag) + step;
        if step == self.last_step && step != 0 && ahead >> 6 == i64::from(tag) >> 6 {
            self.prefetch(machine, ahead as u32);
        }
        self.last_step = step;
        self.last_load = tag;
    }

    fn prefetch_around(&mut self, machine: &mut Machine, tag: u32) {
        let prefetch = machine.config.prefetch;
        if prefetch.buddy {
            self.prefetch(machine, tag ^ 1);
        }
        for ahead in 1..=prefetch.next {
            if (tag + ahead) >> 6 == tag >> 6 && !(prefetch.buddy && tag + ahead == tag ^ 1) {
                self.prefetch(machine, tag + ahead);
            }
        }
    }

    fn prefetch(&mut self, machine: &mut Machine, tag: u32) {
        let set = machine.geometry.l2_set(tag);
        if machine.cores[self.core].l2.find(set, tag).is_none() {
            let level = self.fetch(machine, tag, set);
            self.prefetch_ticks += machine.config.timing.overlapped[level];
        }
    }

    /// Brings a line that L2 lacks into L2.
    fn fetch(&mut self, machine: &mut Machine, tag: u32, l2_set: usize) -> usize {
        let set = machine.geometry.llc_set(tag);
        self.settle_llc(machine, set);
        let inclusion = machine.config.llc.inclusion;
        let filtered = !machine.filters.is_empty();
        let sets = &mut machine.llcs[self.llc].sets;
        let found = sets.find(set, tag);
        let mut level = if found.is_some() { IN_LLC } else { IN_MEMORY };
        let mut sole = true;
        match (found, inclusion) {
            (Some(way), Inclusion::Exclusive) => {
                sets.remove(set, way);
            }
            (Some(way), Inclusion::NonInclusive) if filtered && !sets.reused(set, way) => {
                sets.remove(set, way);
            }
            (Some(way), _) => {
                sets.touch(set, way);
                sole = false;
            }
            (None, Inclusion::Inclusive) => {
                let victim = sets.fill(set, machine.our_ways, tag, false, false, &mut machine.rng);
                if let Some(victim) = victim {
                    machine.drop_private(victim.tag);
                }
            }
            (None, Inclusion::NonInclusive) if machine.held(tag) => {
                // Another core hands it over, and the LLC keeps it for both.
                machine.untrack(self.llc, set, tag);
                machine.fill_llc(self.llc, set, tag, false, true);
                level = IN_LLC;
                sole = false;
            }
            (None, _) if machine.held(tag) => level = IN_LLC,
            (None, _) => {}
        }
        if filtered && sole {
            machine.track(self.llc, set, tag, self.now);
        }
        let core = &mut machine.cores[self.core];
        let all = core.l2.all;
        let victim = core.l2.fill(l2_set, all, tag, false, found.is_some(), &mut machine.rng);
        machine.take_hold(self.core, tag);
        if let Some(victim) = victim {
            self.leave_l2(machine, victim);
        }
        level
    }

    /// A line has left L2: L1 must not keep it, and a victim cache takes it.
    pub fn leave_l2(&mut self, machine: &mut Machine, victim: Victim) {
        machine.leave_l2(self.core, self.llc, victim, self.now);
    }

    /// Applies foreign traffic to a set of the current LLC.
    #[inline]
    pub fn settle_llc(&mut self, machine: &mut Machine, set: usize) {
        machine.settle_llc(self.llc, set, self.now);
    }

    /// Lets `ticks` of running pass, with whatever interrupts them.
    #[inline]
    pub fn advance(&mut self, machine: &mut Machine, ticks: f64) {
        self.now += ticks;
        if self.now >= self.next_event {
            self.events(machine);
        }
    }

    /// Comes back at `now` after waiting for work. Pauses during the wait went unnoticed.
    pub fn resume(&mut self, machine: &mut Machine, now: f64) {
        self.now = self.now.max(now);
        if self.now >= self.next_event {
            for (next, pause) in self.next_pause.iter_mut().zip(&machine.config.pauses) {
                if *next < self.now {
                    *next = self.now
                        + self.schedule.exponential() / pause.per_ms * machine.config.timing.ticks_per_ms;
                }
            }
            self.pass_hazard(machine, false);
            self.sync(machine);
        }
    }

    /// Runs until `until` and whatever is still pending then.
    pub fn run_until(&mut self, machine: &mut Machine, until: f64) {
        while self.now < until {
            self.now = self.next_event.clamp(self.now, until);
            self.events(machine);
        }
    }

    #[cold]
    fn events(&mut self, machine: &mut Machine) {
        let per_ms = machine.config.timing.ticks_per_ms;
        for (i, pause) in machine.config.pauses.iter().enumerate() {
            if self.next_pause[i] <= self.now {
                let length = self.schedule.log_normal(pause.median_ms, pause.log_sd) * per_ms;
                let switched = pause.involuntary > 0.0 && self.schedule.unit() < pause.involuntary;
                self.switches += u64::from(switched);
                self.longest_pause = self.longest_pause.max(length);
                self.history.paused(self.now / per_ms, length / per_ms);
                self.now += length;
                self.next_pause[i] = self.now + self.schedule.exponential() / pause.per_ms * per_ms;
            }
        }
        self.pass_hazard(machine, false);
        self.sync(machine);
    }

    /// Brings the traffic paths up to now and finds the next event.
    pub fn sync(&mut self, machine: &mut Machine) {
        machine.advance(self.llc, self.now);
        let mut next = machine.llcs[self.llc].path.cell_end();
        if let Some(mut sibling) = self.sibling.take() {
            next = next.min(sibling.run(self, machine));
            self.sibling = Some(sibling);
        }
        self.next_event = self.next_pause.iter().fold(next, |next, &pause| next.min(pause));
    }

    /// Uses up the hazard of being moved until now, and moves as often as it runs out.
    fn pass_hazard(&mut self, machine: &mut Machine, asleep: bool) {
        let Some(placement) = machine.config.placement.filter(|_| machine.llcs.len() > 1) else { return };
        let per_ms = machine.config.timing.ticks_per_ms;
        let dwell = placement.dwell_ms * per_ms * if asleep { 1.0 } else { placement.calmer_running };
        loop {
            let spent = (self.now - self.hazard_from) / dwell;
            if spent < self.until_move {
                self.until_move -= spent;
                self.hazard_from = self.now;
                return;
            }
            self.hazard_from += self.until_move * dwell;
            self.until_move = self.schedule.exponential();
            self.move_away(machine, self.hazard_from / per_ms);
        }
    }

    /// Moves to another LLC: nothing of ours is in the new core's private caches.
    fn move_away(&mut self, machine: &mut Machine, at_ms: f64) {
        let from = self.llc;
        let next = self.schedule.below(machine.llcs.len() as u32 - 1) as usize;
        self.llc = next + usize::from(next >= self.llc);
        self.history.moved(at_ms, self.llc);
        machine.clear_private(self.core, from);
        self.tlb.clear();
    }

    /// Gives the CPU up until `deadline`, and a little longer.
    pub fn sleep_until(&mut self, machine: &mut Machine, deadline: f64) {
        if deadline <= self.now {
            return;
        }
        self.pass_hazard(machine, false);
        let per_ms = machine.config.timing.ticks_per_ms;
        let [median, log_sd] = machine.config.oversleep_ms;
        let late = if median > 0.0 { self.schedule.log_normal(median, log_sd) * per_ms } else { 0.0 };
        self.slept += deadline + late - self.now;
        let wake = deadline + late;
        if let Some(mut sibling) = self.sibling.take() {
            sibling.rest_until(self, machine, wake);
            self.sibling = Some(sibling);
        }
        self.now = wake;
        self.pass_hazard(machine, true);
        self.draw_pauses(&machine.config);
        self.sync(machine);
    }

    fn draw_pauses(&mut self, config: &Config) {
        for (next, pause) in self.next_pause.iter_mut().zip(&config.pauses) {
            *next = self.now + self.schedule.exponential() / pause.per_ms * config.timing.ticks_per_ms;
        }
    }
}
