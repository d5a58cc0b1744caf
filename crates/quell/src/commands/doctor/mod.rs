//! `quell doctor`.

mod lab;

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use quell_llc::doctor::{self, DoctorReport, Finding, Severity};
use quell_llc::scan::ScanSettings;
use quell_report::{Cell, Column, Look, Table, Tone};
use quell_topology::format_cpu_list;

use super::monitor_args::{MonitorArgs, read_topology};
use super::values::cpu_list;
use crate::terminal;

/// Checks whether measurements on this machine can be trusted, and says what to do where they cannot (about
/// 9 s).
///
/// Exits with 1 if there is a problem, with 0 if there are at most warnings, and with 2 if it could not check.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    monitor: MonitorArgs,

    /// Check instead whether kernels can be built and guests booted here, and by which accelerator
    #[arg(long, conflicts_with_all = ["cpus", "profile", "window", "period", "tiers", "priority", "seed"])]
    lab: bool,

    /// Print the result as JSON (schema quell.doctor/1, with --lab quell.doctor-lab/1)
    #[arg(long)]
    json: bool,
}

/// Text is wrapped here where the terminal does not tell its width, and on wider ones: long lines read badly.
const WIDEST: u16 = 110;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.lab {
        return lab::run(args.json);
    }
    let settings = args.monitor.settings()?;
    let topology = read_topology()?;
    let cpus = args.monitor.cpus.as_deref().map(cpu_list).transpose()?;
    let targets = doctor::targets(&topology, cpus.as_deref())?;
    let stop = terminal::stop_flag()?;
    let bar = terminal::progress(1, "examining");
    let start = Instant::now();
    let settings = ScanSettings {
        monitor: settings,
        periods: doctor::PERIODS,
        capacity: true,
        priority: args.monitor.priority,
        seed: args.monitor.seed(),
    };
    let facts = doctor::examine(&topology, &targets, settings, &stop, &|progress| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
    });
    bar.finish_and_clear();
    let facts = facts.context("interrupted; a diagnosis needs the whole examination")?;
    let report = DoctorReport::new(&topology, doctor::diagnose(&facts), start.elapsed());
    if args.json {
        terminal::print_json(&report)?;
    } else {
        terminal::print(&human(&report, terminal::look()))?;
    }
    Ok(if report.problems > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn human(report: &DoctorReport, look: Look) -> String {
    let machine = &report.machine;
    let mut text = format!(
        "{} ({}), {}, CPU {}\n\n",
        machine.cpu.as_deref().unwrap_or("unnamed CPU"),
        machine.cpu_id,
        machine.hypervisor.as_deref().unwrap_or("no hypervisor seen"),
        format_cpu_list(&machine.cpus)
    );
    let look = Look { width: Some(look.width.unwrap_or(WIDEST).min(WIDEST)), ..look };
    let mut table = Table::new([Column::text("found"), Column::text("")]);
    for finding in &report.findings {
        let (word, tone) = severity(finding);
        table.row([Cell::toned(word, tone), Cell::toned(finding.title, tone)]);
        table.row(["evidence".into(), finding.evidence.as_str().into()]);
        table.row(["to do".into(), finding.remedy.as_str().into()]);
        table.row(["".into()]);
    }
    text += &table.render(look);
    let summary = match (report.problems, report.warnings) {
        (0, 0) => "No problem found".to_owned(),
        (0, warnings) => format!("No problem found, but {}", counted(warnings, "warning")),
        (problems, 0) => counted(problems, "problem"),
        (problems, warnings) => {
            format!("{} and {}", counted(problems, "problem"), counted(warnings, "warning"))
        }
    };
    let _ = writeln!(text, "{summary}. Took {:.1} s.", report.duration_s);
    text
}

fn severity(finding: &Finding) -> (&'static str, Tone) {
    match finding.severity {
        Severity::Problem => ("PROBLEM", Tone::Bad),
        Severity::Warning => ("warning", Tone::Notice),
        Severity::Note => ("note", Tone::Plain),
        Severity::Ok => ("ok", Tone::Good),
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quell_topology::Topology;

    use super::*;

    fn report(severities: &[Severity]) -> DoctorReport {
        let finding = |&severity: &Severity| Finding {
            id: "an-id",
            severity,
            title: "A title",
            evidence: "a long evidence with many figures ".repeat(8),
            remedy: "Do this.".into(),
        };
        DoctorReport::new(
            &Topology::default(),
            severities.iter().map(finding).collect(),
            Duration::from_secs(9),
        )
    }

    #[test]
    fn text_is_aligned_and_wrapped_at_any_width() {
        for (width, widest) in [(None, 110), (Some(60), 60), (Some(300), 110)] {
            let text = human(&report(&[Severity::Problem, Severity::Ok]), Look { width, color: false });
            assert!(text.lines().skip(1).all(|line| line.chars().count() <= widest), "{text}");
            assert!(text.contains("PROBLEM   A title"), "{text}");
        }
    }

    #[test]
    fn the_last_line_counts() {
        let last = |severities: &[Severity]| {
            human(&report(severities), Look::default()).lines().last().unwrap().to_owned()
        };
        assert_eq!(last(&[Severity::Note]), "No problem found. Took 9.0 s.");
        assert_eq!(last(&[Severity::Warning]), "No problem found, but 1 warning. Took 9.0 s.");
        assert_eq!(last(&[Severity::Problem; 2]), "2 problems. Took 9.0 s.");
    }
}
