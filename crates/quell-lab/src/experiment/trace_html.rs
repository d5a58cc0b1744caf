//! The part of the page that says where the time of traced calls went.

use std::collections::BTreeMap;

use maud::{Markup, html};
use quell_trace::{Breakdown, Class, Group};

use super::trace::TracedGuest;

/// Times off the CPU and functions that are listed for each guest.
const LISTED: usize = 5;

/// All traced guests, one table for each kind of call.
pub(super) fn section(traces: &[TracedGuest]) -> Markup {
    let mut labels: Vec<&str> = Vec::new();
    let mut groups: BTreeMap<(&str, usize), &Group> = BTreeMap::new();
    for (index, traced) in traces.iter().enumerate() {
        let labeled = traced.analysis.iter().flat_map(|analysis| &analysis.groups);
        for group in labeled.filter(|group| !group.label.is_empty() && group.calls > 0) {
            if !labels.contains(&group.label.as_str()) {
                labels.push(&group.label);
            }
            groups.insert((&group.label, index), group);
        }
    }
    html! {
        @if !traces.is_empty() {
            h2 { "Where the time went" }
            p {
                "Traced guests, apart from those above. The tracer lengthens every call, so only the parts and what "
                "is missing from one arm mean something. Microseconds of the call with the median duration, and of "
                "the mean over all calls of the guest; classes are exclusive and add up to the call."
            }
            @for label in labels {
                h3 { (label) }
                (table(traces, |index| groups.get(&(label, index)).copied()))
                @for (index, traced) in traces.iter().enumerate() {
                    @if let Some(group) = groups.get(&(label, index)) { (details(&name(traces, index), group, traced)) }
                }
            }
            @for (index, traced) in traces.iter().enumerate() {
                @if let Some(problem) = &traced.problem { p.bad { (name(traces, index)) ": " (problem) } }
            }
        }
    }
}

/// The arm, with a number where it has several traced guests.
fn name(traces: &[TracedGuest], index: usize) -> String {
    let arm = &traces[index].guest.arm;
    let same = |traced: &&TracedGuest| &traced.guest.arm == arm;
    match traces.iter().filter(same).count() {
        1 => arm.clone(),
        _ => format!("{arm} {}", traces[..=index].iter().filter(same).count()),
    }
}

fn table<'a>(traces: &[TracedGuest], group: impl Fn(usize) -> Option<&'a Group>) -> Markup {
    let shown: Vec<usize> = (0..traces.len()).filter(|index| group(*index).is_some()).collect();
    let listed = |class: Class| {
        class.is_basic()
            || shown.iter().filter_map(|index| group(*index)).any(|g| g.breakdown.class_ns(class) > 0)
    };
    let cells = |value: &dyn Fn(&Breakdown, u64) -> String| {
        html! {
            @for group in shown.iter().filter_map(|index| group(*index)) {
                td { (group.median.as_ref().map(|median| value(median, 1)).unwrap_or_default()) }
                td { (value(&group.breakdown, group.calls)) }
            }
        }
    };
    html! {
        table {
            tr {
                th { "class" }
                @for index in &shown { th { (name(traces, *index)) ": median call" } th { (name(traces, *index)) ": mean" } }
            }
            @for class in Class::ALL.into_iter().filter(|class| listed(*class)) {
                tr { td { (class.text()) } (cells(&|breakdown, calls| breakdown.cell(class, calls))) }
            }
            tr { td { "unaccounted" } (cells(&|breakdown, calls| micros(breakdown.unaccounted_ns, calls))) }
            tr { td { b { "call = sum" } } (cells(&|breakdown, calls| micros(breakdown.sum_ns(), calls))) }
        }
    }
}

fn details(name: &str, group: &Group, traced: &TracedGuest) -> Markup {
    let (off, functions) = (&group.breakdown.off_cpu, &group.breakdown.functions);
    html! {
        p {
            b { (name) } ": " (group.calls) " calls"
            @for off in off.iter().take(LISTED) {
                "; " (off.kind.text()) " during " (off.during.text()) " while " (off.who) " ran: " (micros(off.off_ns, group.calls))
            }
            ". Longest functions by themselves: "
            @for function in functions.iter().take(LISTED) { (function.function) " " (micros(function.self_ns, group.calls)) ", " }
            "in " code { (traced.guest.directory) "/" (traced.file) } "."
        }
    }
}

fn micros(nanos: u64, calls: u64) -> String {
    format!("{:.1}", nanos as f64 / 1e3 / calls.max(1) as f64)
}
