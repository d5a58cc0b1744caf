//! One line of ftrace text.
//!
//! Three layouts are told apart line by line: the function graph as the kernel prints it, with or without the
//! columns that `trace_options` switches; the same as `trace-cmd report` prints it, as `funcgraph_entry` and
//! `funcgraph_exit` events; and plain events.

/// Most nested functions that are believed; the kernel itself stops at 50.
const MAX_DEPTH: usize = 512;
/// Beyond this a number is no CPU.
const MAX_CPU: u32 = 8192;
/// Beyond 300 years of uptime a number is no time.
const MAX_SECONDS: u64 = 10_000_000_000;

/// A task as a column shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task<'a> {
    /// Its name; the function graph cuts it to 7 characters.
    pub comm: &'a str,
    /// Its thread ID; 0 is the idle task of a CPU.
    pub pid: u32,
}

/// A duration as it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duration {
    /// Nanoseconds, rounded down to [`Duration::step`].
    pub nanos: u64,
    /// What it is a multiple of: 1 ns, or more from 10 ms on, where ftrace prints fewer digits.
    pub step: u64,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What<'a> {
    /// A function was called.
    Enter {
        /// Nesting.
        depth: usize,
        /// Its name.
        function: &'a str,
    },
    /// A function was called and returned without calling another one.
    Leaf {
        /// Nesting.
        depth: usize,
        /// Its name.
        function: &'a str,
        /// How long it took; `None` if that is not printed.
        duration: Option<Duration>,
    },
    /// A function returned.
    Exit {
        /// Nesting.
        depth: usize,
        /// Its name; `None` if that is not printed.
        function: Option<&'a str>,
        /// How long it took; `None` if that is not printed.
        duration: Option<Duration>,
    },
    /// An event, or a text written to `trace_marker`, whose name is what stands before the first colon.
    Event {
        /// Its name.
        name: &'a str,
        /// The text after it.
        args: &'a str,
    },
}

/// Something that happened, and when and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Nanoseconds since some start; `None` if no times are printed.
    pub time: Option<u64>,
    /// The CPU; `None` if it is not printed.
    pub cpu: Option<u32>,
    /// The task; `None` if it is not printed.
    pub task: Option<Task<'a>>,
    /// What happened.
    pub what: What<'a>,
}

/// A line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// Something that happened.
    Record(Record<'a>),
    /// Another task runs on a CPU from here on (`0)  a-1  =>  b-2`).
    NowRunning {
        /// The CPU.
        cpu: u32,
        /// The task that ran.
        from: Task<'a>,
        /// The task that comes.
        task: Task<'a>,
    },
    /// Events of a CPU were lost at this place.
    Lost {
        /// The CPU.
        cpu: u32,
        /// How many; `None` if the kernel does not know.
        events: Option<u64>,
    },
    /// Events were lost before the first line: a full buffer drops the oldest.
    Overwritten {
        /// The CPU; `None` if the line counts all.
        cpu: Option<u32>,
        /// How many.
        events: u64,
    },
    /// Events were lost, and nobody knows where in the trace.
    Dropped {
        /// The CPU.
        cpu: u32,
        /// How many.
        events: u64,
    },
    /// The functions that could appear in this trace, separated by spaces.
    Traced(&'a str),
    /// The tracer's name.
    Tracer(&'a str),
    /// A comment, a separator, an empty line.
    Nothing,
    /// Not understood.
    Unreadable,
}

/// Reads lines one by one, and remembers what the header said about the columns.
#[derive(Clone, Copy, Debug, Default)]
pub struct LineParser {
    relative_time: bool,
}

impl LineParser {
    /// Reads one line without its end.
    pub fn parse<'a>(&mut self, line: &'a str) -> Line<'a> {
        let text = line.trim();
        if text.is_empty() || text.bytes().all(|byte| byte == b'-') {
            return Line::Nothing;
        }
        if let Some(comment) = text.strip_prefix('#') {
            return self.comment(comment);
        }
        if let Some(lost) = lost(text) {
            return lost;
        }
        if text == "<...>" || text.starts_with("cpus=") || text.starts_with("(Overruns:") {
            return Line::Nothing;
        }
        graph(line, self.relative_time).or_else(|| plain(line)).unwrap_or(Line::Unreadable)
    }

    fn comment<'a>(&mut self, comment: &'a str) -> Line<'a> {
        let text = comment.trim();
        if let Some(name) = text.strip_prefix("tracer:") {
            return Line::Tracer(name.trim());
        }
        if let Some(names) = text.strip_prefix("functions traced:") {
            return Line::Traced(names.trim());
        }
        if let Some(rest) = text.strip_prefix("entries-in-buffer/entries-written:") {
            let numbers = rest.split_whitespace().next().and_then(|word| word.split_once('/'));
            let numbers = numbers.and_then(|(kept, all)| Some((kept.parse().ok()?, all.parse().ok()?)));
            return numbers.map_or(Line::Nothing, |(kept, all): (u64, u64)| Line::Overwritten {
                cpu: None,
                events: all.saturating_sub(kept),
            });
        }
        if let Some(rest) = text.strip_prefix("cpu ") {
            return stats(rest).unwrap_or(Line::Nothing);
        }
        self.relative_time |= text.contains("REL TIME");
        Line::Nothing
    }
}

/// `0 overrun: 7`, from `per_cpu/cpu0/stats`.
fn stats(text: &str) -> Option<Line<'_>> {
    let (cpu, rest) = text.split_once(' ')?;
    let (name, events) = rest.split_once(':')?;
    let (cpu, events) = (cpu.parse().ok().filter(|cpu| *cpu <= MAX_CPU)?, events.trim().parse().ok()?);
    match name {
        "overrun" => Some(Line::Overwritten { cpu: Some(cpu), events }),
        "dropped events" => Some(Line::Dropped { cpu, events }),
        _ => None,
    }
}

/// `CPU:1 [LOST 7 EVENTS]`.
fn lost(text: &str) -> Option<Line<'_>> {
    let (cpu, rest) = text.strip_prefix("CPU:")?.split_once(" [")?;
    let rest = rest.strip_suffix("]")?;
    if !rest.contains("LOST") && !rest.contains("EVENTS DROPPED") {
        return None;
    }
    let cpu = cpu.trim().parse().ok().filter(|cpu| *cpu <= MAX_CPU)?;
    Some(Line::Lost { cpu, events: rest.split(' ').find_map(|word| word.parse().ok()) })
}

/// A line of the kernel's function graph.
fn graph(line: &str, relative_time: bool) -> Option<Line<'_>> {
    let mut rest = line;
    let mut time = None;
    if let Some((column, after)) = rest.split_once('|')
        && let Some(nanos) = seconds(column.trim())
    {
        (time, rest) = (Some(nanos), after);
    }
    if relative_time {
        rest = rest.split_once('|')?.1;
    }
    let mut cpu = None;
    if let Some((column, after)) = rest.split_once(')')
        && let Ok(number) = column.trim().parse::<u32>()
    {
        (cpu, rest) = (Some(number).filter(|cpu| *cpu <= MAX_CPU), after);
        cpu?;
        if let Some((from, next)) = rest.split_once("=>")
            && !rest.contains('|')
        {
            return Some(Line::NowRunning { cpu: cpu?, from: task(from)?, task: task(next)? });
        }
    }
    let mut person = None;
    let mut duration = None;
    // The columns of task, latency flags and duration each end with a bar, and each may be absent.
    for _ in 0..3 {
        let Some((column, after)) = rest.split_once('|') else { break };
        let word = column.trim();
        if word.is_empty() {
            rest = after;
            break;
        } else if word.ends_with("=>") || word.ends_with("<==========") || word.starts_with("<===") {
            return Some(Line::Nothing);
        } else if let Some(value) = micros(word) {
            (duration, rest) = (Some(value), after);
            break;
        } else if let (None, Some(found)) = (person, task(column)) {
            (person, rest) = (Some(found), after);
        } else if word.len() <= 12 && !word.contains(' ') && !word.contains(['(', '{', '}', '*', ';']) {
            rest = after;
        } else {
            break;
        }
    }
    let what = body(rest, duration)?;
    // Without any column in front it is source code, or any other text.
    if time.is_none() && cpu.is_none() && duration.is_none() && !line.contains('|') {
        return None;
    }
    Some(Line::Record(Record { time, cpu, task: person, what }))
}

/// What stands right of the last bar: `  f() {`, `  f();`, `  } /* f */` or `  /* event: text */`.
fn body(text: &str, duration: Option<Duration>) -> Option<What<'_>> {
    let trimmed = text.trim_start_matches(' ');
    let depth = ((text.len() - trimmed.len()) / 2).saturating_sub(1);
    let code = trimmed.trim_end();
    if depth > MAX_DEPTH {
        return None;
    }
    if let Some(rest) = code.strip_prefix('}') {
        let function = rest.trim_start().strip_prefix("/* ").map(|comment| {
            // `name`, or with return values `name = 0x0` and `name ret=0x0`.
            let comment = comment.trim_end_matches("*/");
            comment.split([' ', '=']).next().unwrap_or_default()
        });
        if function.is_none() && !rest.trim().is_empty() {
            return None;
        }
        return Some(What::Exit { depth, function: function.filter(|name| is_function(name)), duration });
    }
    if let Some(comment) = code.strip_prefix("/*") {
        // A line that was cut off has no end of its comment, and is not believed.
        let comment = comment.strip_suffix("*/")?.trim();
        return Some(event(comment));
    }
    let (name, rest) = code.split_once('(')?;
    // A function of a module is printed as `name [module]`.
    let function = name.split(' ').next().unwrap_or_default();
    let module = name[function.len()..].trim();
    if !is_function(function) || !(module.is_empty() || (module.starts_with('[') && module.ends_with(']'))) {
        return None;
    }
    // Behind the arguments, newer versions may print the caller or the value returned as a comment.
    let code =
        rest.rsplit_once("/*").filter(|_| rest.ends_with("*/")).map_or(rest, |(code, _)| code).trim_end();
    if code.ends_with(");") {
        Some(What::Leaf { depth, function, duration })
    } else if code.ends_with(") {") {
        Some(What::Enter { depth, function })
    } else {
        None
    }
}

fn event(text: &str) -> What<'_> {
    match text.split_once(':') {
        Some((name, args)) if is_word(name) => What::Event { name, args: args.trim() },
        _ => What::Event { name: "print", args: text },
    }
}

/// `  comm-12  (  12) [001] d..1.  12.345678: name: args`; the columns of thread group and flags may be absent.
fn plain(line: &str) -> Option<Line<'_>> {
    let mut from = 0;
    // The task's name may hold a bracket too.
    while let Some(at) = line[from..].find('[').map(|at| at + from) {
        from = at + 1;
        let Some((number, rest)) = line[from..].split_once(']') else { break };
        let Ok(cpu) = number.trim().parse::<u32>() else { continue };
        let before = line[..at].trim();
        let before =
            before.rsplit_once('(').filter(|_| before.ends_with(')')).map_or(before, |(task, _)| task);
        let Some(person) = task(before) else { continue };
        if cpu > MAX_CPU {
            return None;
        }
        let mut words = rest.trim_start();
        if !words.split(' ').next().is_some_and(|word| word.ends_with(':')) {
            words = words.split_once(' ')?.1.trim_start();
        }
        let (time, text) = words.split_once(':')?;
        let time = seconds(time)?;
        let record =
            |what| Line::Record(Record { time: Some(time), cpu: Some(cpu), task: Some(person), what });
        let text = text.trim_start();
        let (name, args) = match text.split_once(':') {
            Some((name, args)) if is_word(name) => (name, args),
            // The function tracer prints `function <-caller`.
            _ => return Some(record(What::Event { name: "function", args: text })),
        };
        return Some(match name {
            "funcgraph_entry" | "funcgraph_exit" => {
                let (column, code) = args.split_once('|')?;
                record(body(code, micros(column.trim()))?)
            }
            // What is written to `trace_marker`; `print` is its name for `trace-cmd`.
            "tracing_mark_write" | "print" => record(event(args.trim())),
            _ => record(What::Event { name, args: args.trim() }),
        });
    }
    None
}

/// `comm-12`, where the name may hold anything.
fn task(text: &str) -> Option<Task<'_>> {
    let (comm, pid) = text.trim().rsplit_once('-')?;
    if pid.is_empty() || !pid.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(Task { comm: comm.trim(), pid: pid.parse().ok()? })
}

/// `12.345678` as nanoseconds.
fn seconds(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.')?;
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || !(1..=9).contains(&part.len()) {
        return None;
    }
    let whole: u64 = whole.parse().ok().filter(|seconds| *seconds <= MAX_SECONDS)?;
    let part: u64 = part.parse::<u64>().ok()? * 10_u64.pow(9 - part.len() as u32);
    Some(whole * 1_000_000_000 + part)
}

/// `! 123.456 us` as nanoseconds; the sign only says that it is long.
fn micros(text: &str) -> Option<Duration> {
    let number = text.strip_suffix("us")?.trim_end();
    let number = number.trim_start_matches(['+', '!', '#', '*', '@', '$']).trim_start();
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if !part.bytes().chain(whole.bytes()).all(|byte| byte.is_ascii_digit()) || part.len() > 3 {
        return None;
    }
    let step = 10_u64.pow(3 - part.len() as u32);
    let whole: u64 = whole.parse().ok().filter(|micros| *micros <= MAX_SECONDS * 1_000_000)?;
    let part: u64 = if part.is_empty() { 0 } else { part.parse().ok()? };
    Some(Duration { nanos: whole * 1000 + part * step, step })
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn is_function(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.$@<>:+".contains(&byte))
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
