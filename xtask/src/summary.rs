//! The closing summary of a task.

use std::fmt::Write as _;
use std::time::Duration;

use crate::step::{Outcome, Report};

/// One line a step with its outcome and time, the command to repeat a failed one, and a closing line
/// `steps: N passed, N failed, N skipped`.
pub fn render(reports: &[Report]) -> String {
    let mut text = String::from("Summary\n");
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let mut total = Duration::ZERO;
    for report in reports {
        total += report.took;
        let outcome = match &report.outcome {
            Outcome::Passed => {
                passed += 1;
                "passed".to_owned()
            }
            Outcome::Failed(command) => {
                failed += 1;
                format!("FAILED; run it again with: {command}")
            }
            Outcome::Skipped(reason) => {
                skipped += 1;
                format!("skipped: {reason}")
            }
        };
        line(&mut text, report.name, report.took, &outcome);
    }
    line(&mut text, "total", total, "");
    let _ = write!(text, "steps: {passed} passed, {failed} failed, {skipped} skipped");
    text
}

fn line(text: &mut String, name: &str, took: Duration, outcome: &str) {
    let row = format!("  {name:<14} {:>7.1} s  {outcome}", took.as_secs_f64());
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", row.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_every_step_and_the_command_of_a_failed_one() {
        let report = |name, outcome, ms| Report { name, outcome, took: Duration::from_millis(ms) };
        let reports = [
            report("fmt", Outcome::Skipped("rustfmt is missing".to_owned()), 0),
            report("clippy", Outcome::Passed, 12_340),
            report("tests", Outcome::Failed("cargo nextest run".to_owned()), 90_000),
        ];
        assert_eq!(
            render(&reports),
            "Summary
  fmt                0.0 s  skipped: rustfmt is missing
  clippy            12.3 s  passed
  tests             90.0 s  FAILED; run it again with: cargo nextest run
  total            102.3 s
steps: 1 passed, 1 failed, 1 skipped"
        );
    }
}
