//! `cargo xtask test`: everything that can be checked without booting a guest.

use anyhow::{Result, bail};

use crate::step::{self, Action, Invocation, Outcome, Step};
use crate::summary;
use crate::tools::{GET_CLIPPY, GET_LINKER, GET_RUSTFMT, Tools};

/// Which tier of tests to run.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also run the lab tests, which boot real guests.
    #[arg(long)]
    lab: bool,
    /// The lab tests with every guest kernel and configuration; implies --lab.
    #[arg(long)]
    full: bool,
}

/// Runs the tier; `true` if no step failed.
///
/// # Errors
///
/// The tier is not in this checkout, or a command could not be started.
pub fn run(args: &Args) -> Result<bool> {
    if args.lab || args.full {
        let asked = if args.full { "--full" } else { "--lab" };
        bail!("cannot run `test {asked}`: there is no lab in this checkout; run `cargo xtask test` instead");
    }
    let reports = step::run_all(steps(Tools::find()))?;
    println!("\n{}", summary::render(&reports));
    let passed = !reports.iter().any(|report| matches!(report.outcome, Outcome::Failed(_)));
    if passed {
        println!("Next tier: cargo xtask test --lab (lab tests in real guests)");
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

    #[test]
    fn the_lab_is_refused_while_there_is_none() {
        for args in [Args { lab: true, full: false }, Args { lab: false, full: true }] {
            assert!(run(&args).unwrap_err().to_string().contains("no lab in this checkout"));
        }
    }
}
