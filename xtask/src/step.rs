//! One step of a task: a command that must succeed, or the reason why it is not run.

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a step does and how.
#[derive(Debug)]
pub struct Step {
    /// Short name for the summary.
    pub name: &'static str,
    /// What it checks, for the person who reads the log.
    pub purpose: &'static str,
    /// How it is carried out.
    pub action: Action,
}

/// How a step is carried out.
#[derive(Debug)]
pub enum Action {
    /// Run this command.
    Run(Invocation),
    /// Do not run anything; the machine lacks what the reason names.
    Skip(String),
}

/// A command line with the environment variables it adds.
#[derive(Debug)]
pub struct Invocation {
    program: OsString,
    /// The program's name in a command that a person would type.
    shown_as: &'static str,
    args: Vec<&'static str>,
    env: Vec<(&'static str, &'static str)>,
}

impl Invocation {
    /// A call of the cargo that runs this task, so that the toolchain stays the same.
    pub fn cargo(args: &[&'static str]) -> Self {
        let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        Self { program, shown_as: "cargo", args: args.to_vec(), env: Vec::new() }
    }

    /// The same call with one more environment variable.
    pub fn env(mut self, key: &'static str, value: &'static str) -> Self {
        self.env.push((key, value));
        self
    }

    /// The command as a person would type it to run the step again.
    pub fn as_typed(&self) -> String {
        let env = self.env.iter().map(|(key, value)| format!("{key}='{value}' "));
        let args = self.args.iter().map(|arg| format!(" {arg}"));
        env.chain([self.shown_as.to_owned()]).chain(args).collect()
    }

    /// Runs it to the end with our output and without input, so that nothing can wait for a keypress.
    fn succeeds(&self) -> io::Result<bool> {
        let mut command = Command::new(&self.program);
        command.args(self.args.iter().map(OsStr::new)).envs(self.env.iter().copied());
        Ok(command.stdin(Stdio::null()).status()?.success())
    }
}

/// How a step ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command succeeded.
    Passed,
    /// The command failed; the text is the command to run it again.
    Failed(String),
    /// Not run, with the reason.
    Skipped(String),
}

/// A step's outcome and duration.
#[derive(Debug)]
pub struct Report {
    /// The step's name.
    pub name: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// Wall-clock time it took.
    pub took: Duration,
}

/// Runs the steps in order, announcing each, and stops after the first that fails.
///
/// # Errors
///
/// A command that could not be started at all.
pub fn run_all(steps: Vec<Step>) -> io::Result<Vec<Report>> {
    let total = steps.len();
    let mut reports = Vec::with_capacity(total);
    for (index, step) in steps.into_iter().enumerate() {
        println!("\n[{}/{total}] {}: {}", index + 1, step.name, step.purpose);
        let start = Instant::now();
        let outcome = match step.action {
            Action::Skip(reason) => {
                println!("skipped: {reason}");
                Outcome::Skipped(reason)
            }
            Action::Run(invocation) => {
                println!("$ {}", invocation.as_typed());
                if invocation.succeeds()? { Outcome::Passed } else { Outcome::Failed(invocation.as_typed()) }
            }
        };
        let failed = matches!(outcome, Outcome::Failed(_));
        reports.push(Report { name: step.name, outcome, took: start.elapsed() });
        if failed {
            break;
        }
    }
    Ok(reports)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &'static str, program: &str) -> Step {
        let invocation =
            Invocation { program: program.into(), shown_as: "tool", args: vec!["--all"], env: vec![] };
        Step { name, purpose: "a test", action: Action::Run(invocation) }
    }

    #[test]
    fn stops_after_the_first_failure_and_keeps_its_command() {
        let reports = run_all(vec![step("a", "true"), step("b", "false"), step("c", "true")]).unwrap();
        assert_eq!(reports.len(), 2);
        assert_eq!(reports[0].outcome, Outcome::Passed);
        assert_eq!(reports[1].outcome, Outcome::Failed("tool --all".to_owned()));
    }

    #[test]
    fn goes_on_after_a_skipped_step() {
        let skip = Step { name: "a", purpose: "a test", action: Action::Skip("no tool".to_owned()) };
        let reports = run_all(vec![skip, step("b", "true")]).unwrap();
        assert_eq!(reports[0].outcome, Outcome::Skipped("no tool".to_owned()));
        assert_eq!(reports[1].outcome, Outcome::Passed);
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error() {
        assert!(run_all(vec![step("a", "./no-such-program")]).is_err());
    }

    #[test]
    fn the_typed_command_names_its_environment() {
        let invocation = Invocation::cargo(&["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(invocation.as_typed(), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }
}
