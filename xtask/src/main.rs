//! Development tasks, run as `cargo xtask TASK`.
//!
//! Exit codes: 0 all steps passed or were skipped with a reason, 1 a step failed, 2 the task could not run.

#![forbid(unsafe_code)]

mod lab;
mod step;
mod summary;
mod test;
mod tools;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Sets a machine up for Quell and runs its tests")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Check formatting, lints, tests, doc tests and documentation of the whole workspace.
    Test(test::Args),
    /// Install what building kernels and booting guests needs (Debian 12 and 13).
    LabSetup(lab::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().task {
        Task::Test(args) => test::run(&args),
        Task::LabSetup(args) => lab::setup(&args),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}
