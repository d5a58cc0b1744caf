use super::*;

fn parse(line: &str) -> Line<'_> {
    LineParser::default().parse(line)
}

fn record(line: &str) -> Record<'_> {
    match parse(line) {
        Line::Record(record) => record,
        other => panic!("{line}: {other:?}"),
    }
}

const EXE: Option<Task<'static>> = Some(Task { comm: "exe", pid: 47 });

#[test]
fn the_graph_with_all_columns() {
    let what = What::Enter { depth: 1, function: "cpuset_mems_allowed" };
    let line = "    6.275044 |   0)     exe-47     |               |    cpuset_mems_allowed() {";
    assert_eq!(record(line), Record { time: Some(6_275_044_000), cpu: Some(0), task: EXE, what });

    let line = "    6.275054 |   1)     exe-47     | + 10.135 us   |    } /* cpuset_mems_allowed */";
    let duration = Some(Duration { nanos: 10_135, step: 1 });
    let what = What::Exit { depth: 1, function: Some("cpuset_mems_allowed"), duration };
    assert_eq!(record(line).what, what);

    let line = "    6.275264 |   0)     exe-47     |   2.574 us    |              save_fpregs_to_fpstate();";
    let duration = Some(Duration { nanos: 2_574, step: 1 });
    assert_eq!(record(line).what, What::Leaf { depth: 6, function: "save_fpregs_to_fpstate", duration });

    let line = "    6.275209 |   0)    <idle>-0    |               |                /* sched_switch: prev_comm=a ==> b */";
    assert_eq!(record(line).what, What::Event { name: "sched_switch", args: "prev_comm=a ==> b" });
    assert_eq!(record(line).task, Some(Task { comm: "<idle>", pid: 0 }));
}

#[test]
fn the_graph_with_fewer_columns() {
    assert_eq!(
        record(" 1)   0.123 us    |    f();"),
        Record {
            time: None,
            cpu: Some(1),
            task: None,
            what: What::Leaf { depth: 1, function: "f", duration: Some(Duration { nanos: 123, step: 1 }) },
        }
    );
    assert_eq!(record(" 0)               |  f() {").what, What::Enter { depth: 0, function: "f" });
    // With the flags of latency-format, and without durations.
    let line = " 12.000001 |   0)  bash-9  |  d..1. |   0.5 us      |  f();";
    assert_eq!(record(line).task, Some(Task { comm: "bash", pid: 9 }));
    assert_eq!(
        record(" 2)  f() {"),
        Record { cpu: Some(2), time: None, task: None, what: What::Enter { depth: 0, function: "f" } }
    );
}

#[test]
fn functions_with_modules_arguments_and_return_values() {
    for line in [
        " 0)   1.000 us    |  f [kvm]();",
        " 0)   1.000 us    |  f(a=0x1, b=2);",
        " 0)   1.000 us    |  f(); /* = 0x0 */",
        " 0)   1.000 us    |  f(); /* <-caller+0x10/0x20 ret=-22 */",
    ] {
        assert!(matches!(record(line).what, What::Leaf { function: "f", .. }), "{line}");
    }
    for line in [
        " 0)   1.000 us    |  } /* f = 0x0 */",
        " 0)   1.000 us    |  } /* f ret=0 */",
        " 0)   1.000 us    |  } /* f */",
    ] {
        assert!(matches!(record(line).what, What::Exit { function: Some("f"), .. }), "{line}");
    }
    assert!(matches!(record(" 0)   1.000 us    |  }").what, What::Exit { function: None, .. }));
    assert_eq!(
        record(" 0)               |  f() { /* <-caller+0x10/0x20 */").what,
        What::Enter { depth: 0, function: "f" }
    );
    assert!(matches!(record(" 0)   1.0 us |  f.isra.0();").what, What::Leaf { function: "f.isra.0", .. }));
}

#[test]
fn durations_lose_digits_as_they_grow() {
    let nanos = |text| micros(text).map(|duration| (duration.nanos, duration.step));
    assert_eq!(nanos("9999.999 us"), Some((9_999_999, 1)));
    assert_eq!(nanos("* 12345.67 us"), Some((12_345_670, 10)));
    assert_eq!(nanos("# 123456.7 us"), Some((123_456_700, 100)));
    assert_eq!(nanos("$ 1234567 us"), Some((1_234_567_000, 1000)));
    assert_eq!(nanos("1.2345 us"), None);
    assert_eq!(nanos("us"), None);
    assert_eq!(nanos("99999999999999999999 us"), None);
}

#[test]
fn lines_that_are_no_records() {
    assert_eq!(parse(""), Line::Nothing);
    assert_eq!(parse(" ------------------------------------------"), Line::Nothing);
    assert_eq!(parse("# tracer: function_graph"), Line::Tracer("function_graph"));
    assert_eq!(parse("# functions traced: a b"), Line::Traced("a b"));
    assert_eq!(parse("#     TIME        CPU  TASK/PID"), Line::Nothing);
    assert_eq!(
        parse(" 1)    <idle>-0    =>   rcu_pre-16  "),
        Line::NowRunning {
            cpu: 1,
            from: Task { comm: "<idle>", pid: 0 },
            task: Task { comm: "rcu_pre", pid: 16 }
        }
    );
    assert_eq!(parse("CPU:1 [LOST 1234 EVENTS]"), Line::Lost { cpu: 1, events: Some(1234) });
    assert_eq!(parse("CPU:0 [LOST EVENTS]"), Line::Lost { cpu: 0, events: None });
    assert_eq!(
        parse("# entries-in-buffer/entries-written: 100/350   #P:2"),
        Line::Overwritten { cpu: None, events: 250 }
    );
    assert_eq!(parse("# cpu 1 overrun: 7"), Line::Overwritten { cpu: Some(1), events: 7 });
    assert_eq!(parse("# cpu 1 dropped events: 3"), Line::Dropped { cpu: 1, events: 3 });
    assert_eq!(parse("    6.1 |   0)   exe-47     |   ==========> |"), Line::Nothing);
    assert_eq!(parse("    6.1 |   0)   exe-47     |   <========== |"), Line::Nothing);
}

#[test]
fn plain_events() {
    let line = "            bash-1977    (   1977) [001] d..2.  12.345678: sched_switch: prev_comm=a ==> b";
    let what = What::Event { name: "sched_switch", args: "prev_comm=a ==> b" };
    let task = Some(Task { comm: "bash", pid: 1977 });
    assert_eq!(record(line), Record { time: Some(12_345_678_000), cpu: Some(1), task, what });
    let line = "  <...>-1977  [001]  12.345678901: sched_switch: x";
    assert_eq!(record(line).time, Some(12_345_678_901));
    let line = "  my [1] task-3  [002] .....  1.000001: tracing_mark_write: quell: call=move";
    assert_eq!(record(line).what, What::Event { name: "quell", args: "call=move" });
    let line = "  bash-3  [002] .....  1.000001: mutex_lock <-do_it";
    assert_eq!(record(line).what, What::Event { name: "function", args: "mutex_lock <-do_it" });
}

#[test]
fn the_graph_of_trace_cmd() {
    let line =
        "     exe-47    [000]     6.275044: funcgraph_entry:                   |    cpuset_mems_allowed() {";
    let what = What::Enter { depth: 1, function: "cpuset_mems_allowed" };
    assert_eq!(record(line), Record { time: Some(6_275_044_000), cpu: Some(0), task: EXE, what });
    let line = "     exe-47    [000]     6.275054: funcgraph_exit:       + 10.135 us   |    }";
    let duration = Some(Duration { nanos: 10_135, step: 1 });
    assert_eq!(record(line).what, What::Exit { depth: 1, function: None, duration });
    let line = "     exe-47    [000]     6.275054: funcgraph_entry:        0.5 us   |  f();";
    assert!(matches!(record(line).what, What::Leaf { depth: 0, function: "f", .. }));
}

#[test]
fn other_text_is_unreadable_and_not_a_panic() {
    for line in [
        "hello",
        "{\"json\": true}",
        "a | b | c",
        "int main() {",
        "main() {",
        "f();",
        "-[",
        "[1]",
        " 99999)  f();",
        "/* x */",
        "é|é) é",
        "1) |",
    ] {
        let parsed = parse(line);
        assert_eq!(parsed, Line::Unreadable, "{line}");
    }
    // A line that was cut.
    assert_eq!(
        parse("    6.275209 |   0)    exe-47    |               |      /* sched_switch: prev_c"),
        Line::Unreadable
    );
    assert_eq!(parse("    6.275209 |   0)    exe-47    |           "), Line::Unreadable);
}
