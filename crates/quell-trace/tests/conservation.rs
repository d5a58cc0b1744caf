//! Generated calls with known parts, printed as the kernel prints them: the analysis has to find the parts.

mod common;

use common::{Item, Layout, Node, render};
use proptest::prelude::*;
use quell_trace::{Analysis, Class, Options, analyze};

/// Functions with and without a class of their own.
const FUNCTIONS: [&str; 12] = [
    "helper",
    "other_helper.isra.0",
    "lru_cache_disable",
    "synchronize_rcu_expedited",
    "__lru_add_drain_all",
    "lru_drain_folio",
    "folio_mc_copy",
    "try_to_migrate",
    "flush_tlb_mm_range",
    "alloc_migration_target",
    "__sysvec_apic_timer_interrupt",
    "folio_isolate_lru",
];

fn nanos() -> impl Strategy<Value = u64> {
    // Mostly microseconds; at times milliseconds, whose last digits are not printed.
    prop_oneof![8 => 1_u64..20_000, 1 => 0_u64..3, 1 => 1_000_000_u64..40_000_000]
}

fn item() -> impl Strategy<Value = Item> {
    let off =
        (nanos(), nanos(), any::<bool>(), any::<bool>()).prop_map(|(blocked, runnable, sleeps, worker)| {
            Item::Off { blocked: if sleeps { blocked } else { 0 }, runnable: runnable + 1, sleeps, worker }
        });
    prop_oneof![3 => nanos().prop_map(Item::Run), 1 => off]
}

fn node() -> impl Strategy<Value = Node> {
    let function = || (0..FUNCTIONS.len()).prop_map(|index| FUNCTIONS[index]);
    let leaf = (function(), prop::collection::vec(item(), 0..3))
        .prop_map(|(function, items)| Node { function, items });
    leaf.prop_recursive(5, 40, 5, move |inner| {
        let part = prop_oneof![2 => item(), 3 => inner.prop_map(Item::Call)];
        (function(), prop::collection::vec(part, 0..5)).prop_map(|(function, items)| Node { function, items })
    })
}

fn call() -> impl Strategy<Value = Node> {
    let part = prop_oneof![1 => item(), 3 => node().prop_map(Item::Call)];
    prop::collection::vec(part, 0..6).prop_map(|items| Node { function: "__x64_sys_move_pages", items })
}

fn layout() -> impl Strategy<Value = Layout> {
    (any::<bool>(), any::<bool>()).prop_map(|(tail, trace_cmd)| Layout { tail, trace_cmd })
}

fn analyzed(text: &str) -> Analysis {
    let options = Options { slowest: 100, ..Options::default() };
    analyze(text.as_bytes(), &options).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_parts_are_found_and_sum_up(calls in prop::collection::vec(call(), 1..4), layout in layout()) {
        let rendered = render(&calls, layout);
        let analysis = analyzed(&rendered.text);
        prop_assert_eq!(analysis.unreadable_lines, 0, "{:?}\n{}", analysis.first_unreadable, rendered.text);
        prop_assert_eq!(analysis.slowest.len(), calls.len(), "{:?}\n{}", analysis.groups, rendered.text);
        for truth in &rendered.truth {
            let call = analysis.slowest.iter().find(|call| call.label == truth.label);
            let breakdown = &call.expect("every call has a label of its own").breakdown;
            prop_assert_eq!(breakdown.sum_ns(), breakdown.duration_ns);
            prop_assert_eq!(breakdown.unaccounted_ns, 0);
            // From 10 ms on, the last digits are not printed.
            let step = if truth.duration < 10_000_000 { 1 } else { 1_000 };
            prop_assert!(truth.duration - breakdown.duration_ns < step, "{breakdown:?} {truth:?}");
            // Switches have times in whole microseconds, durations of 10 ms and more lose digits.
            let tolerance = 2_000 * truth.switches + step * (1 + truth.functions);
            for class in Class::ALL {
                let (found, real) = (breakdown.class_ns(class), truth.class(class));
                prop_assert!(
                    found.abs_diff(real) <= tolerance,
                    "{class}: {found} instead of {real} (tolerance {tolerance})\n{}", rendered.text
                );
            }
            let worker: u64 =
                breakdown.off_cpu.iter().filter(|off| off.who.contains("drain_worker")).map(|off| off.off_ns).sum();
            prop_assert!(worker.abs_diff(truth.worker) <= tolerance, "{worker} instead of {}", truth.worker);
        }
        for group in &analysis.groups {
            prop_assert_eq!(group.breakdown.sum_ns(), group.breakdown.duration_ns);
        }
    }

    /// A gap in a call makes it unknown; the other calls stay as they are.
    #[test]
    fn a_call_with_a_gap_is_left_out(calls in prop::collection::vec(call(), 2..4), at in 0.0..1.0_f64) {
        let rendered = render(&calls, Layout { tail: true, trace_cmd: false });
        let whole = analyzed(&rendered.text);
        let lines: Vec<&str> = rendered.text.lines().collect();
        let (first, last) = rendered.lines_of_first_call;
        prop_assume!(last > first + 1);
        let at = first + 1 + ((last - first - 1) as f64 * at) as usize;
        let mut broken = lines.clone();
        broken.insert(at, "CPU:0 [LOST 7 EVENTS]");
        let analysis = analyzed(&broken.join("\n"));
        prop_assert_eq!(analysis.lost.len(), 1);
        let calls = |analysis: &Analysis| analysis.groups.iter().map(|group| group.calls).sum::<u64>();
        prop_assert_eq!(calls(&analysis), calls(&whole) - 1);
        prop_assert_eq!(analysis.groups.iter().flat_map(|group| &group.incomplete).count(), 1);
    }

    /// Lines that are missing without a word must not give sums that do not add up.
    #[test]
    fn missing_lines_never_break_a_sum(
        calls in prop::collection::vec(call(), 1..4),
        holes in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        layout in layout(),
    ) {
        let rendered = render(&calls, layout);
        let mut lines: Vec<&str> = rendered.text.lines().collect();
        for hole in holes {
            if !lines.is_empty() {
                lines.remove(hole.index(lines.len()));
            }
        }
        if let Ok(analysis) = analyze(lines.join("\n").as_bytes(), &Options::default()) {
            for breakdown in common::breakdowns(&analysis) {
                prop_assert_eq!(breakdown.sum_ns(), breakdown.duration_ns);
            }
        }
    }
}
