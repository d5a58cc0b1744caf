//! What is made of a trace that was read to its end.

use std::collections::BTreeMap;
use std::mem;

use super::{Analyzer, EXAMPLES};
use crate::analysis::{Analysis, Call, Group, Incomplete, SCHEMA};
use crate::attribution::NameId;
use crate::class::Class;
use crate::task::Problem;
use crate::{Result, TraceError};

/// Functions and times off the CPU that are listed for a group and for a single call.
const GROUP_DETAILS: usize = 12;
const CALL_DETAILS: usize = 6;

impl Analyzer<'_> {
    /// The answer.
    ///
    /// # Errors
    /// As [`crate::analyze`].
    pub(crate) fn finish(mut self) -> Result<Analysis> {
        for (_, call) in mem::take(&mut self.open) {
            let label = call.label.clone();
            let problem = call.problem.unwrap_or(Problem::Unfinished);
            if let Some(group) = self.group(&label) {
                *group.incomplete.entry(problem).or_default() += 1;
            }
        }
        self.check()?;
        let notes = self.notes();
        let (seen, filter, switches) = (&self.seen, &self.traced, self.shown.switches);
        let traced = |class: Class| match (class, filter) {
            (Class::Rest, _) => Some(true),
            (Class::OffCpu, _) => switches.then_some(true),
            _ if seen.contains(&class) => Some(true),
            (_, Some(filter)) => Some(filter.contains(&class)),
            (_, None) => None,
        };
        let names = &self.names;
        let groups = self.groups.iter().map(|(label, group)| Group {
            label: label.clone(),
            calls: group.calls,
            min_ns: group.min,
            max_ns: group.max,
            incomplete: incomplete(&group.incomplete),
            breakdown: group.tally.breakdown(names, &traced, GROUP_DETAILS),
            median: group.sums.median().map(|tally| tally.breakdown(names, &traced, 0)),
        });
        let slowest = self.slowest.iter().map(|(_, tally, call)| Call {
            breakdown: tally.breakdown(names, &traced, CALL_DETAILS),
            ..call.clone()
        });
        Ok(Analysis {
            schema: SCHEMA.to_owned(),
            groups: groups.collect(),
            slowest: slowest.collect(),
            call: self.call.unwrap_or_default(),
            lines: self.lines,
            unreadable_lines: self.unreadable_lines,
            first_unreadable: self.first_unreadable,
            lost: self.lost,
            faster_calls: self.faster,
            notes,
        })
    }

    /// Whether there is anything to report at all.
    fn check(&self) -> Result<()> {
        if self.records == 0 {
            let reason = match (&self.first_unreadable, self.lines) {
                (_, 0) => String::from("it is empty"),
                (Some(first), _) => format!("line {} is {:?}", first.line, first.text),
                (None, _) => String::from("it holds a header and no records"),
            };
            return Err(TraceError::NotATrace { reason });
        }
        let call = || self.options.calls.first().cloned().unwrap_or_default();
        let complete = self.groups.iter().any(|(_, group)| group.calls > 0) || self.faster > 0;
        if complete {
            return Ok(());
        }
        if self.call.is_some() || self.cut > 0 {
            let mut sums: BTreeMap<Problem, u64> = BTreeMap::new();
            for (problem, calls) in self.groups.iter().flat_map(|(_, group)| &group.incomplete) {
                *sums.entry(*problem).or_default() += calls;
            }
            let mut reasons: Vec<String> =
                sums.iter().map(|(problem, calls)| format!("of {calls}, {}", problem.text())).collect();
            if self.cut > 0 {
                reasons.push(format!("{} began before the trace", self.cut));
            }
            let call = self.call.clone().unwrap_or_else(call);
            return Err(TraceError::NoCompleteCall { call, reason: reasons.join("; ") });
        }
        if self.all.is_empty() {
            let examples: Vec<&str> = self.events.keys().map(String::as_str).collect();
            return Err(TraceError::NoFunctions { events: self.event_count, examples: examples.join(", ") });
        }
        let outer = !self.outer.is_empty();
        let mut found: Vec<(&NameId, &u64)> = if outer { &self.outer } else { &self.all }.iter().collect();
        found.sort_by_key(|(id, count)| (std::cmp::Reverse(**count), **id));
        let functions =
            found.into_iter().take(EXAMPLES).map(|(id, _)| self.names.get(*id).text.clone()).collect();
        Err(TraceError::NoSuchCall { call: call(), functions, outer })
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(first) = &self.first_unreadable {
            notes.push(format!(
                "{} of {} lines were not understood; the first is line {}: {:?}",
                self.unreadable_lines, self.lines, first.line, first.text
            ));
        }
        if !self.lost.is_empty() {
            let counts = self.lost.iter().filter(|lost| lost.when != "before").filter_map(|lost| lost.events);
            let before = self.lost.iter().filter(|lost| lost.when == "before").filter_map(|lost| lost.events);
            let (after, before): (u64, u64) = (counts.sum(), before.sum());
            let gaps = self.lost.iter().filter(|lost| lost.when == "during").count();
            if before > 0 {
                notes.push(format!(
                    "{before} events were overwritten before the trace begins: the buffer was too small"
                ));
            }
            if gaps > 0 || after > 0 {
                notes.push(format!(
                    "the kernel lost {after} events or more, in {gaps} gaps: calls during a gap are left out"
                ));
            }
        }
        if self.cut > 0 {
            notes.push(format!("{} calls began before the trace and are left out", self.cut));
        }
        if !self.shown.switches {
            notes.push(String::from(
                "no sched_switch events: who ran while a call was off the CPU is unknown, and where it was preempted is not seen; record with events/sched/sched_switch/enable",
            ));
        } else if !self.wakeups {
            notes.push(String::from(
                "no sched_waking or sched_wakeup events: time from being woken to running counts as blocked",
            ));
        }
        if self.untimed {
            notes.push(String::from(
                "switches without absolute times: time off the CPU outside of waits is unaccounted; record with options/funcgraph-abstime",
            ));
        }
        if self.restamped > 0 {
            notes.push(format!(
                "an interrupt or switch came while the tracer recorded the return of {} functions; their durations are those between their lines",
                self.restamped
            ));
        }
        if self.tracer.as_ref().is_some_and(|tracer| tracer != "function_graph" && tracer != "nop") {
            let tracer = self.tracer.as_deref().unwrap_or_default();
            notes.push(format!("the tracer was {tracer}, not function_graph"));
        }
        notes
    }
}

fn incomplete(problems: &BTreeMap<Problem, u64>) -> Vec<Incomplete> {
    problems
        .iter()
        .map(|(problem, calls)| Incomplete { reason: problem.text().to_owned(), calls: *calls })
        .collect()
}
