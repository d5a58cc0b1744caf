//! Running the real binary, each time with a deadline.

use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Nothing here takes more seconds, however busy the machine is; what does, hangs.
const DEADLINE_S: u32 = 90;

/// The command with its arguments, which are separated by blanks.
pub fn quell(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    command
}

/// Starts a command whose output is collected.
pub fn start(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary was just built")
}

/// Waits for a child and what is left of its output; kills it if it hangs.
pub fn finish(child: Child) -> Output {
    let pid = child.id();
    let (done, over) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        // Counted second by second, so that a machine that was suspended meanwhile does not count as a hang.
        let second = || over.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout);
        if (0..DEADLINE_S).all(|_| second()) {
            signal(pid, Signal::SIGKILL);
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(done);
    watchdog.join().unwrap();
    output
}

/// Runs a command to its end.
pub fn run(command: Command) -> Output {
    finish(start(command))
}

/// Sends a signal to a child.
pub fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.cast_signed()), signal).expect("the child was not waited for yet");
}

/// What a command wrote to standard error, which must not be a panic.
pub fn complaint(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).expect("messages are UTF-8");
    assert!(!text.contains("panicked"), "{text}");
    text
}

/// Whether a command complained of a machine that is too odd or too busy to measure anything; then it is printed.
pub fn cannot_measure(complaint: &str) -> bool {
    const REASONS: [&str; 7] = [
        "page colors are unknown here",
        "cannot measure by page color here",
        "is not watched",
        "cannot tell hits from misses",
        "time-stamp counter",
        "RDTSCP",
        "did not start within",
    ];
    let found = REASONS.iter().any(|reason| complaint.contains(reason));
    if found {
        println!("skipped: {}", complaint.trim());
    }
    found
}

/// Standard output of a command that measures; `None` where this machine does not allow to measure.
pub fn measured(output: &Output) -> Option<String> {
    let complaint = complaint(output);
    if output.status.code() == Some(2) && cannot_measure(&complaint) {
        return None;
    }
    assert_eq!(output.status.code(), Some(0), "{complaint}");
    Some(String::from_utf8(output.stdout.clone()).expect("output is UTF-8"))
}

/// Text as JSON.
pub fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in: {text}"))
}
