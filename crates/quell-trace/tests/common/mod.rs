//! Invented calls, printed as ftrace prints them.

// Each test binary uses its part of this.
#![allow(dead_code)]

use std::fmt::Write;

use quell_trace::{Analysis, Breakdown, Class, class_of};

/// A function of an invented call.
#[derive(Clone, Debug)]
pub struct Node {
    pub function: &'static str,
    pub items: Vec<Item>,
}

/// What it does.
#[derive(Clone, Debug)]
pub enum Item {
    /// Runs for so many nanoseconds.
    Run(u64),
    /// Calls another function.
    Call(Node),
    /// Is off the CPU, first blocked and then runnable; a worker or the idle task runs instead.
    Off { blocked: u64, runnable: u64, sleeps: bool, worker: bool },
}

/// How the trace is printed.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// With the names of functions that return.
    pub tail: bool,
    /// As `trace-cmd report` does.
    pub trace_cmd: bool,
}

/// What really happened in a call.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    pub label: String,
    pub duration: u64,
    pub switches: u64,
    pub functions: u64,
    pub worker: u64,
    classes: Vec<(Class, u64)>,
}

impl Truth {
    pub fn class(&self, class: Class) -> u64 {
        self.classes.iter().filter(|(own, _)| *own == class).map(|(_, nanos)| nanos).sum()
    }
}

#[derive(Debug)]
pub struct Rendered {
    pub text: String,
    pub truth: Vec<Truth>,
    /// First and last line of the first call, from 0.
    pub lines_of_first_call: (usize, usize),
}

/// Strength with which a class claims what happens below it.
fn rank(class: Class) -> u8 {
    match class {
        Class::Interrupt => 4,
        Class::RcuWait => 3,
        Class::RemoteDrain => 2,
        Class::FolioDrain | Class::PageFault => 1,
        _ => 0,
    }
}

struct Printer {
    text: String,
    now: u64,
    layout: Layout,
    truth: Truth,
}

/// Prints the calls one after the other, with a label before each.
pub fn render(calls: &[Node], layout: Layout) -> Rendered {
    let mut printer = Printer { text: String::new(), now: 5_000_000_123, layout, truth: Truth::default() };
    printer.text.push_str("# tracer: function_graph\n#\n");
    let mut truth = Vec::new();
    let mut lines = (0, 0);
    for (number, call) in calls.iter().enumerate() {
        let label = format!("call={number}");
        printer.event("exe", 47, "", &format!("quell: {label}"));
        let first = printer.text.lines().count();
        printer.truth = Truth { label, ..Truth::default() };
        let start = printer.now;
        printer.node(call, 0, Class::Rest, true);
        printer.truth.duration = printer.now - start;
        if number == 0 {
            lines = (first, printer.text.lines().count() - 1);
        }
        truth.push(std::mem::take(&mut printer.truth));
        printer.now += 3_333;
    }
    Rendered { text: printer.text, truth, lines_of_first_call: lines }
}

impl Printer {
    fn node(&mut self, node: &Node, depth: usize, context: Class, outermost: bool) {
        let class = match class_of(node.function) {
            Some(own) if !outermost && (rank(context) == 0 || rank(own) > rank(context)) => own,
            _ => context,
        };
        self.truth.functions += 1;
        let start = self.now;
        let only_runs = node.items.iter().all(|item| matches!(item, Item::Run(_)));
        if only_runs {
            let took: u64 =
                node.items.iter().map(|item| if let Item::Run(nanos) = item { *nanos } else { 0 }).sum();
            self.line(depth, "funcgraph_entry", Some(took), &format!("{}();", node.function));
            self.truth.classes.push((class, took));
            self.now += took;
            return;
        }
        self.line(depth, "funcgraph_entry", None, &format!("{}() {{", node.function));
        for item in &node.items {
            match item {
                Item::Run(nanos) => {
                    self.now += nanos;
                    self.truth.classes.push((class, *nanos));
                }
                Item::Call(node) => self.node(node, depth + 1, class, false),
                Item::Off { blocked, runnable, sleeps, worker } => {
                    self.off(class, *blocked, *runnable, *sleeps, *worker);
                }
            }
        }
        let end = if self.layout.tail { format!("}} /* {} */", node.function) } else { String::from("}") };
        self.line(depth, "funcgraph_exit", Some(self.now - start), &end);
    }

    fn off(&mut self, class: Class, blocked: u64, runnable: u64, sleeps: bool, worker: bool) {
        self.truth.switches += 4;
        let (comm, pid) = if worker { ("kworker/0:1", 10) } else { ("swapper/0", 0) };
        let state = if sleeps { "D" } else { "R+" };
        self.event("exe", 47, "sched_switch", &switch("exe", 47, state, comm, pid));
        if worker {
            self.event(
                comm,
                pid,
                "workqueue_execute_start",
                "work struct 00000000204f88c6: function drain_worker",
            );
        }
        if sleeps {
            self.now += blocked;
            self.event(comm, pid, "sched_waking", "comm=exe pid=47 prio=120 target_cpu=000");
        }
        self.now += runnable;
        if worker {
            self.event(
                comm,
                pid,
                "workqueue_execute_end",
                "work struct 00000000204f88c6: function drain_worker",
            );
            self.truth.worker += blocked + runnable;
        }
        self.event(comm, pid, "sched_switch", &switch(comm, pid, "S", "exe", 47));
        let waits = matches!(class, Class::RcuWait | Class::RemoteDrain);
        self.truth.classes.push((if waits { class } else { Class::OffCpu }, blocked));
        // Where nobody else ran, the wait was not yet over.
        self.truth.classes.push((if waits && !worker { class } else { Class::OffCpu }, runnable));
    }

    fn line(&mut self, depth: usize, event: &str, took: Option<u64>, code: &str) {
        let took = took.map(duration).unwrap_or_default();
        let indent = 2 * depth + 2;
        let (s, us) = stamp(self.now);
        let _ = if self.layout.trace_cmd {
            writeln!(
                self.text,
                "     exe-47    [000] {s:5}.{us:06}: {event}: {took:>18} |{:indent$}{code}",
                ""
            )
        } else {
            writeln!(self.text, "{s:5}.{us:06} |   0)     exe-47     | {took:>13} |{:indent$}{code}", "")
        };
    }

    fn event(&mut self, comm: &str, pid: u32, name: &str, args: &str) {
        let (s, us) = stamp(self.now);
        let _ = if self.layout.trace_cmd {
            let name = if name.is_empty() { "print" } else { name };
            writeln!(self.text, "     {comm}-{pid}    [000] {s:5}.{us:06}: {name}: {args}")
        } else {
            let name = if name.is_empty() { String::new() } else { format!("{name}: ") };
            let comm: String = comm.chars().take(7).collect();
            writeln!(
                self.text,
                "{s:5}.{us:06} |   0)  {comm}-{pid}  |               |      /* {name}{args} */"
            )
        };
    }
}

fn switch(prev: &str, prev_pid: u32, state: &str, next: &str, next_pid: u32) -> String {
    format!(
        "prev_comm={prev} prev_pid={prev_pid} prev_prio=120 prev_state={state} ==> next_comm={next} next_pid={next_pid} next_prio=120"
    )
}

fn stamp(nanos: u64) -> (u64, u64) {
    (nanos / 1_000_000_000, nanos % 1_000_000_000 / 1_000)
}

/// As `trace_print_graph_duration` prints it: at most seven characters.
fn duration(nanos: u64) -> String {
    let (whole, part) = ((nanos / 1000).to_string(), format!("{:03}", nanos % 1000));
    match whole.len() {
        ..=4 => format!("{whole}.{part} us"),
        5 => format!("{whole}.{} us", &part[..2]),
        6 => format!("{whole}.{} us", &part[..1]),
        _ => format!("{whole} us"),
    }
}

/// All sums of an answer.
pub fn breakdowns(analysis: &Analysis) -> impl Iterator<Item = &Breakdown> {
    let groups = analysis.groups.iter().map(|group| &group.breakdown);
    let medians = analysis.groups.iter().filter_map(|group| group.median.as_ref());
    groups.chain(medians).chain(analysis.slowest.iter().map(|call| &call.breakdown))
}
