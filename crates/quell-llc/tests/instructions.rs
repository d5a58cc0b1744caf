//! How many instructions the prime and the probe loop execute for each line, counted by callgrind: a number that
//! does not depend on the load of the machine. `cargo test -p quell-llc --test instructions -- --nocapture` prints
//! them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::Command;

use quell_core::{Line, Memory};
use quell_llc::hw::HwMemory;

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends may have no counter any more.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Tells the child what to run: `prime`, `probe` or nothing, and on how many lines.
const LOOP: &str = "QUELL_TEST_LOOP";
const PAGES: u32 = 64;

fn lines(count: u32) -> Vec<Line> {
    (0..count).map(|i| Line::new(i * 7 % PAGES, i * 5)).collect()
}

fn run(what: &str, count: u32) {
    let mut memory = HwMemory::new(PAGES, 2.5e6).unwrap();
    let lines = lines(count);
    let mut samples = Vec::with_capacity(lines.len());
    let before = ALLOCATIONS.get();
    match what {
        "prime" => memory.load_shared(&lines),
        "probe" => memory.time(&lines, &mut samples),
        _ => {}
    }
    assert_eq!(ALLOCATIONS.get(), before, "{what} allocates");
}

#[test]
fn neither_loop_allocates() {
    run("prime", 1000);
    run("probe", 1000);
}

/// Only does something when started by [`the_loops_are_short`].
#[test]
fn child() {
    let Ok(order) = std::env::var(LOOP) else { return };
    let (what, count) = order.split_once(' ').unwrap();
    run(what, count.parse().unwrap());
}

/// Instructions of a whole child process.
fn instructions(what: &str, count: u32) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--test-threads=1"])
        .env(LOOP, format!("{what} {count}"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    let collected = text.lines().find_map(|line| line.split("Collected :").nth(1)).expect(&text);
    collected.trim().parse().expect(&text)
}

/// A division takes one instruction and dozens of cycles, so what is limited here is what is loaded, compared and
/// branched upon; the source has none.
#[test]
fn the_loops_are_short() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed");
        return;
    }
    let (few, many) = (20_000, 120_000);
    let slope =
        |what| (instructions(what, many) as f64 - instructions(what, few) as f64) / f64::from(many - few);
    let listing = slope("nothing");
    // As tests are compiled, with debug assertions: prime about 19, probe about 79.
    for (what, most) in [("prime", 24.0), ("probe", 96.0)] {
        let each = slope(what) - listing;
        println!("{what}: {each:.1} instructions a line");
        assert!(each < most, "{what}: {each:.1} instructions a line");
    }
}
