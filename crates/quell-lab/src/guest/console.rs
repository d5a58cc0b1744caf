//! What a guest's console says about its kernel's health.

use serde::{Deserialize, Serialize};

/// Most lines kept of one report.
const REPORT_LINES: usize = 40;

/// Beginnings of reports that mean "this kernel has a bug" wherever they stand in a line.
const MARKS: [&str; 13] = [
    "WARNING: CPU",
    "WARNING: possible",
    "WARNING: suspicious RCU",
    "WARNING: inconsistent lock",
    "WARNING: bad unlock",
    "BUG: ",
    "kernel BUG at",
    "INFO: rcu",
    "INFO: task ",
    "Oops: ",
    "general protection fault",
    "UBSAN: ",
    "Kernel panic",
];

/// One report of a kernel bug on the console.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Splat {
    /// The line that begins it, without its time.
    pub title: String,
    /// That line and those that follow, up to the next report.
    pub text: String,
}

/// Finds all reports in a console log.
#[must_use]
pub fn splats(console: &str) -> Vec<Splat> {
    let lines: Vec<&str> = console.lines().map(str::trim_end).collect();
    let starts: Vec<usize> = (0..lines.len()).filter(|&index| is_start(lines[index])).collect();
    let end =
        |next: Option<&usize>, start: usize| next.copied().unwrap_or(lines.len()).min(start + REPORT_LINES);
    starts
        .iter()
        .enumerate()
        .map(|(number, &start)| Splat {
            title: without_time(lines[start]).to_owned(),
            text: lines[start..end(starts.get(number + 1), start)].join("\n"),
        })
        .collect()
}

fn is_start(line: &str) -> bool {
    let text = without_time(line);
    // The end of a panic repeats its title.
    !text.starts_with("---[ end") && MARKS.iter().any(|mark| has_word(text, mark))
}

/// Whether `mark` stands in the text and is not the end of a longer word (`DEBUG: `).
fn has_word(text: &str, mark: &str) -> bool {
    text.match_indices(mark)
        .any(|(at, _)| !text[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
}

/// The line after `[   12.345678] ` and, on some kernels, `[   T123] `.
fn without_time(line: &str) -> &str {
    let mut rest = line.trim_start();
    while let Some((inside, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        let time =
            !inside.is_empty() && inside.trim().bytes().all(|b| b.is_ascii_digit() || b".TC".contains(&b));
        if !time {
            break;
        }
        rest = after.trim_start();
    }
    rest
}

/// Whether the kernel killed a process for want of memory.
#[must_use]
pub fn out_of_memory(console: &str) -> bool {
    console.contains("Out of memory: Killed process") || console.contains("Memory cgroup out of memory")
}

/// The last `count` lines.
#[must_use]
pub fn tail(console: &str, count: usize) -> String {
    let lines: Vec<&str> = console.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_kind_of_report_is_found() {
        for title in [
            "WARNING: CPU: 0 PID: 1 at mm/swap.c:210 lru_add+0x10/0x20",
            "BUG: KASAN: slab-use-after-free in folio_add_lru+0x33/0x90",
            "BUG: kernel NULL pointer dereference, address: 0000000000000008",
            "BUG: sleeping function called from invalid context at mm/page_alloc.c:1",
            "watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [init:1]",
            "WARNING: possible circular locking dependency detected",
            "WARNING: suspicious RCU usage",
            "INFO: rcu_preempt self-detected stall on CPU",
            "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
            "INFO: task kworker/0:1:10 blocked for more than 120 seconds.",
            "Oops: general protection fault, probably for non-canonical address",
            "kernel BUG at mm/swap.c:100!",
            "Kernel panic - not syncing: Attempted to kill init!",
            "UBSAN: array-index-out-of-bounds in mm/x.c:1:2",
        ] {
            let console = format!("[    0.1] Linux version\n[    1.234567] {title}\n[    1.3] Call Trace:\n");
            let found = splats(&console);
            assert_eq!(found.len(), 1, "{title}");
            assert_eq!(found[0].title, title);
            assert!(found[0].text.ends_with("Call Trace:"));
        }
    }

    #[test]
    fn harmless_lines_are_not_reports() {
        let console = "[    0.000000] Linux version 6.12.1\nWARNING: this is the init's own text\n\
                       [    2.0] ---[ end Kernel panic - not syncing ]---\n[   T1] fine\nDEBUG: x\n";
        assert_eq!(splats(console), []);
    }

    #[test]
    fn reports_do_not_overlap() {
        let console = "[1.0] WARNING: CPU: 0 a\nx\n[2.0] [   T12] BUG: b\ny\n";
        let found = splats(console);
        assert_eq!(found[0].text, "[1.0] WARNING: CPU: 0 a\nx");
        assert_eq!((found[1].title.as_str(), found[1].text.as_str()), ("BUG: b", "[2.0] [   T12] BUG: b\ny"));
    }

    #[test]
    fn want_of_memory_is_recognized() {
        assert!(out_of_memory("[9.1] Out of memory: Killed process 77 (init) total-vm:1kB"));
        assert!(!out_of_memory("[9.1] all fine"));
    }

    proptest! {
        #[test]
        fn no_console_makes_it_panic(console in "(?s).{0,300}") {
            let _ = splats(&console);
            let _ = tail(&console, 3);
        }
    }
}
