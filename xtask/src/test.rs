//! `cargo xtask test`: everything that can be checked without booting a guest, or with `--lab` the rest.

use anyhow::Result;

use crate::step::{self, Action, Invocation, Outcome, Step};
use crate::summary;
use crate::tools::{GET_CLIPPY, GET_LINKER, GET_RUSTFMT, Tools};

/// Which tier of tests to run.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run the lab tests instead: build kernels and boot real guests (up to an hour the first time).
    #[arg(long)]
    lab: bool,
    /// The lab tests with the experiments in full length; implies --lab.
    #[arg(long)]
    full: bool,
}

/// Runs the tier; `true` if no step failed.
///
/// # Errors
///
/// A command could not be started.
pub fn run(args: &Args) -> Result<bool> {
    let lab = args.lab || args.full;
    let steps = if lab { crate::lab::steps(args.full) } else { steps(Tools::find()) };
    let reports = step::run_all(steps)?;
    println!("\n{}", summary::render(&reports));
    let passed = !reports.iter().any(|report| matches!(report.outcome, Outcome::Failed(_)));
    if passed && !lab {
        println!("Next tier: cargo xtask test --lab (builds kernels, tests in real guests)");
    }
    Ok(passed)
}

/// Cheap checks come first; the tests come last, so that their runner's own summary ends the log.
fn steps(tools: Tools) -> Vec<Step> {
    let linked = |available: bool, hint: &str, invocation: Invocation| match (tools.linker, available) {
        (false, _) => Action::Skip(GET_LINKER.to_owned()),
        (true, false) => Action::Skip(hint.to_owned()),
        (true, true) => Action::Run(invocation),
    };
    let formatting = Invocation::cargo(&["fmt", "--all", "--check"]);
    vec![
        Step {
            name: "fmt",
            purpose: "the source is formatted as rustfmt.toml says",
            action: if tools.rustfmt {
                Action::Run(formatting)
            } else {
                Action::Skip(GET_RUSTFMT.to_owned())
            },
        },
        Step {
            name: "clippy",
            purpose: "no compiler or clippy warning in any target of the workspace",
            action: linked(
                tools.clippy,
                GET_CLIPPY,
                Invocation::cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
            ),
        },
        Step {
            name: "doc tests",
            purpose: "the examples in the documentation compile and run",
            action: linked(true, "", Invocation::cargo(&["test", "--workspace", "--doc"])),
        },
        Step {
            name: "doc",
            purpose: "the documentation builds without a broken link or another warning",
            action: linked(
                true,
                "",
                Invocation::cargo(&["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"),
            ),
        },
        Step {
            name: "tests",
            purpose: "unit, property and integration tests of every crate",
            action: linked(true, "", test_runner(tools.nextest)),
        },
    ]
}

/// nextest runs the tests of all crates at once, each in its own process with a time limit
/// (`.config/nextest.toml`); without it, cargo's own runner does the same tests.
fn test_runner(nextest: bool) -> Invocation {
    if nextest {
        Invocation::cargo(&["nextest", "run", "--workspace"])
    } else {
        Invocation::cargo(&["test", "--workspace", "--lib", "--bins", "--tests", "--examples"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Tools = Tools { rustfmt: true, clippy: true, nextest: true, linker: true };

    fn command(step: &Step) -> Option<String> {
        match &step.action {
            Action::Run(invocation) => Some(invocation.as_typed()),
            Action::Skip(_) => None,
        }
    }

    #[test]
    fn with_all_tools_nothing_is_skipped() {
        assert!(steps(ALL).iter().all(|step| command(step).is_some()));
    }

    #[test]
    fn a_missing_component_skips_its_step_alone_and_says_how_to_get_it() {
        let skipped = |tools: Tools| -> Vec<(&str, String)> {
            let reason = |step: &Step| match &step.action {
                Action::Skip(reason) => Some((step.name, reason.clone())),
                Action::Run(_) => None,
            };
            steps(tools).iter().filter_map(reason).collect()
        };
        assert_eq!(skipped(Tools { rustfmt: false, ..ALL }), [("fmt", GET_RUSTFMT.to_owned())]);
        assert_eq!(skipped(Tools { clippy: false, ..ALL }), [("clippy", GET_CLIPPY.to_owned())]);
        let unlinked: Vec<_> =
            skipped(Tools { linker: false, ..ALL }).iter().map(|(name, _)| *name).collect();
        assert_eq!(unlinked, ["clippy", "doc tests", "doc", "tests"]);
    }

    #[test]
    fn without_nextest_cargo_runs_the_tests() {
        let last = |tools: Tools| command(steps(tools).last().unwrap()).unwrap();
        assert!(last(ALL).starts_with("cargo nextest run"));
        assert!(last(Tools { nextest: false, ..ALL }).starts_with("cargo test "));
    }
}
