//! Any bytes as a trace: an answer whose parts add up, or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quell_trace::{Options, analyze};

fuzz_target!(|input: &[u8]| {
    let Ok(analysis) = analyze(input, &Options::default()) else { return };
    let groups = analysis.groups.iter().map(|group| &group.breakdown);
    let medians = analysis.groups.iter().filter_map(|group| group.median.as_ref());
    for breakdown in groups.chain(medians).chain(analysis.slowest.iter().map(|call| &call.breakdown)) {
        assert_eq!(breakdown.sum_ns(), breakdown.duration_ns);
    }
});
