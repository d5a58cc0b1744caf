//! Follows a trace line by line: who runs, what is called, and what becomes of the calls asked for.

mod answer;

use std::collections::{BTreeMap, BTreeSet};

use crate::analysis::{Call, Lost, Options, Unreadable};
use crate::attribution::{NameId, Names, Sums, Tally};
use crate::class::{Class, base, class_of};
use crate::cpu::Cpus;
use crate::line::{Line, Record, Task, What};
use crate::sched::{Switch, Wakeup};
use crate::task::{OpenCall, Problem, Shown};

/// Event with which a program labels its next call, by writing `quell: LABEL` to `trace_marker`.
const LABEL_EVENT: &str = "quell";
/// Bounds of what a broken trace can make us keep.
const MAX_OPEN: usize = 4_096;
const MAX_LABELS: usize = 1_024;
const MAX_GROUPS: usize = 64;
const MAX_LOST: usize = 1_000;
/// Functions that an error message lists.
const EXAMPLES: usize = 8;

#[derive(Debug, Default)]
struct GroupState {
    calls: u64,
    min: u64,
    max: u64,
    incomplete: BTreeMap<Problem, u64>,
    tally: Tally,
    sums: Sums,
}

/// A task in maps: idle tasks share a thread ID, and without that only the CPU is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Task(u32),
    Idle(Option<u32>),
    Unknown(Option<u32>),
}

#[derive(Debug)]
pub(crate) struct Analyzer<'a> {
    options: &'a Options,
    names: Names,
    cpus: Cpus,
    open: BTreeMap<Key, OpenCall>,
    labels: BTreeMap<Key, String>,
    groups: Vec<(String, GroupState)>,
    slowest: Vec<(u64, Tally, Call)>,
    shown: Shown,
    call: Option<String>,
    lines: u64,
    records: u64,
    unreadable_lines: u64,
    first_unreadable: Option<Unreadable>,
    tracer: Option<String>,
    lost: Vec<Lost>,
    faster: u64,
    cut: u64,
    untimed: bool,
    restamped: u64,
    wakeups: bool,
    last_time: Option<u64>,
    events: BTreeMap<String, u64>,
    event_count: u64,
    /// Functions by how often they occur: the outermost, and all.
    outer: BTreeMap<NameId, u64>,
    all: BTreeMap<NameId, u64>,
    seen: BTreeSet<Class>,
    traced: Option<BTreeSet<Class>>,
}

impl<'a> Analyzer<'a> {
    pub(crate) fn new(options: &'a Options) -> Self {
        Self {
            options,
            names: Names::default(),
            cpus: Cpus::default(),
            open: BTreeMap::new(),
            labels: BTreeMap::new(),
            groups: Vec::new(),
            slowest: Vec::new(),
            shown: Shown::default(),
            call: None,
            lines: 0,
            records: 0,
            unreadable_lines: 0,
            first_unreadable: None,
            tracer: None,
            lost: Vec::new(),
            faster: 0,
            cut: 0,
            untimed: false,
            restamped: 0,
            wakeups: false,
            last_time: None,
            events: BTreeMap::new(),
            event_count: 0,
            outer: BTreeMap::new(),
            all: BTreeMap::new(),
            seen: BTreeSet::new(),
            traced: None,
        }
    }

    /// A line that was not understood.
    pub(crate) fn unreadable(&mut self, line: &str) {
        self.lines += 1;
        self.unreadable_lines += 1;
        if self.first_unreadable.is_none() {
            let text = line.trim().chars().take(80).collect();
            self.first_unreadable = Some(Unreadable { line: self.lines, text });
        }
    }

    /// The next line.
    pub(crate) fn line(&mut self, line: Line<'_>) {
        self.lines += 1;
        match line {
            Line::Record(record) => self.record(&record),
            Line::NowRunning { cpu, from, task } => {
                self.identify(cpu, from.pid);
                self.cpus.seen(cpu, task.comm, task.pid);
            }
            Line::Lost { cpu, events } => self.lose(cpu, events),
            Line::Overwritten { events: 0, .. } | Line::Dropped { events: 0, .. } | Line::Nothing => {}
            Line::Overwritten { cpu, events } => self.note_lost(cpu, Some(events), "before"),
            Line::Dropped { cpu, events } => self.note_lost(Some(cpu), Some(events), "unknown"),
            Line::Traced(names) => {
                self.traced.get_or_insert_default().extend(names.split(' ').filter_map(class_of));
            }
            Line::Tracer(name) => self.tracer = Some(name.to_owned()),
            Line::Unreadable => {}
        }
    }

    fn note_lost(&mut self, cpu: Option<u32>, events: Option<u64>, when: &str) {
        let time_s = self.last_time.filter(|_| when == "during").map(to_seconds);
        if self.lost.len() < MAX_LOST {
            self.lost.push(Lost { cpu, events, time_s, when: when.to_owned() });
        }
    }

    /// Whatever went on there during the gap is unknown: calls that ran on this CPU, and calls that may have been
    /// woken or have come back there.
    fn lose(&mut self, cpu: u32, events: Option<u64>) {
        self.note_lost(Some(cpu), events, "during");
        for call in self.open.values_mut() {
            if call.cpu.is_none_or(|own| own == cpu) || call.away.is_some() {
                call.fail(Problem::Lost);
            }
        }
        self.cpus.forget(cpu);
        // The call that a label was written for may be in the gap.
        self.labels.clear();
    }

    fn key(&self, cpu: Option<u32>, task: Option<Task<'_>>) -> Key {
        match task.map(|task| task.pid).or_else(|| cpu.and_then(|cpu| self.cpus.printed(cpu))) {
            Some(0) => Key::Idle(cpu),
            Some(pid) => Key::Task(pid),
            None => Key::Unknown(cpu),
        }
    }

    fn record(&mut self, record: &Record<'_>) {
        self.records += 1;
        self.last_time = record.time.or(self.last_time);
        if let (Some(cpu), Some(task)) = (record.cpu, record.task) {
            self.cpus.seen(cpu, task.comm, task.pid);
        }
        let key = self.key(record.cpu, record.task);
        match record.what {
            What::Event { name, args } => self.event(key, record, name, args),
            What::Enter { depth, function } => {
                let id = self.function(key, function, depth);
                if let Some(call) = self.open.get_mut(&key) {
                    call.enter(&self.names, id, depth, record.time);
                } else if self.is_call(function) && self.open.len() < MAX_OPEN {
                    let mut call = self.begin(key, record, function);
                    call.enter(&self.names, id, depth, record.time);
                    self.open.insert(key, call);
                }
            }
            What::Leaf { depth, function, duration } => {
                let id = self.function(key, function, depth);
                if let Some(call) = self.open.get_mut(&key) {
                    call.leaf(&self.names, id, depth, record.time, duration);
                } else if self.is_call(function) {
                    let mut call = self.begin(key, record, function);
                    call.leaf(&self.names, id, depth, record.time, duration);
                    self.end(call);
                }
            }
            What::Exit { depth, function, duration } => {
                let Some(call) = self.open.get_mut(&key) else {
                    self.cut += u64::from(function.is_some_and(|function| self.is_call(function)));
                    return;
                };
                let id = function.map(|function| self.names.id(function));
                if call.exit(&self.names, self.shown, (id, depth), record.time, duration)
                    && let Some(call) = self.open.remove(&key)
                {
                    self.end(call);
                }
            }
        }
    }

    fn is_call(&self, function: &str) -> bool {
        match &self.call {
            Some(call) => call == function,
            None => self.options.calls.iter().any(|call| call == base(function)),
        }
    }

    fn function(&mut self, key: Key, function: &str, depth: usize) -> NameId {
        let id = self.names.id(function);
        if self.open.contains_key(&key) {
            self.seen.extend(self.names.get(id).class);
        } else if self.call.is_none() {
            *self.all.entry(id).or_default() += 1;
            if depth == 0 {
                *self.outer.entry(id).or_default() += 1;
            }
        }
        id
    }

    fn begin(&mut self, key: Key, record: &Record<'_>, function: &str) -> OpenCall {
        self.call.get_or_insert_with(|| function.to_owned());
        let label = self.labels.remove(&key).unwrap_or_default();
        let comm = record.task.map(|task| task.comm.to_owned()).unwrap_or_default();
        let pid = record.task.map(|task| task.pid).or(match key {
            Key::Task(pid) => Some(pid),
            _ => None,
        });
        OpenCall::new(label, comm, pid, record.cpu, record.time)
    }

    fn end(&mut self, call: OpenCall) {
        self.untimed |= call.untimed;
        self.restamped += call.restamped;
        let mut about = Call {
            label: call.label.clone(),
            start_s: call.start.map(to_seconds),
            cpu: call.cpu,
            task: call.comm.clone(),
            pid: call.pid,
            breakdown: Tally::default().breakdown(&self.names, &|_| None, 0),
        };
        let (tally, nanos, problem) = call.finish();
        if problem.is_none() && nanos < self.options.slower_than_ns {
            self.faster += 1;
            return;
        }
        let Some(group) = self.group(&about.label) else { return };
        if let Some(problem) = problem {
            *group.incomplete.entry(problem).or_default() += 1;
            return;
        }
        group.min = if group.calls == 0 { nanos } else { group.min.min(nanos) };
        group.max = group.max.max(nanos);
        group.calls += 1;
        group.tally.merge(&tally);
        group.sums.add(&tally);
        let at = self.slowest.partition_point(|(other, ..)| *other >= nanos);
        if at < self.options.slowest {
            about.breakdown.duration_ns = nanos;
            self.slowest.insert(at, (nanos, tally, about));
            self.slowest.truncate(self.options.slowest);
        }
    }

    fn group(&mut self, label: &str) -> Option<&mut GroupState> {
        let known = self.groups.iter().position(|(known, _)| known == label);
        let at = known.unwrap_or_else(|| {
            let full = self.groups.len() >= MAX_GROUPS;
            if !full {
                self.groups.push((label.to_owned(), GroupState::default()));
            }
            self.groups.len() - 1
        });
        self.groups.get_mut(at).map(|(_, group)| group)
    }

    fn event(&mut self, key: Key, record: &Record<'_>, name: &str, args: &str) {
        self.event_count += 1;
        if self.events.len() < EXAMPLES || self.events.contains_key(name) {
            *self.events.entry(name.to_owned()).or_default() += 1;
        }
        match name {
            "sched_switch" => {
                if let Some(switch) = Switch::parse(args) {
                    self.switch(record, &switch);
                }
            }
            "sched_waking" | "sched_wakeup" | "sched_wakeup_new" => {
                if let Some(wakeup) = Wakeup::parse(args) {
                    self.wakeups = true;
                    self.wake(record.time, wakeup);
                }
            }
            "workqueue_execute_start" => {
                if let (Some(cpu), Some((_, work))) = (record.cpu, args.split_once("function ")) {
                    self.pass(record.cpu, record.time);
                    self.cpus.work(cpu, Some(work.trim()));
                }
            }
            "workqueue_execute_end" => {
                if let Some(cpu) = record.cpu {
                    self.pass(record.cpu, record.time);
                    self.cpus.work(cpu, None);
                }
            }
            LABEL_EVENT if self.labels.len() < MAX_LABELS || self.labels.contains_key(&key) => {
                self.labels.insert(key, args.to_owned());
            }
            _ => {}
        }
    }

    /// Accounts for the time that calls have been waiting on this CPU, up to now.
    fn pass(&mut self, cpu: Option<u32>, now: Option<u64>) {
        let waits = |call: &OpenCall| call.away.as_ref().is_some_and(|away| away.cpu == cpu);
        if self.open.values().any(waits) {
            let (who, idle) = self.who(cpu);
            self.open.values_mut().filter(|call| waits(call)).for_each(|call| call.pass(now, who, idle));
        }
    }

    /// The task on this CPU turns out to be this one; until now nothing said so.
    fn identify(&mut self, cpu: u32, pid: u32) {
        let (unknown, key) =
            (Key::Unknown(Some(cpu)), if pid == 0 { Key::Idle(Some(cpu)) } else { Key::Task(pid) });
        self.cpus.was(cpu, pid);
        if let Some(mut call) = self.open.remove(&unknown) {
            call.pid = Some(pid);
            self.open.entry(key).or_insert(call);
        }
        if let Some(label) = self.labels.remove(&unknown) {
            self.labels.entry(key).or_insert(label);
        }
    }

    /// Who runs there, and whether that is the idle task.
    fn who(&mut self, cpu: Option<u32>) -> (NameId, bool) {
        let idle = cpu.and_then(|cpu| self.cpus.pid(cpu)) == Some(0);
        (self.names.id(&self.cpus.who(cpu)), idle)
    }

    fn switch(&mut self, record: &Record<'_>, switch: &Switch<'_>) {
        self.shown.switches = true;
        let key = |pid| if pid == 0 { Key::Idle(record.cpu) } else { Key::Task(pid) };
        if let Some(cpu) = record.cpu {
            self.identify(cpu, switch.prev_pid);
        }
        self.pass(record.cpu, record.time);
        if let Some(call) = self.open.get_mut(&key(switch.prev_pid)) {
            call.leave(record.cpu, switch.preempted, record.time);
        }
        if let Some(call) = self.open.get_mut(&key(switch.next_pid)) {
            // It may have been pulled from the queue of another CPU.
            if let Some(from) = call.away.as_ref().map(|away| away.cpu) {
                let idle = from.and_then(|cpu| self.cpus.pid(cpu)) == Some(0);
                call.pass(record.time, self.names.id(&self.cpus.who(from)), idle);
            }
            call.come_back(record.cpu);
        }
        if let Some(cpu) = record.cpu {
            self.cpus.switch(cpu, switch.next_comm, switch.next_pid);
        }
    }

    fn wake(&mut self, now: Option<u64>, wakeup: Wakeup) {
        let Some(call) = self.open.get_mut(&Key::Task(wakeup.pid)) else { return };
        let Some(from) = call.away.as_ref().map(|away| away.cpu) else { return };
        let idle = from.and_then(|cpu| self.cpus.pid(cpu)) == Some(0);
        call.pass(now, self.names.id(&self.cpus.who(from)), idle);
        call.wake(wakeup.target_cpu);
    }
}

fn to_seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
