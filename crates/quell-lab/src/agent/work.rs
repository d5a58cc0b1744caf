//! The process that does a job's work.

use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use quell_migrate::{Case, Sample, Settings};

use crate::protocol::{Measurement, Message, Workload, to_line};

/// Variable with the file to which a traced job writes what it is about to do.
pub(super) const MARKER: &str = "QUELL_TRACE_MARKER";

/// Reads a workload from standard input, runs it, and writes what it measured to standard output.
///
/// # Errors
/// What the workload reports, in words.
pub fn run_workload() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let messages = match serde_json::from_str(&text)? {
        Workload::Migrate(plan) => {
            let settings = Settings::quiesce(Path::new("/"))?;
            let mut marker =
                env::var_os(MARKER).map(|path| File::options().write(true).open(path)).transpose()?;
            let samples = quell_migrate::run_announced(&plan, None, &mut |case| {
                if let Some(marker) = &mut marker {
                    // A lost label leaves its call among the unlabeled ones; no reason to stop.
                    let _ = marker.write_all(label(case).as_bytes());
                }
            })?;
            let samples = samples.iter().map(|sample| Message::Sample(measurement(sample)));
            std::iter::once(Message::Settings(settings)).chain(samples).collect::<Vec<_>>()
        }
        Workload::Quell(_) | Workload::Program(_) => return Err("a command is run by its own name".into()),
    };
    // Only now: writing earlier would put the agent's work on the CPUs that are measured.
    let mut out = io::BufWriter::new(io::stdout().lock());
    for message in messages {
        out.write_all(&to_line(&message))?;
    }
    out.flush()?;
    Ok(())
}

/// What the trace calls a case: `quell: ` and its dimensions.
fn label(case: &Case) -> String {
    let words: Vec<String> = dimensions(case).iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!("quell: {}", words.join(" "))
}

fn dimensions(case: &Case) -> BTreeMap<String, String> {
    let mut dimensions = BTreeMap::from([
        (String::from("call"), case.call.to_string()),
        (String::from("pages"), case.pages.to_string()),
        (String::from("touched_by"), case.touched_by.to_string()),
    ]);
    for (name, node) in [("from", case.from), ("to", case.to)] {
        if let Some(node) = node {
            dimensions.insert(name.to_owned(), node.to_string());
        }
    }
    dimensions
}

fn measurement(sample: &Sample) -> Measurement {
    let mut counts = BTreeMap::from([
        (String::from("arrived"), u64::from(sample.arrived)),
        (String::from("failed"), u64::from(sample.failed())),
        (String::from("misplaced"), u64::from(sample.misplaced)),
        (String::from("corrupt"), u64::from(sample.corrupt)),
    ]);
    counts.extend(sample.errors.iter().map(|(errno, pages)| (format!("errno_{errno}"), u64::from(*pages))));
    Measurement {
        metric: String::from("move_pages"),
        dimensions: dimensions(&sample.case),
        value: sample.nanos as f64,
        unit: String::from("ns"),
        counts,
    }
}
