//! `quell plug watch`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use quell_plug::guest::Memory;

use crate::commands::values::{positive_time, time};
use crate::terminal;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Time from one line to the next
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive_time)]
    period: Duration,
    /// Stop after this time [default: run until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = time)]
    duration: Option<Duration>,
    /// Also print the zones
    #[arg(long)]
    zones: bool,
    /// Print one JSON object per line (quell.plug-watch/1)
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(serde::Serialize)]
struct Record<'a> {
    schema: &'static str,
    time_s: f64,
    #[serde(flatten)]
    memory: &'a Memory,
    headroom_bytes: Option<u64>,
    converged: bool,
}

/// The column heads are repeated after so many lines.
const LINES_PER_HEAD: u32 = 30;

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let stop = terminal::stop_flag()?;
    let start = Instant::now();
    let mut before: Option<Memory> = None;
    for line in 0_u32.. {
        let memory = Memory::read(Path::new("/"))?;
        let converged = converged(before.as_ref(), &memory);
        let time_s =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
        if args.json {
            let headroom_bytes = memory.headroom_bytes();
            let record =
                Record { schema: "quell.plug-watch/1", time_s, memory: &memory, headroom_bytes, converged };
            terminal::print(&(serde_json::to_string(&record)? + "\n"))?;
        } else {
            if line % LINES_PER_HEAD == 0 {
                terminal::print(&head())?;
            }
            terminal::print(&row(time_s, &memory, converged))?;
            if args.zones {
                terminal::print(&zones(&memory))?;
            }
        }
        before = Some(memory);
        let next = args.period * (line + 1);
        let over = args.duration.is_some_and(|duration| next > duration);
        if over || !sleep_until(start + next, &stop) {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether nothing is under way: all that was added is in use, and is as much as a period ago.
fn converged(before: Option<&Memory>, now: &Memory) -> bool {
    now.all_online()
        && before.is_some_and(|before| before.total_bytes == now.total_bytes && before.blocks == now.blocks)
}

/// `false` if the user ended it.
fn sleep_until(end: Instant, stop: &AtomicBool) -> bool {
    while !stop.load(Ordering::Relaxed) {
        let rest = end.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return true;
        }
        thread::sleep(rest.min(Duration::from_millis(50)));
    }
    false
}

fn head() -> String {
    format!(
        "{:>8} {:>12} {:>13} {:>8} {:>11} {:>14} {:<9}\n",
        "UTC", "total MiB", "available MiB", "blocks", "not online", "can take MiB", "state"
    )
}

fn row(time_s: f64, memory: &Memory, converged: bool) -> String {
    let mib = |bytes: Option<u64>| bytes.map_or_else(|| String::from("-"), |bytes| (bytes >> 20).to_string());
    let count = |count: Option<u64>| count.map_or_else(|| String::from("-"), |count| count.to_string());
    let seconds = time_s as u64 % 86_400;
    format!(
        "{:02}:{:02}:{:02} {:>12} {:>13} {:>8} {:>11} {:>14} {:<9}\n",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        mib(Some(memory.total_bytes)),
        mib(memory.available_bytes),
        count(memory.blocks.map(|blocks| blocks.online)),
        count(memory.blocks.map(|blocks| blocks.not_online)),
        mib(memory.headroom_bytes()),
        if converged { "converged" } else { "changing" },
    )
}

fn zones(memory: &Memory) -> String {
    let line = |zone: &quell_plug::guest::Zone| {
        format!(
            "{:>8} node {} {:<8} min {} low {} high {} spanned {} present {} managed {} pages\n",
            "",
            zone.node,
            zone.name,
            zone.min_pages,
            zone.low_pages,
            zone.high_pages,
            zone.spanned_pages,
            zone.present_pages,
            zone.managed_pages
        )
    };
    memory.zones.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use quell_plug::guest::Blocks;

    use super::*;

    fn memory(total_bytes: u64, not_online: u64) -> Memory {
        let blocks = Blocks { block_bytes: 128 << 20, online: 16, not_online };
        Memory { total_bytes, available_bytes: Some(1 << 30), blocks: Some(blocks), zones: vec![] }
    }

    #[test]
    fn converged_means_that_nothing_is_under_way() {
        assert!(converged(Some(&memory(5, 0)), &memory(5, 0)));
        assert!(!converged(None, &memory(5, 0)));
        assert!(!converged(Some(&memory(4, 0)), &memory(5, 0)));
        assert!(!converged(Some(&memory(5, 1)), &memory(5, 1)));
    }

    #[test]
    fn rows_stand_below_their_heads() {
        let text = row(3661.0, &memory(2 << 30, 3), false);
        assert_eq!(text.trim_end().len(), head().trim_end().len() + "changing".len() - "state".len());
        assert!(text.starts_with("01:01:01         2048          1024       16           3          65536"));
    }
}
