//! Whatever the input is, the analysis ends with an answer that adds up, or with an error in words.

mod common;

use proptest::prelude::*;
use quell_trace::{Line, LineParser, Options, analyze};

const GOLDEN: &str = include_str!("golden/global.txt");

/// Pieces of lines, to get further into the parser than random bytes do.
const PIECES: [&str; 24] = [
    "    6.275042 |",
    "   0) ",
    "  exe-47  ",
    " | ",
    "              |",
    " + 10.135 us  |",
    "  f() {",
    "    g();",
    "  } /* f */",
    "  }",
    "/* sched_switch: ",
    "prev_comm=",
    " prev_pid=",
    " ==> ",
    " next_pid=47",
    " */",
    "__x64_sys_move_pages() {",
    "CPU:0 [LOST 3 EVENTS]",
    "=>",
    "# cpu 0 overrun: 3",
    "99999999999999999999",
    "\u{e9}|\u{fffd}",
    "  exe-47 [000] d..1. 6.2: ",
    "funcgraph_entry: ",
];

fn check(input: &[u8]) {
    match analyze(input, &Options::default()) {
        Ok(analysis) => {
            for breakdown in common::breakdowns(&analysis) {
                assert_eq!(breakdown.sum_ns(), breakdown.duration_ns);
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_bytes(input in prop::collection::vec(any::<u8>(), 0..2000)) {
        check(&input);
    }

    #[test]
    fn pieces_of_lines(pieces in prop::collection::vec(prop::collection::vec(0..PIECES.len(), 1..8), 0..40)) {
        let lines: Vec<String> = pieces.iter().map(|line| line.iter().map(|piece| PIECES[*piece]).collect()).collect();
        check(lines.join("\n").as_bytes());
    }

    /// A real trace with lines lost, doubled and exchanged, and some bytes wrong.
    #[test]
    fn a_broken_trace(
        changes in prop::collection::vec((0..4, any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..30),
    ) {
        let mut lines: Vec<Vec<u8>> = GOLDEN.lines().map(|line| line.as_bytes().to_vec()).collect();
        for (kind, at, other, byte) in changes {
            let (at, other) = (at.index(lines.len()), other.index(lines.len()));
            match kind {
                0 => drop(lines.remove(at)),
                1 => lines.insert(at, lines[other].clone()),
                2 => lines.swap(at, other),
                _ => {
                    let place = other % lines[at].len().max(1);
                    if let Some(target) = lines[at].get_mut(place) {
                        *target = byte;
                    }
                }
            }
        }
        check(&lines.join(&b'\n'));
    }

    /// Each line is read or refused by itself, and what is read can be printed.
    #[test]
    fn any_line(line in "\\PC{0,120}") {
        let mut parser = LineParser::default();
        let parsed = parser.parse(&line);
        let printed = format!("{parsed:?}");
        prop_assert!(!printed.is_empty());
        prop_assert!(!matches!(parsed, Line::Record(record) if record.cpu.is_some_and(|cpu| cpu > 8192)));
    }
}
