//! What the commands share towards the terminal: signals, pipes, looks, progress.

use std::ffi::OsString;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use quell_report::Look;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// A flag that Ctrl-C, a termination request or a closed terminal sets. A second one ends the program at once.
///
/// # Errors
/// If signal handlers cannot be installed.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    // Whoever started us under nohup wants us to outlive the terminal.
    let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
        stop_on(signal, &stop)?;
    }
    Ok(stop)
}

/// Like [`stop_flag`], except that a hangup sets `reload` instead, as usual for services.
///
/// # Errors
/// If signal handlers cannot be installed.
pub(crate) fn stop_flag_and_reload(reload: &Arc<AtomicBool>) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        stop_on(signal, &stop)?;
    }
    flag::register(SIGHUP, Arc::clone(reload)).context("cannot install a handler for SIGHUP")?;
    Ok(stop)
}

fn stop_on(signal: i32, stop: &Arc<AtomicBool>) -> Result<()> {
    flag::register_conditional_shutdown(signal, 130, Arc::clone(stop))
        .and_then(|_| flag::register(signal, Arc::clone(stop)))
        .map(|_| ())
        .context("cannot install a handler for Ctrl-C")
}

/// Whether this process was told to ignore a signal, from the mask in `/proc/self/status` (proc(5)).
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Whether an error only says that the reader of our output has gone, as `head` does.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let by_io = cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe);
        by_io
            || cause
                .downcast_ref::<serde_json::Error>()
                .is_some_and(|e| e.io_error_kind() == Some(ErrorKind::BrokenPipe))
    })
}

/// How text on standard output should look.
pub(crate) fn look() -> Look {
    let terminal = io::stdout().is_terminal();
    let width = terminal.then(|| console_width().unwrap_or(100));
    Look { width, color: terminal && may_color(|name| std::env::var_os(name)) }
}

/// Whether the environment allows color: not with a `NO_COLOR` that is not empty (no-color.org), and not on a
/// terminal that calls itself dumb.
fn may_color(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    variable("NO_COLOR").is_none_or(|value| value.is_empty())
        && variable("TERM").is_none_or(|term| term != "dumb")
}

/// Writes a line to standard error. Where that fails, nobody reads it, and there is nothing to be done.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn console_width() -> Option<u16> {
    terminal_size::terminal_size().map(|(terminal_size::Width(columns), _)| columns)
}

/// Writes `text` to standard output.
///
/// # Errors
/// What standard output says, a closed pipe included (see [`is_broken_pipe`]).
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write to standard output")
}

/// Writes `value` to standard output as indented JSON.
///
/// # Errors
/// As [`print()`].
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).context("cannot put the result into JSON")?;
    print(&(text + "\n"))
}

/// A paragraph, wrapped to the terminal (to 100 columns elsewhere).
pub(crate) fn wrapped(paragraph: &str) -> String {
    let width = look().width.map_or(100, usize::from);
    textwrap::fill(paragraph, textwrap::Options::new(width).subsequent_indent("  ")) + "\n"
}

/// A progress bar on standard error, invisible where that is no terminal.
pub(crate) fn progress(total: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent}% {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what);
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn color_needs_the_consent_of_the_environment() {
        let color = |variables: &[(&str, &str)]| {
            may_color(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
        };
        assert!(color(&[]) && color(&[("NO_COLOR", ""), ("TERM", "xterm")]));
        assert!(!color(&[("NO_COLOR", "1"), ("TERM", "xterm")]) && !color(&[("TERM", "dumb")]));
    }

    #[test]
    fn a_reader_that_has_gone_is_told_from_a_full_disk() {
        let error = |kind| anyhow::Error::from(io::Error::from(kind)).context("cannot write");
        assert!(is_broken_pipe(&error(ErrorKind::BrokenPipe)));
        assert!(!is_broken_pipe(&error(ErrorKind::StorageFull)));
    }
}
