//! Interrupts between the moment when the tracer reads the clock and the moment when it records: lines from a guest
//! of the lab, with an outermost function around them.

use quell_trace::{Analysis, Class, Options, analyze};

fn analyzed(lines: &str) -> Analysis {
    let options = Options {
        calls: vec![String::from("migrate_folio_move"), String::from("add_folio_for_migration")],
        ..Options::default()
    };
    let analysis = analyze(lines.as_bytes(), &options).unwrap();
    for call in &analysis.slowest {
        assert_eq!(call.breakdown.sum_ns(), call.breakdown.duration_ns);
    }
    analysis
}

/// The interrupt is printed before `rmap_walk`, one step too deep, and is part of its 303.934 us.
#[test]
fn an_interrupt_before_an_entry_is_counted_once() {
    let analysis = analyzed(
        "   13.919217 |   0)     exe-47     |               |            migrate_folio_move() {
   13.919218 |   0)     exe-47     |               |              move_to_new_folio() {
   13.919219 |   0)     exe-47     | + 10.175 us   |                folio_mc_copy();
   13.919230 |   0)     exe-47     |   1.181 us    |                folio_migrate_flags();
   13.919232 |   0)     exe-47     | + 14.262 us   |              } /* move_to_new_folio */
   13.919233 |   0)     exe-47     |   1.131 us    |              folio_add_lru();
   13.919384 |   0)     exe-47     | ! 136.965 us  |                __sysvec_apic_timer_interrupt();
   13.919523 |   0)     exe-47     |   2.875 us    |                irq_exit_rcu();
   13.919532 |   0)     exe-47     | ! 303.934 us  |              rmap_walk();
   13.919540 |   0)     exe-47     |   4.046 us    |              migrate_folio_done();
   13.919545 |   0)     exe-47     | ! 328.571 us  |            } /* migrate_folio_move */
",
    );
    assert!(!analysis.notes.iter().any(|note| note.contains("return")), "{:?}", analysis.notes);
    let breakdown = &analysis.slowest[0].breakdown;
    assert_eq!(breakdown.duration_ns, 328_571);
    assert_eq!(breakdown.class_ns(Class::Interrupt), 136_965 + 2_875);
    assert_eq!(breakdown.class_ns(Class::Remap), 303_934 - 136_965 - 2_875);
    assert_eq!(breakdown.class_ns(Class::Copy), 10_175);
}

/// Here it came after the return before, and is part of neither function.
#[test]
fn an_interrupt_between_two_functions_is_their_callers() {
    for times in [true, false] {
        let mut lines = String::from(
            "   13.575200 |   0)     exe-47     |               |          migrate_folio_move() {
   13.575234 |   0)     exe-47     |   1.482 us    |            alloc_migration_target();
   13.575357 |   0)     exe-47     | ! 124.707 us  |              __sysvec_apic_timer_interrupt();
   13.575484 |   0)     exe-47     |   2.493 us    |              irq_exit_rcu();
   13.575493 |   0)     exe-47     |               |            try_to_migrate() {
   13.575498 |   0)     exe-47     |               |              ptep_clear_flush() {
   13.575499 |   0)     exe-47     |   2.504 us    |                flush_tlb_mm_range();
   13.575503 |   0)     exe-47     |   5.008 us    |              } /* ptep_clear_flush */
   13.575507 |   0)     exe-47     | + 14.702 us   |            } /* try_to_migrate */
   13.575520 |   0)     exe-47     | ! 320.000 us  |          } /* migrate_folio_move */
",
        );
        if !times {
            lines = lines.lines().map(|line| format!("{}\n", &line[15..])).collect();
        }
        let breakdown = &analyzed(&lines).slowest[0].breakdown;
        assert_eq!(breakdown.class_ns(Class::Interrupt), 124_707 + 2_493);
        assert_eq!(breakdown.class_ns(Class::Unmap), 14_702 - 5_008);
        assert_eq!(breakdown.duration_ns, 320_000);
    }
}

/// The interrupt is printed inside the function, whose 5.499 us had ended before.
#[test]
fn an_interrupt_before_a_return_lengthens_the_function_to_its_lines() {
    let analysis = analyzed(
        "   13.743228 |   0)     exe-47     |               |    add_folio_for_migration() {
   13.743229 |   0)     exe-47     |               |      migrate_isolate_folio() {
   13.743230 |   0)     exe-47     |   1.182 us    |        folio_isolate_lru();
   13.743232 |   0)     exe-47     |   3.014 us    |      } /* migrate_isolate_folio */
   13.743387 |   0)     exe-47     | ! 176.233 us  |      __sysvec_apic_timer_interrupt();
   13.743565 |   0)     exe-47     | + 36.505 us   |      irq_exit_rcu();
   13.743605 |   0)     exe-47     |   5.499 us    |    } /* add_folio_for_migration */
",
    );
    assert!(analysis.notes.iter().any(|note| note.contains("return of 1 function")), "{:?}", analysis.notes);
    let breakdown = &analysis.slowest[0].breakdown;
    assert_eq!(breakdown.duration_ns, 377_000);
    assert_eq!(breakdown.class_ns(Class::Interrupt), 176_233 + 36_505);
}
