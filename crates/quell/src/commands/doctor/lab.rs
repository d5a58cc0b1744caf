//! `quell doctor --lab`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use quell_lab::Stop;
use quell_lab::doctor::{Finding, State, check};
use quell_report::{Cell, Column, Look, Table, Tone};
use serde::Serialize;

use crate::terminal;

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    schema: &'static str,
    findings: Vec<Finding>,
}

pub(super) fn run(json: bool) -> Result<ExitCode> {
    let stop = Stop::from(terminal::stop_flag()?);
    let agent = std::env::current_exe().context("Cannot find this program's own file")?;
    let bar = terminal::progress(1, "checking; the first time this boots a guest");
    let findings = check(&agent, &stop);
    bar.finish_and_clear();
    stop.check()?;
    let missing = findings.iter().any(|finding| finding.state == State::Missing);
    if json {
        terminal::print_json(&Report { schema: "quell.doctor-lab/1", findings })?;
    } else {
        terminal::print(&human(&findings, terminal::look()))?;
    }
    Ok(if missing { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn human(findings: &[Finding], look: Look) -> String {
    let look = Look { width: Some(look.width.unwrap_or(super::WIDEST).min(super::WIDEST)), ..look };
    let mut table = Table::new([Column::text("found"), Column::text("what"), Column::text("")]);
    for finding in findings {
        let (word, tone) = state(finding.state);
        let cell = |text: &str| Cell::toned(text, tone);
        table.row([cell(word), finding.name.as_str().into(), finding.detail.as_str().into()]);
        if let Some(fix) = &finding.fix {
            table.row(["".into(), "".into(), format!("to do: {fix}").into()]);
        }
    }
    table.render(look)
}

fn state(state: State) -> (&'static str, Tone) {
    match state {
        State::Present => ("ok", Tone::Good),
        State::Missing => ("MISSING", Tone::Bad),
        State::Degraded => ("limited", Tone::Notice),
        State::Unknown => ("unknown", Tone::Notice),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_its_word_and_the_remedy_stands_below() {
        let finding = |name: &str, state, fix: Option<&str>| Finding {
            name: name.to_owned(),
            state,
            detail: String::from("some detail"),
            fix: fix.map(str::to_owned),
        };
        let text = human(
            &[
                finding("QEMU", State::Missing, Some("install it")),
                finding("kernel", State::Present, None),
                finding("cache", State::Degraded, None),
                finding("accelerator", State::Unknown, None),
            ],
            Look::default(),
        );
        for part in ["MISSING", "to do: install it", "ok", "limited", "unknown", "some detail"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
