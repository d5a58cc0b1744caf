//! The `quell` command.

#![forbid(unsafe_code)]

mod commands;
mod terminal;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use quell_lab::agent;

/// Finds and explains memory stalls inside Linux virtual machines.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure how contended the last-level cache of this machine is (about 15 s).
    Scan(commands::scan::Args),
    /// Keep measuring: one line per period and cache until stopped.
    Watch(commands::watch::Args),
    /// Show how cache hits and misses are told apart here, and which window suits the load.
    Calibrate(commands::calibrate::Args),
    /// Check whether measurements on this machine can be trusted, and what to do where not (about 9 s).
    Doctor(commands::doctor::Args),
    /// Sort pages by the cache sets they compete for, and test whether that partitions the LLC (about 2 s).
    Colors(commands::colors::Args),
    /// Build eviction sets of the last-level cache and verify each (up to a minute).
    Evsets(commands::evsets::Args),
    /// Show CPUs, caches and NUMA nodes, and which vCPUs really share a cache.
    Topo(commands::topo::Args),
    /// Measure what moving pages between NUMA nodes costs here, beyond the copy.
    Migrate(commands::migrate::Args),
    /// Explain recorded traces: where the time of each slow kernel call went.
    Trace(commands::trace::Args),
    /// Resize a VM's memory, and see inside the guest when it can be used.
    Plug(commands::plug::Args),
    /// Build a kernel, boot it in QEMU, and run A/B experiments on fresh guests.
    Lab(commands::lab::Args),
    /// Measure how well the measurements themselves work.
    Bench(commands::bench::Args),
}

fn main() -> ExitCode {
    // In a guest of the lab this binary is the first process, and starts itself again for each job.
    if agent::is_init() {
        agent::run_init();
    }
    if std::env::args_os().nth(1).is_some_and(|arg| arg == agent::WORK_ARG) {
        return commands::lab::work();
    }
    let outcome = match Cli::parse().command {
        Command::Scan(args) => commands::scan::run(&args),
        Command::Watch(args) => commands::watch::run(&args),
        Command::Calibrate(args) => commands::calibrate::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Colors(args) => commands::colors::run(&args),
        Command::Evsets(args) => commands::evsets::run(&args),
        Command::Topo(args) => commands::topo::run(&args),
        Command::Migrate(args) => commands::migrate::run(&args),
        Command::Trace(args) => commands::trace::run(&args),
        Command::Plug(args) => commands::plug::run(&args),
        Command::Lab(args) => commands::lab::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) if terminal::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::complain(&format!("error: {error:#}"));
            ExitCode::from(2)
        }
    }
}
