//! `quell plug set`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use quell_plug::{Ending, Options, Outcome, Qmp, Size, resize};

use super::QMP_DEADLINE;
use crate::commands::values::time;
use crate::terminal;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// QMP socket of the QEMU
    #[arg(long, value_name = "SOCKET")]
    qmp: PathBuf,
    /// Id of the virtio-mem device, as `quell plug list` prints it
    #[arg(long, value_name = "ID")]
    device: String,
    /// Its new size, as QEMU writes sizes: 512M, 1.5G, or bytes
    #[arg(long, value_name = "SIZE")]
    size: Size,
    /// Wait until the guest has plugged or unplugged the memory
    #[arg(long)]
    wait: bool,
    /// Wait no longer than this; the request stays
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time, requires = "wait")]
    timeout: Duration,
    /// Print JSON (quell.plug-set/1)
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(serde::Serialize)]
struct Report<'a> {
    schema: &'static str,
    #[serde(flatten)]
    outcome: &'a Outcome,
    gb_per_s: Option<f64>,
    usable_s: Option<f64>,
    usable_reason: &'static str,
    explanation: Option<String>,
}

/// QEMU knows what was plugged, not what was brought online.
const USABLE: &str =
    "QEMU does not see what the guest has brought online; `quell plug watch` in the guest does";

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = terminal::stop_flag()?;
    let mut qmp = Qmp::open(&args.qmp, QMP_DEADLINE)?;
    let bar = terminal::progress(1, "waiting for the guest");
    let options = Options { wait: args.wait, timeout: args.timeout };
    let outcome = resize(
        &mut qmp,
        &args.device,
        args.size,
        options,
        &|| stop.load(Ordering::Relaxed),
        &mut |progress| {
            bar.set_length(progress.to.0.abs_diff(progress.from.0));
            bar.set_position(progress.now.0.abs_diff(progress.from.0));
        },
    );
    bar.finish_and_clear();
    let outcome = outcome?;
    if args.json {
        terminal::print_json(&Report {
            schema: "quell.plug-set/1",
            outcome: &outcome,
            gb_per_s: outcome.gb_per_s(),
            usable_s: None,
            usable_reason: USABLE,
            explanation: outcome.explanation(),
        })?;
    } else {
        terminal::print(&human(&outcome))?;
    }
    Ok(match outcome.ending {
        Ending::Plugged | Ending::NotAwaited => ExitCode::SUCCESS,
        Ending::TimedOut | Ending::Interrupted => ExitCode::from(1),
    })
}

fn human(outcome: &Outcome) -> String {
    let size = |bytes| Size(bytes).to_string();
    let mut text =
        format!("{}: from {} to {}\n", outcome.device, size(outcome.from_bytes), size(outcome.to_bytes));
    let now = size(outcome.size_bytes);
    text += &match (outcome.ending, outcome.plugged_s, outcome.gb_per_s()) {
        (_, Some(seconds), Some(rate)) if outcome.from_bytes != outcome.to_bytes => {
            format!("plugged  after {seconds:.2} s ({rate:.2} GB/s)\n")
        }
        (_, Some(_), _) => String::from("plugged  at once: it had that size\n"),
        (Ending::NotAwaited, ..) => format!("plugged  {now} so far; --wait waits for the guest\n"),
        (Ending::Interrupted, ..) => format!("plugged  {now} so far; the request stays\n"),
        _ => format!(
            "plugged  only {now} in time, and nothing for {:.1} s; the request stays\n",
            outcome.still_s
        ),
    };
    if outcome.to_bytes > outcome.from_bytes {
        text += &terminal::wrapped(&format!("usable   unknown: {USABLE}"));
    }
    if let Some(explanation) = outcome.explanation() {
        text += &terminal::wrapped(&explanation);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(ending: Ending) -> Outcome {
        Outcome {
            device: String::from("vmem0"),
            from_bytes: 0,
            to_bytes: 8 << 30,
            size_bytes: if ending == Ending::Plugged { 8 << 30 } else { 1 << 30 },
            ending,
            plugged_s: (ending == Ending::Plugged).then_some(2.0),
            first_change_s: Some(0.1),
            still_s: 30.0,
        }
    }

    #[test]
    fn plugged_and_usable_are_told_apart() {
        let text = human(&outcome(Ending::Plugged));
        assert!(text.starts_with("vmem0: from 0 to 8G\nplugged  after 2.00 s (4.29 GB/s)\nusable   unknown"));
        let text = human(&outcome(Ending::TimedOut));
        assert!(text.contains("plugged  only 1G in time, and nothing for 30.0 s"), "{text}");
        assert!(text.contains("has plugged a part"), "{text}");
        assert!(human(&outcome(Ending::NotAwaited)).contains("--wait"));
    }
}
