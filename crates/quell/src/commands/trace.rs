//! `quell trace`: where the time of a slow kernel call went.

use std::fmt::Write;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Subcommand;
use quell_report::{Column, Look, Table};
use quell_trace::{Analysis, Breakdown, Call, Class, Group, Off, OffKind, Options};

use crate::terminal;

/// Functions and tasks that are listed for each group.
const LISTED: usize = 6;
/// Explains recorded traces.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say for each slow call in an ftrace text where its time went
    Analyze(AnalyzeArgs),
}

/// Says for each slow call where its time went: waiting for RCU, draining other CPUs, off the CPU (and who ran
/// instead), copying, and so on.
///
/// Reads what the kernel's files `trace` and `trace_pipe` or `trace-cmd report` print with the tracer `function_graph`,
/// best with `sched_switch` events and the option `funcgraph-abstime`. Exits with 0, or with 2 if there is no such call
/// or no trace.
#[derive(Debug, clap::Args)]
struct AnalyzeArgs {
    /// The trace as text, or - for standard input
    file: PathBuf,
    /// Function whose calls are explained (default: the system call `move_pages`)
    #[arg(long, value_name = "FUNCTION")]
    call: Vec<String>,
    /// Only calls that took at least so long (such as 1ms)
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "0s")]
    slower_than: Duration,
    /// How many of the slowest calls are listed one by one
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=1000))]
    slowest: u16,
    /// Print JSON (quell.trace/1)
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Command::Analyze(args) = &args.command;
    let mut options = Options {
        slower_than_ns: u64::try_from(args.slower_than.as_nanos()).unwrap_or(u64::MAX),
        slowest: usize::from(args.slowest),
        ..Options::default()
    };
    if !args.call.is_empty() {
        options.calls.clone_from(&args.call);
    }
    let analysis = quell_trace::analyze(open(&args.file)?, &options)
        .with_context(|| format!("cannot analyze {}", args.file.display()))?;
    if args.json {
        terminal::print_json(&analysis)?;
    } else {
        terminal::print(&human(&analysis, terminal::look()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn open(path: &Path) -> Result<Box<dyn BufRead>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    Ok(Box::new(BufReader::with_capacity(256 << 10, file)))
}

fn human(analysis: &Analysis, look: Look) -> String {
    let mut text = String::new();
    for group in analysis.groups.iter().filter(|group| group.calls > 0) {
        text += &about(&analysis.call, group);
        text += &classes(group).render(look);
        text += &details(group);
        text += "\n";
    }
    if !analysis.slowest.is_empty() {
        let _ = writeln!(text, "The slowest calls, microseconds");
        text += &slowest(&analysis.slowest).render(look);
    }
    for group in &analysis.groups {
        for incomplete in &group.incomplete {
            let (calls, reason) = (incomplete.calls, &incomplete.reason);
            text += &terminal::wrapped(&format!("left out: {calls} calls{}: {reason}", named(&group.label)));
        }
    }
    if analysis.faster_calls > 0 {
        let _ = writeln!(text, "left out: {} calls that were faster", analysis.faster_calls);
    }
    for note in &analysis.notes {
        text += &terminal::wrapped(&format!("note: {note}"));
    }
    text
}

fn named(label: &str) -> String {
    if label.is_empty() { String::new() } else { format!(" ({label})") }
}

fn about(call: &str, group: &Group) -> String {
    let calls = if group.calls == 1 { String::from("1 call") } else { format!("{} calls", group.calls) };
    let (min, max) = (micros(group.min_ns), micros(group.max_ns));
    format!("{call}{}: {calls}, {min} to {max} us\n", named(&group.label))
}

fn micros(nanos: u64) -> String {
    format!("{:.1}", nanos as f64 / 1e3)
}

/// Microseconds of one call, on average.
fn per_call(nanos: u64, calls: u64) -> String {
    format!("{:.1}", nanos as f64 / 1e3 / calls.max(1) as f64)
}

fn classes(group: &Group) -> Table {
    let number = Column::number;
    let mut table = Table::new([
        Column::text("class"),
        number("median call, us"),
        number("mean, us"),
        number("share"),
        number("of it off-CPU"),
    ]);
    let sums = &group.breakdown;
    let Some(median) = &group.median else { return table };
    let share = |nanos: u64| format!("{:.1} %", 100.0 * nanos as f64 / sums.duration_ns.max(1) as f64);
    for part in sums.classes.iter().filter(|part| part.class.is_basic() || part.total_ns > 0) {
        table.row([
            part.class.text().into(),
            median.cell(part.class, 1).into(),
            sums.cell(part.class, group.calls).into(),
            share(part.total_ns).into(),
            per_call(part.off_cpu_ns, group.calls).into(),
        ]);
    }
    for (name, typical, all) in [
        ("unaccounted", median.unaccounted_ns, sums.unaccounted_ns),
        ("call = sum", median.sum_ns(), sums.sum_ns()),
    ] {
        table.row([
            name.into(),
            micros(typical).into(),
            per_call(all, group.calls).into(),
            share(all).into(),
            String::new().into(),
        ]);
    }
    table
}

/// Who ran meanwhile; without switches in the trace only the function is known in which the task was off the CPU.
fn ran(off: &Off) -> String {
    match off.kind {
        OffKind::Unknown => format!("in {}, nobody knows for whom", off.who),
        OffKind::Blocked | OffKind::Runnable | OffKind::Waking => format!("while {} ran", off.who),
    }
}

fn details(group: &Group) -> String {
    let breakdown = &group.breakdown;
    let mut text = String::new();
    for off in breakdown.off_cpu.iter().take(LISTED) {
        let state = off.kind.text();
        let (during, each) = (off.during, per_call(off.off_ns, group.calls));
        let counted =
            if off.counted_as == during { String::new() } else { format!(", in {}", off.counted_as) };
        let ran = ran(off);
        let _ = writeln!(text, "{state} during {during} {ran}: {each} us per call{counted}");
    }
    let functions: Vec<String> = breakdown
        .functions
        .iter()
        .take(LISTED)
        .filter(|function| function.self_ns > 0)
        .map(|function| format!("{} {}", function.function, per_call(function.self_ns, group.calls)))
        .collect();
    text +=
        &terminal::wrapped(&format!("longest functions by themselves, mean us: {}", functions.join(", ")));
    text
}

fn slowest(calls: &[Call]) -> Table {
    let (number, text) = (Column::number, Column::text);
    let mut table = Table::new([
        number("start, s"),
        text("task"),
        number("call"),
        number("RCU wait"),
        number("remote drain"),
        number("off-CPU"),
        number("copy"),
        number("others"),
        number("unaccounted"),
        text("label"),
    ]);
    for call in calls {
        let part = |class| call.breakdown.class_ns(class);
        let named: u64 =
            [Class::RcuWait, Class::RemoteDrain, Class::OffCpu, Class::Copy].map(part).iter().sum();
        let (total, unaccounted) = (call.breakdown.duration_ns, call.breakdown.unaccounted_ns);
        let pid = call.pid.map_or_else(String::new, |pid| format!("-{pid}"));
        table.row([
            call.start_s.map_or_else(|| String::from("unknown"), |start| format!("{start:.6}")).into(),
            format!("{}{pid}", call.task).into(),
            micros(total).into(),
            micros(part(Class::RcuWait)).into(),
            micros(part(Class::RemoteDrain)).into(),
            micros(part(Class::OffCpu)).into(),
            micros(part(Class::Copy)).into(),
            micros(total - named - unaccounted).into(),
            micros(unaccounted).into(),
            call.label.clone().into(),
        ]);
    }
    table
}

/// Where the time went in several traces, side by side: one table for each label that occurs.
pub(crate) fn side_by_side(traces: &[(String, &Analysis)], look: Look) -> String {
    let mut labels: Vec<&str> = Vec::new();
    for group in traces.iter().flat_map(|(_, analysis)| &analysis.groups) {
        if !group.label.is_empty() && group.calls > 0 && !labels.contains(&group.label.as_str()) {
            labels.push(&group.label);
        }
    }
    let mut text = String::new();
    for label in labels {
        let groups: Vec<(&str, &Group)> = traces
            .iter()
            .filter_map(|(name, analysis)| {
                let group = analysis.groups.iter().find(|group| group.label == label && group.calls > 0)?;
                Some((name.as_str(), group))
            })
            .collect();
        let _ = writeln!(text, "{label}");
        text += &columns(&groups).render(look);
        for (name, group) in groups {
            for off in group.breakdown.off_cpu.iter().take(2) {
                let (state, during) = (off.kind.text(), off.during);
                let each = per_call(off.off_ns, group.calls);
                let _ = writeln!(text, "{name}: {state} during {during} {}: {each} us per call", ran(off));
            }
        }
        text += "\n";
    }
    text
}

fn columns(groups: &[(&str, &Group)]) -> Table {
    let mut header = vec![Column::text("us of the median call, mean")];
    for (name, _) in groups {
        header.extend([Column::number(*name), Column::number("mean")]);
    }
    let mut table = Table::new(header);
    let mut row = |name: &str, value: &dyn Fn(&Breakdown, u64) -> String| {
        let cells = groups.iter().flat_map(|(_, group)| {
            let median = group.median.as_ref().map(|median| value(median, 1));
            [median.unwrap_or_default().into(), value(&group.breakdown, group.calls).into()]
        });
        table.row([name.into()].into_iter().chain(cells).collect::<Vec<_>>());
    };
    for class in Class::ALL {
        if class.is_basic() || groups.iter().any(|(_, group)| group.breakdown.class_ns(class) > 0) {
            row(class.text(), &|breakdown, calls| breakdown.cell(class, calls));
        }
    }
    row("unaccounted", &|breakdown, calls| per_call(breakdown.unaccounted_ns, calls));
    row("call = sum", &|breakdown, calls| per_call(breakdown.sum_ns(), calls));
    table
}
