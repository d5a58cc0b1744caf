//! The process that does a job's work.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;

use quell_migrate::{Sample, Settings};

use crate::protocol::{Measurement, Message, Workload, to_line};

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
            let samples = quell_migrate::run(&plan, None)?;
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

fn measurement(sample: &Sample) -> Measurement {
    let mut dimensions = BTreeMap::from([
        (String::from("call"), sample.case.call.to_string()),
        (String::from("pages"), sample.case.pages.to_string()),
        (String::from("touched_by"), sample.case.touched_by.to_string()),
    ]);
    for (name, node) in [("from", sample.case.from), ("to", sample.case.to)] {
        if let Some(node) = node {
            dimensions.insert(name.to_owned(), node.to_string());
        }
    }
    let mut counts = BTreeMap::from([
        (String::from("arrived"), u64::from(sample.arrived)),
        (String::from("failed"), u64::from(sample.failed())),
        (String::from("misplaced"), u64::from(sample.misplaced)),
        (String::from("corrupt"), u64::from(sample.corrupt)),
    ]);
    counts.extend(sample.errors.iter().map(|(errno, pages)| (format!("errno_{errno}"), u64::from(*pages))));
    Measurement {
        metric: String::from("move_pages"),
        dimensions,
        value: sample.nanos as f64,
        unit: String::from("ns"),
        counts,
    }
}
