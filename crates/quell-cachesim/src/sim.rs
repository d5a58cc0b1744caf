//! The simulation and one vCPU's view of it.

use quell_core::memory::{LINES_PER_PAGE, OwnLoad};
use quell_core::{Crew, Line, Memory, Sample, Ticks};

use crate::config::{Config, ConfigError};
use crate::history::History;
use crate::machine::Machine;
use crate::rng::{Rng, normal_quantile};
use crate::shared::Evictions;
use crate::vcpu::{IN_LLC, Vcpu};

/// Most pages of all arenas together (64 GiB), so that a line's number fits.
const MAX_PAGES: u32 = 1 << 24;
const STREAM_NOISE: u64 = 4 << 32;
/// Size of the table from which latency noise is drawn, a power of two.
const NOISE_TABLE: usize = 1024;
/// No load takes less than this share of its level's latency.
const FASTEST: f64 = 0.75;
/// How many accesses ahead the simulator's own data is prefetched.
const LOOKAHEAD: usize = 10;

/// Where a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In L1 and, as that is inclusive, in L2.
    L1,
    /// In L2.
    L2,
    /// In the LLC with this index, not in L1 or L2.
    Llc(usize),
    /// In no cache.
    Memory,
}

/// A simulated machine. The same configuration and seed give the same run everywhere.
#[derive(Clone, Debug)]
pub struct Sim {
    machine: Machine,
    vcpus: Vec<Vcpu>,
    noise_rng: Rng,
    noise: Vec<f32>,
}

impl Sim {
    /// Builds the machine; its caches are full of other people's lines if there is any traffic.
    ///
    /// # Errors
    /// If a value of the configuration makes no sense.
    pub fn new(config: Config, seed: u64) -> Result<Self, ConfigError> {
        Self::with_vcpus(config, seed, 1)
    }

    /// The same with several vCPUs, up to 16, each on a core of its own. They start in the first LLC.
    ///
    /// # Errors
    /// If a value of the configuration makes no sense.
    pub fn with_vcpus(config: Config, seed: u64, vcpus: u32) -> Result<Self, ConfigError> {
        let machine = Machine::new(config, seed, vcpus)?;
        let vcpus = (0..vcpus as usize).map(|core| Vcpu::new(&machine.config, seed, core)).collect();
        let noise = (0..NOISE_TABLE).map(|i| normal_quantile((i as f64 + 0.5) / NOISE_TABLE as f64) as f32);
        Ok(Self { vcpus, machine, noise_rng: Rng::new(seed, STREAM_NOISE), noise: noise.collect() })
    }

    /// Maps an arena of `pages` pages and gives access to it on the first vCPU. Nothing of it is cached yet.
    ///
    /// # Errors
    /// If all arenas together exceed 64 GiB.
    pub fn memory(&mut self, pages: u32) -> Result<SimMemory<'_>, ConfigError> {
        let first_line = self.map(pages)?;
        Ok(SimMemory { sim: self, first_line, pages, vcpu: 0, helper: None })
    }

    /// Maps an arena of `pages` pages for all vCPUs, in pairs if `pairs` (a vCPU left over has no helper).
    ///
    /// # Errors
    /// If all arenas together exceed 64 GiB.
    pub fn crew(&mut self, pages: u32, pairs: bool) -> Result<SimCrew<'_>, ConfigError> {
        let first_line = self.map(pages)?;
        Ok(SimCrew { sim: self, first_line, pages, per_member: if pairs { 2 } else { 1 } })
    }

    /// Maps an arena and returns the number of its first line.
    fn map(&mut self, pages: u32) -> Result<u32, ConfigError> {
        let used = self.machine.geometry.pages();
        if pages > MAX_PAGES - used.min(MAX_PAGES - 1024) - 512 {
            return Err(ConfigError::new("the arena", "within 64 GiB of all arenas", f64::from(pages)));
        }
        Ok(self.machine.map(pages) * LINES_PER_PAGE)
    }

    /// The machine's configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.machine.config
    }
}

/// An arena as one vCPU sees it.
#[derive(Debug)]
pub struct SimMemory<'a> {
    sim: &'a mut Sim,
    first_line: u32,
    pages: u32,
    vcpu: usize,
    helper: Option<usize>,
}

/// An arena as all vCPUs see it. Their clocks run side by side: a job is done by the member that is free first.
#[derive(Debug)]
pub struct SimCrew<'a> {
    sim: &'a mut Sim,
    first_line: u32,
    pages: u32,
    per_member: usize,
}

impl SimCrew<'_> {
    fn vcpus_of(&self, member: usize) -> std::ops::Range<usize> {
        let first = member * self.per_member;
        first..(first + self.per_member).min(self.sim.vcpus.len())
    }

    /// Lets everybody wait for the last.
    fn meet(&mut self) {
        let latest = self.sim.vcpus.iter().map(|vcpu| vcpu.now).fold(0.0, f64::max);
        for vcpu in &mut self.sim.vcpus {
            vcpu.now = latest;
        }
    }

    /// One of the members, for looking at what no measurement can see.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn member(&mut self, member: usize) -> SimMemory<'_> {
        let vcpus = self.vcpus_of(member);
        let Sim { machine, vcpus: all, .. } = &mut *self.sim;
        // Another vCPU may have looked at a later time.
        all[vcpus.start].sync(machine);
        SimMemory {
            sim: self.sim,
            first_line: self.first_line,
            pages: self.pages,
            vcpu: vcpus.start,
            helper: (vcpus.len() > 1).then_some(vcpus.start + 1),
        }
    }
}

impl Crew for SimCrew<'_> {
    fn members(&self) -> usize {
        self.sim.vcpus.len().div_ceil(self.per_member)
    }

    fn run<J: Send, R: Send>(
        &mut self,
        jobs: Vec<J>,
        work: &(dyn Fn(&mut &mut dyn Memory, J) -> R + Sync),
    ) -> Vec<R> {
        self.meet();
        let results = jobs
            .into_iter()
            .map(|job| {
                let clock = |member: &usize| self.sim.vcpus[self.vcpus_of(*member).start].now;
                let free = (0..self.members()).min_by(|a, b| clock(a).total_cmp(&clock(b))).unwrap_or(0);
                let mut member = self.member(free);
                let mut memory: &mut dyn Memory = &mut member;
                work(&mut memory, job)
            })
            .collect();
        self.meet();
        results
    }
}

impl SimMemory<'_> {
    #[inline]
    fn tag(&self, line: Line) -> u32 {
        assert!(line.page() < self.pages, "{line:?} lies outside an arena of {} pages", self.pages);
        self.first_line + line.page() * LINES_PER_PAGE + line.slot()
    }

    /// Where a line is now. It moves nothing; arrivals that are due in its sets are drawn, as the next load
    /// of any line in those sets would do.
    pub fn place(&mut self, line: Line) -> Place {
        let tag = self.tag(line);
        let Sim { machine, vcpus, .. } = &mut *self.sim;
        let vcpu = &mut vcpus[self.vcpu];
        let (l2_set, llc_set) = (machine.geometry.l2_set(tag), machine.geometry.llc_set(tag));
        vcpu.settle_llc(machine, llc_set);
        if !machine.filters.is_empty() {
            machine.settle_filter(vcpu.llc, llc_set, vcpu.now);
        }
        let core = &machine.cores[vcpu.core];
        if core.l1.holds(tag) {
            Place::L1
        } else if core.l2.find(l2_set, tag).is_some() {
            Place::L2
        } else {
            // The current LLC first; a copy elsewhere is out of reach but exists.
            let order = std::iter::once(vcpu.llc).chain(0..machine.llcs.len());
            let holder = order.into_iter().find(|&i| machine.llcs[i].sets.find(llc_set, tag).is_some());
            holder.map_or(Place::Memory, Place::Llc)
        }
    }

    /// Number of copies of a line in all L2s and LLCs together.
    pub fn copies(&mut self, line: Line) -> usize {
        let tag = self.tag(line);
        let machine = &self.sim.machine;
        let (l2_set, llc_set) = (machine.geometry.l2_set(tag), machine.geometry.llc_set(tag));
        let private = machine.cores.iter().filter(|core| core.l2.find(l2_set, tag).is_some()).count();
        private + machine.llcs.iter().filter(|llc| llc.sets.find(llc_set, tag).is_some()).count()
    }

    /// Color of a page of the arena, below [`Config::colors`].
    #[must_use]
    pub fn color(&self, page: u32) -> u32 {
        self.sim.machine.geometry.color(self.first_line / LINES_PER_PAGE + page)
    }

    /// The L2 set of a line.
    #[must_use]
    pub fn l2_set(&self, line: Line) -> usize {
        self.sim.machine.geometry.l2_set(self.tag(line))
    }

    /// The LLC set of a line, counted over all slices.
    #[must_use]
    pub fn llc_set(&self, line: Line) -> usize {
        self.sim.machine.geometry.llc_set(self.tag(line))
    }

    /// The LLC slice of a line.
    #[must_use]
    pub fn slice(&self, line: Line) -> u32 {
        self.sim.machine.geometry.slice(self.tag(line))
    }

    /// Exact time, in milliseconds since the start of the run.
    #[must_use]
    pub fn now_ms(&self) -> f64 {
        self.sim.vcpus[self.vcpu].now / self.sim.machine.config.timing.ticks_per_ms
    }

    /// The LLC that the vCPU is in.
    #[must_use]
    pub fn llc(&self) -> usize {
        self.sim.vcpus[self.vcpu].llc
    }

    /// Whether our VM's load on the other vCPU (if any) is in the same LLC now.
    #[must_use]
    pub fn shares_llc_with_polluter(&self) -> bool {
        self.sim.machine.config.polluter.is_some_and(|polluter| polluter.llc == self.sim.vcpus[self.vcpu].llc)
    }

    /// Lines of ours that foreign traffic has evicted from the LLCs and that have been noticed.
    #[must_use]
    pub fn evictions(&self) -> Evictions {
        self.sim.machine.llcs.iter().fold(Evictions::default(), |sum, llc| Evictions {
            outside: sum.outside + llc.evictions.outside,
            own: sum.own + llc.evictions.own,
        })
    }

    /// Moves pages of the arena to other host memory, as a host does when it migrates or deduplicates memory.
    /// Nothing of them is cached afterwards.
    pub fn remap(&mut self, pages: &[u32]) {
        for &page in pages {
            assert!(page < self.pages, "page {page} lies outside an arena of {} pages", self.pages);
            let machine = &mut self.sim.machine;
            let first = self.first_line + page * LINES_PER_PAGE;
            for tag in first..first + LINES_PER_PAGE {
                machine.flush(tag);
            }
            machine.geometry.remap(first / LINES_PER_PAGE);
        }
    }

    /// Moves and pauses so far.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.sim.vcpus[self.vcpu].history
    }

    /// The machine's configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.sim.machine.config
    }

    #[inline]
    fn quantized(&self) -> u64 {
        let step = self.sim.machine.config.timing.step;
        ((self.sim.vcpus[self.vcpu].now / step).floor() * step) as u64
    }

    /// The first moment at which the timer shows at least `deadline`.
    fn shows(&self, deadline: Ticks) -> f64 {
        let step = self.sim.machine.config.timing.step;
        // A little later, so that rounding cannot put it before the step.
        ((deadline.0 as f64 / step).ceil() + 0.01) * step
    }

    /// Loads a line and returns what it costs: latency of its level (`dependent`), or its share of the
    /// bandwidth, with the translation.
    #[inline]
    fn load_one(&mut self, tag: u32, dependent: bool) -> f64 {
        let Sim { machine, vcpus, .. } = &mut *self.sim;
        let vcpu = &mut vcpus[self.vcpu];
        let missing = vcpu.tlb.misses(tag / LINES_PER_PAGE);
        let level = vcpu.access(machine, tag);
        vcpu.follow_stride(machine, tag);
        let prefetch = std::mem::take(&mut vcpu.prefetch_ticks);
        let timing = &machine.config.timing;
        let walk = if missing { timing.tlb_miss[usize::from(!dependent)] } else { 0.0 };
        if dependent { walk + self.noisy(level) } else { walk + timing.overlapped[level] + prefetch }
    }

    /// A dependent load's latency with noise and queueing.
    #[inline]
    fn noisy(&mut self, level: usize) -> f64 {
        let timing = &self.sim.machine.config.timing;
        let mut ticks = timing.latency[level];
        if level >= IN_LLC {
            let bits = self.sim.noise_rng.bits();
            let z = f64::from(self.sim.noise[bits as usize % NOISE_TABLE]);
            ticks *= (1.0 + timing.noise[level - IN_LLC] * z).max(FASTEST);
            // The bits above the table index decide about queueing.
            if ((bits >> 11) as f64) < timing.queue_probability * (1u64 << 53) as f64 {
                ticks += timing.queue_ticks * self.sim.noise_rng.exponential();
            }
        }
        ticks
    }

    /// A helper has idled until now.
    fn follow(&mut self, helper: usize) {
        let Sim { machine, vcpus, .. } = &mut *self.sim;
        let now = vcpus[self.vcpu].now;
        vcpus[helper].resume(machine, now);
    }

    #[inline]
    fn advance(&mut self, ticks: f64) {
        let Sim { machine, vcpus, .. } = &mut *self.sim;
        let vcpu = &mut vcpus[self.vcpu];
        vcpu.advance(machine, ticks);
    }
}

impl Memory for SimMemory<'_> {
    fn pages(&self) -> u32 {
        self.pages
    }

    fn ticks_per_ms(&self) -> f64 {
        self.sim.machine.config.timing.ticks_per_ms
    }

    fn now(&mut self) -> Ticks {
        Ticks(self.quantized())
    }

    fn load(&mut self, lines: &[Line]) {
        for (i, &line) in lines.iter().enumerate() {
            if let Some(&soon) = lines.get(i + LOOKAHEAD) {
                self.sim.vcpus[self.vcpu].expect(&self.sim.machine, self.tag(soon));
            }
            let tag = self.tag(line);
            let ticks = self.load_one(tag, false);
            self.advance(ticks);
        }
    }

    fn load_shared(&mut self, lines: &[Line]) {
        let Some(helper) = self.helper else { return self.load(lines) };
        let handover = self.sim.machine.config.timing.handover;
        self.advance(handover);
        self.follow(helper);
        for (i, &line) in lines.iter().enumerate() {
            if let Some(&soon) = lines.get(i + LOOKAHEAD) {
                self.sim.vcpus[self.vcpu].expect(&self.sim.machine, self.tag(soon));
            }
            let tag = self.tag(line);
            let ticks = self.load_one(tag, false);
            self.advance(ticks);
            let main = std::mem::replace(&mut self.vcpu, helper);
            let ticks = self.load_one(tag, false);
            self.advance(ticks);
            self.vcpu = main;
        }
        // Both work at the same time; the slower one is waited for.
        let later = self.sim.vcpus[helper].now - self.sim.vcpus[self.vcpu].now;
        self.advance(later.max(0.0));
    }

    fn has_helper(&self) -> bool {
        self.helper.is_some()
    }

    fn chase(&mut self, lines: &[Line]) -> Ticks {
        let start = self.quantized();
        for &line in lines {
            let tag = self.tag(line);
            let ticks = self.load_one(tag, true);
            self.advance(ticks);
        }
        Ticks(self.quantized() - start)
    }

    fn flush(&mut self, lines: &[Line]) {
        for &line in lines {
            let tag = self.tag(line);
            let Sim { machine, vcpus, .. } = &mut *self.sim;
            let vcpu = &mut vcpus[self.vcpu];
            vcpu.settle_llc(machine, machine.geometry.llc_set(tag));
            machine.flush(tag);
            let ticks = machine.config.timing.flush;
            self.advance(ticks);
        }
    }

    fn time(&mut self, lines: &[Line], out: &mut Vec<Sample>) {
        out.reserve(lines.len());
        for (i, &line) in lines.iter().enumerate() {
            if let Some(&soon) = lines.get(i + LOOKAHEAD) {
                self.sim.vcpus[self.vcpu].expect(&self.sim.machine, self.tag(soon));
                self.sim.vcpus[self.vcpu].expect(&self.sim.machine, self.tag(soon.far_neighbor()));
            }
            let tag = self.tag(line);
            let warm = self.tag(line.far_neighbor());
            let Sim { machine, vcpus, .. } = &mut *self.sim;
            let vcpu = &mut vcpus[self.vcpu];
            let missing = vcpu.tlb.misses(tag / LINES_PER_PAGE);
            let level = vcpu.access(machine, warm);
            let timing = &machine.config.timing;
            let walk = if missing { timing.tlb_miss[0] } else { 0.0 };
            let before = timing.latency[level] + walk + timing.between;
            self.advance(before);
            let start = self.quantized();
            let Sim { machine, vcpus, .. } = &mut *self.sim;
            let vcpu = &mut vcpus[self.vcpu];
            let level = vcpu.access(machine, tag);
            vcpu.follow_stride(machine, tag);
            vcpu.prefetch_ticks = 0.0;
            let overhead = machine.config.timing.overhead;
            let ticks = overhead + self.noisy(level);
            self.advance(ticks);
            let ticks = u32::try_from(self.quantized() - start).unwrap_or(u32::MAX);
            out.push(Sample { ticks, migrated: false });
        }
    }

    fn sleep_until(&mut self, deadline: Ticks) {
        let deadline = self.shows(deadline);
        let Sim { machine, vcpus, .. } = &mut *self.sim;
        let vcpu = &mut vcpus[self.vcpu];
        vcpu.sleep_until(machine, deadline);
    }

    fn spin_until(&mut self, deadline: Ticks) -> Ticks {
        let deadline = self.shows(deadline);
        let Sim { machine, vcpus, .. } = &mut *self.sim;
        let vcpu = &mut vcpus[self.vcpu];
        // Two readings of an undisturbed loop differ by one step at most.
        vcpu.longest_pause = machine.config.timing.step;
        vcpu.run_until(machine, deadline);
        Ticks(vcpu.longest_pause as u64)
    }

    fn cpu_ms(&mut self) -> f64 {
        (self.sim.vcpus[self.vcpu].now - self.sim.vcpus[self.vcpu].slept) / self.ticks_per_ms()
    }

    fn involuntary_switches(&mut self) -> u64 {
        self.sim.vcpus[self.vcpu].switches
    }

    fn own_load(&mut self) -> Option<OwnLoad> {
        let step_ms = self.sim.machine.config.load_step_ms;
        let now = self.now_ms();
        let busy = self.sim.machine.config.polluter.map_or(0.0, |polluter| polluter.busy_until(now));
        Some(OwnLoad { busy_ms: (busy / step_ms).floor() * step_ms, step_ms })
    }
}
