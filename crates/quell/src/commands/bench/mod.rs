//! `quell bench`: how well do the measurements work?

mod build;
mod detect;
mod truth;

use std::process::ExitCode;

use anyhow::Result;

/// Measures how well the measurements themselves work.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, clap::Subcommand)]
enum Bench {
    /// Are LLC eviction sets right, and what do they cost? Simulated machines with known truth (some minutes)
    Build(build::Args),
    /// Does the monitor see a polluter on another vCPU of this machine? (about a minute)
    Detect(detect::Args),
    /// Are the monitor's intervals right? Simulated machines with known truth (some minutes)
    Truth(truth::Args),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.bench {
        Bench::Build(args) => build::run(args),
        Bench::Detect(args) => detect::run(args),
        Bench::Truth(args) => truth::run(args),
    }
}
