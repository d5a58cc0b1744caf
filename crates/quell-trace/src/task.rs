//! One call of the function asked for, while it runs: its stack, and its time off the CPU.

use crate::attribution::{NameId, Names, OffKind, Tally};
use crate::class::{Class, class_below};
use crate::line::Duration;

/// Deeper stacks are not believed.
const MAX_FRAMES: usize = 600;
/// Times off the CPU come from stamps in microseconds: each of their two ends may be off by that.
const STAMP_NS: u64 = 1_000;

/// Why a call cannot be attributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Problem {
    /// Lost events.
    Lost,
    /// A return without its entry, or an entry without its return.
    Broken,
    /// It came back to a CPU that it never left, or left twice.
    Switches,
    /// The parts are longer than the whole.
    TooLong,
    /// Neither durations nor times are printed.
    NoDurations,
    /// The trace ended first.
    Unfinished,
}

impl Problem {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Lost => "events were lost during the call",
            Self::Broken => "an entry or a return of a function is missing",
            Self::Switches => "a context switch is missing",
            Self::TooLong => "its parts take longer than the call (recorded with nosleep-time?)",
            Self::NoDurations => "neither durations nor absolute times are printed",
            Self::Unfinished => "the trace ends before the call does",
        }
    }
}

/// A stretch of time off the CPU.
#[derive(Clone, Copy, Debug)]
struct Piece {
    kind: OffKind,
    who: NameId,
    nanos: u64,
    count: u64,
}

/// A function that has not returned.
#[derive(Debug)]
struct Frame {
    function: NameId,
    class: Class,
    depth: usize,
    entered: Option<u64>,
    /// Time in the functions that it called.
    children: u64,
    calls: u64,
    /// Time in functions whose depth leaves a step out: an interrupt came while the tracer was about to record an entry,
    /// or had just recorded a return. In the first case it is part of the function that follows.
    orphans: u64,
    /// Orphans that came right before this function.
    adopted: u64,
    pieces: Vec<Piece>,
    /// It was off the CPU for a time that the trace does not tell.
    untimed: Option<OffKind>,
}

impl Frame {
    /// Whether the orphans before this function are part of its duration: that then began before its first line,
    /// or, without times, at least has room for them.
    fn adopts(&self, now: Option<u64>, printed: Option<Duration>) -> bool {
        let Some(printed) = printed else { return false };
        let off: u64 = self.pieces.iter().map(|piece| piece.nanos).sum();
        match now.zip(self.entered) {
            Some((now, entered)) => {
                printed.nanos > now.saturating_sub(entered) + (self.adopted / 2).min(20 * STAMP_NS)
            }
            None => self.children + off + self.adopted <= printed.nanos,
        }
    }
}

/// Off the CPU since then.
#[derive(Debug)]
pub(crate) struct Away {
    since: Option<u64>,
    /// On whose queue it waits.
    pub(crate) cpu: Option<u32>,
    pub(crate) kind: OffKind,
    pieces: Vec<Piece>,
}

/// A call that has not returned.
#[derive(Debug)]
pub(crate) struct OpenCall {
    pub(crate) label: String,
    pub(crate) comm: String,
    pub(crate) pid: Option<u32>,
    pub(crate) cpu: Option<u32>,
    pub(crate) start: Option<u64>,
    pub(crate) problem: Option<Problem>,
    pub(crate) away: Option<Away>,
    frames: Vec<Frame>,
    tally: Tally,
    /// Some of its time is unaccounted, because switches have no times.
    pub(crate) untimed: bool,
    /// Functions whose printed duration is too short for what is printed within them.
    pub(crate) restamped: u64,
    /// How long the call took, once it has returned.
    took: u64,
}

/// What the trace as a whole shows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shown {
    /// `sched_switch` events.
    pub(crate) switches: bool,
}

impl OpenCall {
    pub(crate) fn new(
        label: String,
        comm: String,
        pid: Option<u32>,
        cpu: Option<u32>,
        start: Option<u64>,
    ) -> Self {
        Self {
            label,
            comm,
            pid,
            cpu,
            start,
            problem: None,
            away: None,
            frames: Vec::new(),
            tally: Tally::default(),
            untimed: false,
            restamped: 0,
            took: 0,
        }
    }

    /// Notes the first problem; the later ones may follow from it.
    pub(crate) fn fail(&mut self, problem: Problem) {
        self.problem.get_or_insert(problem);
    }

    /// The task shows a sign of life while it is thought to be off the CPU: the last steps before, which the
    /// event precedes.
    fn still_here(&mut self, until: Option<u64>) {
        if let Some(Away { since: Some(since), .. }) = &mut self.away
            && let Some(until) = until
        {
            *since = until.max(*since);
        }
    }

    pub(crate) fn enter(&mut self, names: &Names, function: NameId, depth: usize, now: Option<u64>) {
        self.still_here(now);
        self.unwind(depth);
        if self.frames.len() >= MAX_FRAMES {
            return self.fail(Problem::Broken);
        }
        let class = self.class(names, function);
        let adopted = self.adopt(depth);
        self.frames.push(Frame {
            function,
            class,
            depth,
            entered: now,
            children: 0,
            calls: 0,
            orphans: 0,
            adopted,
            pieces: Vec::new(),
            untimed: None,
        });
    }

    /// The orphans that may be part of the function that is entered at this depth.
    fn adopt(&mut self, depth: usize) -> u64 {
        let caller = self.frames.last_mut().filter(|caller| caller.depth + 1 == depth);
        caller.map_or(0, |caller| std::mem::take(&mut caller.orphans))
    }

    /// A function at this depth has returned, and took that long with all that it called.
    fn returned(&mut self, depth: usize, nanos: u64) {
        if let Some(caller) = self.frames.last_mut() {
            let sum = if depth > caller.depth + 1 { &mut caller.orphans } else { &mut caller.children };
            *sum += nanos;
            caller.calls += 1;
        }
    }

    fn class(&self, names: &Names, function: NameId) -> Class {
        let name = names.get(function);
        let Some(caller) = self.frames.last() else { return name.class.unwrap_or(Class::Rest) };
        let own = name.class.or_else(|| class_below(&name.text, &names.get(caller.function).text));
        caller.class.within(own)
    }

    /// Removes the frames whose returns must have been lost, as something happens at their depth.
    fn unwind(&mut self, depth: usize) {
        while self.frames.len() > 1 && self.frames.last().is_some_and(|frame| frame.depth >= depth) {
            self.frames.pop();
            self.fail(Problem::Broken);
        }
    }

    /// A function without any that it called.
    pub(crate) fn leaf(
        &mut self,
        names: &Names,
        function: NameId,
        depth: usize,
        now: Option<u64>,
        took: Option<Duration>,
    ) {
        let nanos = took.map_or(0, |took| took.nanos);
        self.still_here(now.map(|now| now + nanos));
        self.unwind(depth);
        if took.is_none() {
            self.fail(Problem::NoDurations);
        }
        let class = self.class(names, function);
        let orphans = self.adopt(depth);
        let adopted = if orphans <= nanos { orphans } else { 0 };
        self.tally.add_self(function, class, nanos - adopted);
        self.returned(depth, nanos + orphans - adopted);
        if self.frames.is_empty() {
            self.took = nanos;
        }
    }

    /// A function returns. `true` if that was the call itself.
    pub(crate) fn exit(
        &mut self,
        names: &Names,
        shown: Shown,
        (function, depth): (Option<NameId>, usize),
        now: Option<u64>,
        took: Option<Duration>,
    ) -> bool {
        self.still_here(now);
        while self.frames.len() > 1 && self.frames.last().is_some_and(|frame| frame.depth > depth) {
            self.frames.pop();
            self.fail(Problem::Broken);
        }
        let Some(frame) = self.frames.last() else { return true };
        if frame.depth < depth {
            self.fail(Problem::Broken);
            return false;
        }
        if function.is_some_and(|function| function != frame.function) {
            self.fail(Problem::Broken);
        }
        let Some(mut frame) = self.frames.pop() else { return true };
        frame.children += frame.orphans;
        let mut apart = 0;
        if frame.adopts(now, took) {
            frame.children += frame.adopted;
        } else {
            apart = frame.adopted;
        }
        let depth = frame.depth;
        let whole = self.close(names, shown, frame, now, took);
        self.returned(depth, whole + apart);
        self.frames.is_empty()
    }

    /// Divides a function's time, and returns how long it took.
    fn close(
        &mut self,
        names: &Names,
        shown: Shown,
        mut frame: Frame,
        now: Option<u64>,
        took: Option<Duration>,
    ) -> u64 {
        let mut off: u64 = frame.pieces.iter().map(|piece| piece.nanos).sum();
        let Some(took) = self.choose(&frame, frame.children + off, now, took) else { return frame.children };
        let mut excess = (frame.children + off).saturating_sub(took.nanos);
        while let Some(piece) = frame
            .pieces
            .iter_mut()
            .filter(|piece| piece.nanos > 0 && excess > 0)
            .max_by_key(|piece| piece.nanos)
        {
            let part = excess.min(piece.nanos);
            piece.nanos -= part;
            (excess, off) = (excess - part, off - part);
        }
        for piece in &frame.pieces {
            self.tally.add_off(frame.class, piece.kind, piece.who, piece.nanos, piece.count);
        }
        let own = took.nanos.saturating_sub(frame.children + off);
        self.add_own(names, shown, &frame, own);
        if self.frames.is_empty() {
            self.took = took.nanos;
        }
        took.nanos.max(frame.children + off)
    }

    /// The duration that is printed; or, where the function's parts do not fit into that, the one that follows from
    /// the times of its first and its last line: what comes while the tracer is about to record a return is printed
    /// as part of the function, but not part of its duration.
    fn choose(
        &mut self,
        frame: &Frame,
        parts: u64,
        now: Option<u64>,
        printed: Option<Duration>,
    ) -> Option<Duration> {
        let stamped = now.zip(frame.entered).map(|(now, entered)| Duration {
            nanos: now.saturating_sub(entered),
            step: STAMP_NS * (1 + frame.calls),
        });
        let rounding = frame.pieces.iter().map(|piece| 2 * STAMP_NS * piece.count).sum::<u64>();
        let fits = |took: &Duration| parts <= took.nanos + took.step + rounding;
        if let Some(printed) = printed.filter(fits) {
            return Some(printed);
        }
        let chosen = stamped.filter(fits);
        if chosen.is_some() {
            self.restamped += u64::from(printed.is_some());
            return chosen;
        }
        let any = printed.or(stamped);
        self.fail(if any.is_some() { Problem::TooLong } else { Problem::NoDurations });
        any
    }

    fn add_own(&mut self, names: &Names, shown: Shown, frame: &Frame, own: u64) {
        let name = names.get(frame.function);
        let hidden = (name.sleeps && !shown.switches).then_some(OffKind::Unknown);
        match frame.untimed.or(hidden) {
            None => self.tally.add_self(frame.function, frame.class, own),
            Some(kind) => {
                self.tally.add_self(frame.function, frame.class, 0);
                if kind == OffKind::Unknown || (kind == OffKind::Blocked && frame.class.is_wait()) {
                    self.tally.add_off(frame.class, kind, frame.function, own, 1);
                } else {
                    self.tally.unaccounted += own;
                    self.untimed = true;
                }
            }
        }
    }

    /// The task gives up its CPU, or loses it.
    pub(crate) fn leave(&mut self, cpu: Option<u32>, preempted: bool, now: Option<u64>) {
        if self.away.is_some() {
            return self.fail(Problem::Switches);
        }
        let kind = if preempted { OffKind::Runnable } else { OffKind::Blocked };
        self.away = Some(Away { since: now, cpu, kind, pieces: Vec::new() });
    }

    /// Something changes on the CPU where the task waits: `who` ran there until `now`.
    pub(crate) fn pass(&mut self, now: Option<u64>, who: NameId, idle: bool) {
        let Some(away) = &mut self.away else { return };
        let (Some(since), Some(now)) = (away.since, now) else { return };
        let nanos = now.saturating_sub(since);
        let kind = if idle && away.kind == OffKind::Runnable { OffKind::Waking } else { away.kind };
        match away.pieces.iter_mut().find(|piece| (piece.kind, piece.who) == (kind, who)) {
            Some(piece) => {
                piece.nanos += nanos;
                piece.count += 1;
            }
            None => away.pieces.push(Piece { kind, who, nanos, count: 1 }),
        }
        away.since = Some(now.max(since));
    }

    /// The task is woken, and waits for a CPU from here on.
    pub(crate) fn wake(&mut self, target: Option<u32>) {
        if let Some(away) = &mut self.away {
            away.kind = OffKind::Runnable;
            away.cpu = target.or(away.cpu);
        }
    }

    /// The task runs again.
    pub(crate) fn come_back(&mut self, cpu: Option<u32>) {
        self.cpu = cpu;
        let Some(away) = self.away.take() else { return self.fail(Problem::Switches) };
        let Some(frame) = self.frames.last_mut() else { return };
        if away.since.is_none() {
            frame.untimed = Some(away.kind);
        }
        frame.pieces.extend(away.pieces);
    }

    /// The sums of the call, and why they do not count, if they do not.
    pub(crate) fn finish(mut self) -> (Tally, u64, Option<Problem>) {
        let excess = self.tally.sum().saturating_sub(self.took);
        self.tally.trim(excess);
        if self.tally.sum() > self.took {
            self.fail(Problem::TooLong);
        }
        self.tally.unaccounted += self.took.saturating_sub(self.tally.sum());
        (self.tally, self.took, self.problem)
    }
}
