//! How the real binary behaves towards its surroundings: signals, pipes, sockets, files, CPUs, environment.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use common::{cannot_measure, complaint, finish, json, measured, quell, run, signal, start};
use nix::sys::signal::Signal;
use quell_topology::Pinned;
use quell_topology::affinity::allowed;

/// A scan as short as possible.
const SHORT_SCAN: &str = "scan --no-capacity --period 200ms --duration 200ms";

/// Waits until `ready`, for as long as a very busy machine may need.
fn wait_until(what: &str, mut ready: impl FnMut() -> bool) {
    for _ in 0..12_000 {
        if ready() {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("{what} did not happen");
}

/// Whether a process handles a signal itself, from the mask in `/proc/PID/status` (proc(5)).
fn handles(pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal as u32 - 1) & 1 == 1)
}

#[test]
fn an_interrupted_scan_gives_what_it_has_and_leaves_nothing_behind() {
    let mask = allowed().unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (after_ms, kind) in [(0, Signal::SIGINT), (2500, Signal::SIGTERM)] {
        let mut command = quell("scan --json --duration 60s");
        command.current_dir(&folder).env("HOME", folder.path()).env("TMPDIR", folder.path());
        let child = start(command);
        wait_until("the handler", || handles(child.id(), kind));
        thread::sleep(Duration::from_millis(after_ms));
        signal(child.id(), kind);
        let output = finish(child);
        assert_eq!(output.status.code(), Some(0), "{}", complaint(&output));
        let answer = json(std::str::from_utf8(&output.stdout).unwrap());
        assert!(answer["llcs"].as_array().is_some_and(|llcs| !llcs.is_empty()), "{answer}");
    }
    assert_eq!(allowed().unwrap(), mask);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn an_interrupted_watch_ends_at_once_with_whole_lines_and_without_its_socket() {
    let folder = tempfile::tempdir().unwrap();
    for kind in [Signal::SIGINT, Signal::SIGHUP] {
        let mut command = quell("watch --json --period 60s --socket feed");
        command.current_dir(&folder);
        let child = start(command);
        wait_until("the socket", || folder.path().join("feed").exists());
        thread::sleep(Duration::from_millis(500));
        let kind = if handles(child.id(), kind) {
            kind
        } else {
            println!("skipped: {kind} is ignored, as under nohup");
            Signal::SIGTERM
        };
        signal(child.id(), kind);
        let output = finish(child);
        let complaint = complaint(&output);
        assert_eq!(output.stdout, b"", "a period cut short is no measurement");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        assert_eq!(output.status.code(), Some(0), "{complaint}");
    }
}

#[test]
fn a_watch_serves_every_reader_and_removes_its_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("feed");
    drop(UnixListener::bind(&socket).unwrap()); // as a killed watch leaves it behind
    let mut command = quell("watch --json --period 200ms --socket");
    command.arg(&socket);
    let mut child = start(command);
    let served = || UnixStream::connect(&socket).ok();
    let mut readers = Vec::new();
    wait_until("the socket", || {
        readers.extend(served());
        readers.len() == 2 || child.try_wait().unwrap().is_some()
    });
    let lines: Vec<String> = readers
        .into_iter()
        .map(|reader| {
            let mut line = String::new();
            reader.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            BufReader::new(reader).read_line(&mut line).unwrap();
            line
        })
        .collect();
    // Where nothing can be measured, it has ended by itself.
    if child.try_wait().unwrap().is_none() {
        signal(child.id(), Signal::SIGINT);
    }
    if let Some(printed) = measured(&finish(child)) {
        assert_eq!(lines.len(), 2);
        for line in &lines {
            assert_eq!(json(line)["schema"], "quell.watch/1");
            assert!(printed.contains(line.as_str()), "what is served is what is printed");
        }
    }
    assert!(!socket.exists());
}

#[test]
fn a_file_in_place_of_the_socket_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mine"), "precious").unwrap();
    for (socket, reason) in [("mine", "choose another path"), ("missing/feed", "No such file or directory")] {
        let mut command = quell(&format!("watch --socket {socket}"));
        command.current_dir(&folder);
        let output = run(command);
        let complaint = complaint(&output);
        assert_eq!((output.status.code(), output.stdout), (Some(2), Vec::new()), "{complaint}");
        let told = complaint.contains(socket) && complaint.contains(reason);
        assert!(told || cannot_measure(&complaint), "{complaint}");
    }
    assert_eq!(fs::read_to_string(folder.path().join("mine")).unwrap(), "precious");
}

#[test]
fn bad_arguments_end_with_2_and_print_nothing() {
    let list = include_str!("cmd/errors.trycmd");
    let lines: Vec<&str> = list.lines().filter_map(|line| line.strip_prefix("$ quell ")).collect();
    assert!(lines.len() > 20);
    for line in lines {
        let mut command = quell(line);
        command.current_dir("tests/cmd/errors.in");
        let output = run(command);
        assert_eq!(
            (output.status.code(), output.stdout.len()),
            (Some(2), 0),
            "{line}: {}",
            complaint(&output)
        );
    }
    for line in ["scan --cpus 9999", "watch --cpus 9999", "topo --cpus 9999", "bench detect --cpus 0,9999"] {
        let output = run(quell(line));
        let complaint = complaint(&output);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{line}: {complaint}");
        assert!(complaint.contains("CPU 9999") || cannot_measure(&complaint), "{line}: {complaint}");
    }
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    for line in
        [SHORT_SCAN, "calibrate --period 100ms", "topo --no-probe", "topo --json --no-probe", "scan --help"]
    {
        let mut child = start(quell(line));
        drop(child.stdout.take());
        let output = finish(child);
        assert_eq!(output.status.code(), Some(0), "{line}: {}", complaint(&output));
    }
}

/// What `quell watch | head -1` does.
#[test]
fn a_reader_that_leaves_ends_a_watch() {
    for line in ["watch --json --period 100ms", "watch --period 100ms"] {
        let mut child = start(quell(line));
        let mut first = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut first).unwrap();
        drop(stdout);
        let output = finish(child);
        if first.is_empty() {
            measured(&output); // prints why
        } else {
            assert_eq!(output.status.code(), Some(0), "{line}: {}", complaint(&output));
        }
    }
}

#[test]
fn a_full_disk_is_an_error_and_no_panic() {
    let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    for line in [SHORT_SCAN, "topo --no-probe", "topo --json --no-probe", "watch --period 100ms"] {
        let output = quell(line).stdout(full()).stderr(Stdio::piped()).output().unwrap();
        let complaint = complaint(&output);
        assert_eq!(output.status.code(), Some(2), "{line}: {complaint}");
        let told = complaint.contains("cannot write to standard output");
        assert!(told || cannot_measure(&complaint), "{line}: {complaint}");
    }
    let status = quell("topo --cpus 9999").stdout(Stdio::null()).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(2), "an error that cannot be told is still that error");
}

/// A child of this thread, which is pinned meanwhile, may use one CPU only.
#[test]
fn one_cpu_is_enough_to_measure_and_a_reason_not_to_compare() {
    let cpus = allowed().unwrap();
    let pin = Pinned::to(cpus[0]).unwrap();
    let [scan, topo, bench] =
        ["scan --json --no-capacity --period 200ms --duration 200ms", "topo --json", "bench detect"]
            .map(|line| start(quell(line)));
    drop(pin);

    if let Some(text) = measured(&finish(scan)) {
        let answer = json(&text);
        assert_eq!(answer["machine"]["cpus"], serde_json::json!([cpus[0]]));
        assert_eq!(answer["placement"]["pairs"], serde_json::json!([]));
        let reason = answer["placement"]["near_pct"]["reason"].as_str().unwrap();
        assert!(reason.contains("only one CPU"), "{reason}");
    }
    let topo = finish(topo);
    assert_eq!(topo.status.code(), Some(0), "{}", complaint(&topo));
    let answer = json(std::str::from_utf8(&topo.stdout).unwrap());
    assert!(answer["placement"].is_null());
    assert!(answer["not_probed"].as_str().is_some_and(|why| why.contains("needs two")), "{answer}");
    let bench = finish(bench);
    let complaint = complaint(&bench);
    assert_eq!((bench.status.code(), bench.stdout.len()), (Some(2), 0), "{complaint}");
    assert!(complaint.contains("two CPUs") || cannot_measure(&complaint), "{complaint}");
}

#[test]
fn two_scans_at_once_both_succeed() {
    let scans = [SHORT_SCAN, SHORT_SCAN].map(|line| start(quell(&format!("{line} --json"))));
    for scan in scans {
        if let Some(text) = measured(&finish(scan)) {
            assert_eq!(json(&text)["schema"], "quell.scan/1");
        }
    }
}

#[test]
fn neither_environment_nor_terminal_nor_folder_matters() {
    for line in [SHORT_SCAN, "topo --no-probe"] {
        let mut bare = quell(line);
        bare.env_clear().current_dir("/");
        if let Some(text) = measured(&run(bare)) {
            assert!(!text.contains('\x1b'), "{line}: {text}");
        }
    }
    let mut closed = Command::new("sh");
    closed.args(["-c", r#""$0" topo --no-probe <&- >&- 2>&-"#, env!("CARGO_BIN_EXE_quell")]);
    assert_eq!(run(closed).status.code(), Some(0), "without standard input and output");
}

/// What `script` makes of a command: its output on a terminal of so many columns, or nothing where there is no
/// such program.
fn on_terminal(line: &str, columns: u32) -> Option<String> {
    if !Path::new("/usr/bin/script").exists() {
        println!("skipped: there is no `script` to make a terminal with");
        return None;
    }
    let inner = format!("stty rows 24 cols {columns}; {} {line} 2>/dev/null", env!("CARGO_BIN_EXE_quell"));
    let mut script = Command::new("/usr/bin/script");
    script.args(["-qec", &inner, "/dev/null"]).env("NO_COLOR", "1").stdin(Stdio::null());
    let mut child = start(script);
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(finish(child).status.success());
    Some(text)
}

#[test]
fn tables_fit_a_narrow_terminal() {
    let Some(text) = on_terminal(SHORT_SCAN, 40) else { return };
    for line in text.lines() {
        assert!(line.chars().count() <= 40, "{line:?} in\n{text}");
    }
}
