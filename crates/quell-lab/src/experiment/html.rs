//! One self-contained page about a run.

use std::collections::BTreeMap;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use quell_report::ReportError;
use quell_report::svg::{Group, cumulative};

use super::analysis::{Cell, Comparison, Summary, Table, shown};
use super::output::{GuestRecord, RunRecord};
use super::target::TargetResult;
use super::trace_html;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}\
    table{border-collapse:collapse;margin:1em 0}th,td{padding:.25em .7em;border-bottom:1px solid #ddd;text-align:right}\
    th{text-align:left}td:first-child{text-align:left}pre{background:#f6f6f6;padding:1em;overflow:auto}\
    .warn{background:#fff4d6;padding:.6em 1em;border-left:4px solid #e69f00}.bad{color:#b00}svg{max-width:100%;height:auto}";

/// The page, with the samples that its numbers come from as curves.
pub(super) fn page(record: &RunRecord, table: &Table) -> Result<String, ReportError> {
    let arms = record.arms();
    let mut plots = Vec::new();
    for cell in table.cells() {
        let nanos = table.unit(cell) == "ns";
        let (unit, scale) = if nanos { ("microseconds", 1e-3) } else { (table.unit(cell), 1.0) };
        let values = |arm| table.values(cell, arm).iter().flatten().map(|value| value * scale).collect();
        let groups: Vec<Group> =
            arms.iter().map(|arm| Group { label: arm.clone(), values: values(arm) }).collect();
        plots.push(cumulative(&title(cell), unit, &groups)?);
    }
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { (record.experiment.title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (record.experiment.title) }
                p { (record.experiment.description) }
                p {
                    (record.started) ", " b { (record.accelerator.name()) } ", " (record.qemu) ", host Linux "
                    (record.host.kernel) " on " (record.host.cpus) " CPUs (" (record.host.cpu) ")"
                }
                @for warning in &record.warnings { p.warn { (warning) } }
                h2 { "Comparison" }
                (comparisons(&record.comparisons))
                @if !record.targets.is_empty() {
                    h2 { "Targets" }
                    (targets(&record.targets))
                }
                h2 { "Every arm" }
                p { "Times in microseconds. " (record.percentiles) "." }
                (summaries(&record.summaries))
                @if let Some(diagram) = &record.experiment.diagram {
                    h2 { "The path" }
                    p { "Mermaid text; any Mermaid viewer draws it." }
                    pre.mermaid { (diagram) }
                }
                h2 { "Distributions" }
                @for plot in &plots { (PreEscaped(plot)) }
                (trace_html::section(&record.traces))
                h2 { "Guests" }
                (guests(&record.guests))
                h2 { "Kernels" }
                (kernels(record))
            }
        }
    };
    Ok(page.into_string())
}

fn title(cell: &Cell) -> String {
    format!("{}: {}", cell.0, words(&cell.1))
}

fn words(dimensions: &BTreeMap<String, String>) -> String {
    dimensions.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

fn comparisons(comparisons: &[Comparison]) -> Markup {
    html! {
        table {
            tr { th { "what" } th { "statistic" } th { "arms" } th { "ratio" } th { "95 % interval" } th { "p" } th { "guests" } th { "verdict" } }
            @for c in comparisons {
                tr {
                    td { (c.metric) ": " (words(&c.dimensions)) }
                    td { (c.statistic) }
                    td { (c.arm_a) " / " (c.arm_b) }
                    td { (format!("{:.2}", c.ratio)) }
                    td {
                        @match (c.ci95, &c.ci95_reason) {
                            (Some([low, high]), _) => (format!("{low:.2} – {high:.2}")),
                            (None, reason) => (reason.as_deref().unwrap_or("unknown")),
                        }
                    }
                    td { (c.p_value.map_or_else(|| String::from("unknown"), |p| format!("{p:.4}"))) }
                    td { (c.n_a) " / " (c.n_b) }
                    td { (c.says()) }
                }
            }
        }
    }
}

fn targets(targets: &[TargetResult]) -> Markup {
    html! {
        table {
            tr { th { "what" } th { "statistic" } th { "arm" } th { "under" } th { "aim" } th { "measured" } th { "outcome" } }
            @for t in targets {
                tr {
                    td { (words(&t.of)) }
                    td { (t.statistic) }
                    td { (t.arm) }
                    td { (t.accelerator.name()) }
                    td { (t.aim) }
                    td { (t.ratio.map_or_else(|| String::from("–"), |ratio| format!("{ratio:.2}x"))) }
                    td { (t.outcome.text()) }
                }
            }
        }
    }
}

fn summaries(summaries: &[Summary]) -> Markup {
    html! {
        table {
            tr { th { "what" } th { "arm" } th { "samples" } th { "median" } th { "P99 (floor)" } th { "P99 (nearest rank)" } th { "maximum" } th { "failed" } th { "misplaced" } th { "corrupt" } }
            @for s in summaries {
                tr {
                    td { (s.metric) ": " (words(&s.dimensions)) }
                    td { (s.arm) }
                    td { (s.samples) }
                    td { (shown(&s.unit, s.median)) }
                    td { (shown(&s.unit, s.p99_floor)) }
                    td { (shown(&s.unit, s.p99_nearest_rank)) }
                    td { (shown(&s.unit, s.max)) }
                    @for name in ["failed", "misplaced", "corrupt"] {
                        td { (s.counts.get(name).copied().unwrap_or(0)) }
                    }
                }
            }
        }
    }
}

fn guests(guests: &[GuestRecord]) -> Markup {
    let seconds =
        |value: Option<f64>| value.map_or_else(|| String::from("–"), |value| format!("{value:.1} s"));
    html! {
        table {
            tr { th { "guest" } th { "arm" } th { "boot" } th { "job" } th { "samples" } th { "result" } }
            @for guest in guests {
                tr {
                    td { (guest.index) }
                    td { (guest.arm) }
                    td { (seconds(guest.boot_seconds)) }
                    td { (seconds(guest.job_seconds)) }
                    td { (guest.samples) }
                    td {
                        @match &guest.failure {
                            Some(failure) => span.bad { (failure) " (" (guest.directory) "/console.log)" },
                            None => "done",
                        }
                    }
                }
            }
        }
        @for guest in guests {
            @for splat in &guest.splats { pre { (splat.text) } }
        }
    }
}

fn kernels(record: &RunRecord) -> Markup {
    html! {
        @for (name, kernel) in &record.kernels {
            p {
                b { (name) } ": Linux " (kernel.release) " from " (kernel.source) ", image " (kernel.image_sha256[..12.min(kernel.image_sha256.len())])
                ", configuration " (kernel.config_sha256[..12.min(kernel.config_sha256.len())]) ", " (kernel.compiler)
            }
            ul { @for (patch, sha) in &kernel.patches { li { (patch) " " (sha[..12.min(sha.len())]) } } }
        }
    }
}
