//! Traces of the lab's own guests (Linux 6.12.117 with Quell's patches, two CPUs, TCG), one in each mode of
//! `vm.migrate_drain`, and one without a filter of functions.
//!
//! After a wanted change of the answer: `QUELL_BLESS=1 cargo test -p quell-trace --test golden`.

mod common;

use std::fs;
use std::path::PathBuf;

use quell_trace::{Analysis, Class, Group, Options, TraceError, analyze};

const NAMES: [&str; 3] = ["global", "targeted", "global-all-functions"];

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(file(&format!("{name}.txt"))).unwrap()
}

fn analyzed(text: &str) -> Analysis {
    analyze(text.as_bytes(), &Options::default()).unwrap()
}

fn group<'a>(analysis: &'a Analysis, part: &str) -> &'a Group {
    analysis.groups.iter().find(|group| group.label.contains(part)).expect("the guest labeled its calls")
}

#[test]
fn answers_are_as_recorded() {
    for name in NAMES {
        let options = Options { slowest: 1, ..Options::default() };
        let analysis = analyze(text(name).as_bytes(), &options).unwrap();
        let found = serde_json::to_string_pretty(&analysis).unwrap() + "\n";
        let path = file(&format!("{name}.json"));
        if std::env::var_os("QUELL_BLESS").is_some() {
            fs::write(&path, &found).unwrap();
        }
        let recorded = fs::read_to_string(&path).unwrap_or_default();
        assert!(found == recorded, "{name}: another answer than {}:\n{found}", path.display());
    }
}

#[test]
fn every_sum_adds_up() {
    for name in NAMES {
        let analysis = analyzed(&text(name));
        assert_eq!(analysis.unreadable_lines, 0, "{:?}", analysis.first_unreadable);
        assert!(common::breakdowns(&analysis).count() > 2);
        for breakdown in common::breakdowns(&analysis) {
            assert_eq!(breakdown.sum_ns(), breakdown.duration_ns);
            assert_eq!(breakdown.unaccounted_ns, 0);
        }
    }
}

#[test]
fn the_targeted_mode_has_neither_rcu_wait_nor_remote_drain() {
    let (global, targeted) = (analyzed(&text("global")), analyzed(&text("targeted")));
    for part in ["call=noop", "touched_by=same", "touched_by=other"] {
        let (before, after) = (&group(&global, part).breakdown, &group(&targeted, part).breakdown);
        for class in [Class::RcuWait, Class::RemoteDrain] {
            assert!(before.class_ns(class) > 0, "{part}: {class}");
            assert_eq!(after.class_ns(class), 0, "{part}: {class}");
            // Zero because nothing of the kind was called, not because it was not recorded.
            let part = after.classes.iter().find(|part| part.class == class).unwrap();
            assert_eq!(part.traced, Some(true));
        }
    }
    for class in [Class::Copy, Class::Unmap, Class::FolioDrain] {
        assert!(group(&targeted, "touched_by=other").breakdown.class_ns(class) > 0, "{class}");
    }
    // The worker that drains this CPU's batches is named.
    assert!(
        global
            .groups
            .iter()
            .flat_map(|group| &group.breakdown.off_cpu)
            .any(|off| off.who.contains("drain_per_cpu"))
    );
}

/// The first column is the time; the default options do not print it.
#[test]
fn without_times_the_rest_is_unaccounted_and_said() {
    let shorter: Vec<String> = text("global")
        .lines()
        .map(|line| {
            line.split_once(" |  ").filter(|_| line.contains(") ")).map_or(line, |(_, rest)| rest).to_owned()
        })
        .collect();
    let whole = analyzed(&text("global"));
    let analysis = analyzed(&shorter.join("\n"));
    assert_eq!(analysis.unreadable_lines, 0, "{:?}", analysis.first_unreadable);
    assert!(analysis.notes.iter().any(|note| note.contains("funcgraph-abstime")), "{:?}", analysis.notes);
    for breakdown in common::breakdowns(&analysis) {
        assert_eq!(breakdown.sum_ns(), breakdown.duration_ns);
    }
    let part = "touched_by=same";
    let (copied, timed) = (group(&analysis, part), group(&whole, part));
    assert_eq!(copied.breakdown.class_ns(Class::Copy), timed.breakdown.class_ns(Class::Copy));
    assert!(copied.breakdown.class_ns(Class::RcuWait) > 0);
}

/// Without the task's column, the lines between switches say who runs.
#[test]
fn without_the_tasks_the_switches_tell() {
    for name in NAMES {
        without_tasks(name);
    }
}

fn without_tasks(name: &str) {
    let shorter: Vec<String> = text(name)
        .lines()
        .map(|line| match line.split('|').collect::<Vec<_>>().as_slice() {
            [time, place, rest @ ..] if place.contains(')') && !rest.is_empty() => {
                format!("{time}|{}) {}", place.split(')').next().unwrap(), rest.join("|"))
            }
            _ => line.to_owned(),
        })
        .collect();
    let (whole, analysis) = (analyzed(&text(name)), analyzed(&shorter.join("\n")));
    assert_eq!(analysis.unreadable_lines, 0, "{:?}", analysis.first_unreadable);
    for group in whole.groups.iter().filter(|group| !group.label.is_empty()) {
        let found = analysis.groups.iter().find(|found| found.label == group.label).expect("the same labels");
        assert_eq!(found.breakdown, group.breakdown);
    }
}

#[test]
fn a_trace_that_was_cut_anywhere_is_analyzed_or_refused_with_a_reason() {
    let text = text("global");
    for length in (0..text.len()).step_by(97) {
        match analyze(&text.as_bytes()[..length], &Options::default()) {
            Ok(analysis) => assert!(common::breakdowns(&analysis).all(|sum| sum.sum_ns() == sum.duration_ns)),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    let end = text.find("} /* migrate_pages */").unwrap();
    let error = analyze(
        &text.as_bytes()[..end],
        &Options { calls: vec![String::from("migrate_pages")], ..Options::default() },
    );
    let error = error.unwrap_err().to_string();
    assert!(error.contains("no complete call of migrate_pages") && error.contains("ends before"), "{error}");
}

#[test]
fn other_calls_and_other_kernels_are_answered_in_words() {
    let options = |call: &str| Options { calls: vec![call.to_owned()], ..Options::default() };
    let text = text("global");
    // Any function can be the call.
    let analysis = analyze(text.as_bytes(), &options("migrate_pages")).unwrap();
    assert_eq!(analysis.call, "migrate_pages");
    // One that is a wait itself is that, and not the rest.
    let waits = analyze(text.as_bytes(), &options("synchronize_rcu_expedited")).unwrap();
    assert!(
        waits
            .slowest
            .iter()
            .all(|call| call.breakdown.class_ns(Class::RcuWait) == call.breakdown.duration_ns)
    );
    let error = analyze(text.as_bytes(), &options("do_fault")).unwrap_err();
    assert!(matches!(&error, TraceError::NoSuchCall { functions, outer: true, .. } if functions.len() == 2));
    assert!(error.to_string().contains("__x64_sys_move_pages, lru_add_drain_per_cpu"), "{error}");
    // A kernel whose functions have other names: all that is left is the rest.
    let renamed =
        text.replace("synchronize_rcu", "wait_for_grace").replace("lru_", "list_").replace("folio", "sheet");
    let analysis = analyzed(&renamed);
    assert_eq!(group(&analysis, "touched_by=same").breakdown.class_ns(Class::RcuWait), 0);
    let rcu = &group(&analysis, "touched_by=same").breakdown.classes[0];
    assert_eq!((rcu.class, rcu.traced), (Class::RcuWait, Some(false)));

    let error = analyze(&b"one\ntwo\n"[..], &Options::default()).unwrap_err().to_string();
    assert!(error.contains("not an ftrace text: line 1 is \"one\""), "{error}");
    let error = analyze(&b""[..], &Options::default()).unwrap_err().to_string();
    assert!(error.contains("it is empty"), "{error}");
    let events = "  bash-3  [002] .....  1.000001: sched_waking: comm=a pid=1 prio=120 target_cpu=000\n";
    let error = analyze(events.as_bytes(), &Options::default()).unwrap_err().to_string();
    assert!(error.contains("1 events (sched_waking) and no function graph"), "{error}");
}
