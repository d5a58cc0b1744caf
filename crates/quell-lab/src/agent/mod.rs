//! The guest's side: PID 1, which takes jobs from the host and sends back what they measure.

mod trace;
mod work;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};

use crate::guest::args::{BULK_PORT, CONTROL_PORT};
use crate::protocol::{Done, Hello, Job, Message, Request, TRACE_FILE, Workload, to_line};

pub use work::run_workload;

/// How the line of a measurement begins.
const SAMPLE_START: &[u8] = b"{\"sample\"";
/// How long the ports may take to appear.
const PORT_DEADLINE: Duration = Duration::from_secs(30);
/// The hidden argument with which the agent starts its own binary for a job.
pub const WORK_ARG: &str = "--lab-job";

/// Whether this process is a guest's first process, and so has to be the agent.
#[must_use]
pub fn is_init() -> bool {
    std::process::id() == 1 && Path::new("/init").exists()
}

/// The agent. It ends with the guest.
pub fn run_init() -> ! {
    let Err(error) = serve();
    println!("quell agent: {error}");
    let _ = io::stdout().flush();
    power_off()
}

fn power_off() -> ! {
    nix::unistd::sync();
    // QEMU runs with -no-reboot, so this ends it; unlike power-off it needs no ACPI.
    match reboot(RebootMode::RB_AUTOBOOT) {
        Ok(never) => match never {},
        Err(_) => loop {
            thread::sleep(Duration::from_secs(1));
        },
    }
}

fn mount_all() {
    let none = None::<&str>;
    for (source, target, kind) in [
        ("proc", "/proc", "proc"),
        ("sysfs", "/sys", "sysfs"),
        ("devtmpfs", "/dev", "devtmpfs"),
        ("tmpfs", "/tmp", "tmpfs"),
        ("debugfs", "/sys/kernel/debug", "debugfs"),
        ("tracefs", trace::TRACEFS, "tracefs"),
    ] {
        // A kernel without one of them is no reason to stop: what needs it will say so.
        let _ = mount(Some(source), target, Some(kind), MsFlags::empty(), none);
    }
}

fn serve() -> io::Result<Infallible> {
    mount_all();
    let control = open_port(CONTROL_PORT)?;
    let bulk = open_port(BULK_PORT)?;
    let mut agent = Agent { out: control.try_clone()?, bulk };
    agent.send(&Message::Hello(hello()))?;
    for line in BufReader::new(control).split(b'\n') {
        match serde_json::from_slice::<Request>(&line?) {
            Ok(Request::Shutdown) => power_off(),
            Ok(Request::Job(job)) => {
                let done = agent.run(&job)?;
                agent.send(&Message::Done(done))?;
            }
            Err(error) => agent.log(&format!("request not understood: {error}"))?,
        }
    }
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the host closed the port"))
}

fn hello() -> Hello {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    Hello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: read("/proc/sys/kernel/osrelease"),
        cmdline: read("/proc/cmdline"),
        cpus: thread::available_parallelism().map_or(0, usize::from),
        nodes: quell_migrate::memory_nodes(Path::new("/")),
        uptime_s: read("/proc/uptime").split(' ').next().unwrap_or_default().to_owned(),
    }
}

/// Opens the port of this name once the driver has made it.
fn open_port(name: &str) -> io::Result<File> {
    let end = Instant::now() + PORT_DEADLINE;
    loop {
        if let Some(device) = find_port(Path::new("/"), name) {
            return File::options().read(true).write(true).open(device);
        }
        if Instant::now() > end {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("no virtio port is called {name}")));
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn find_port(root: &Path, name: &str) -> Option<PathBuf> {
    let ports = fs::read_dir(root.join("sys/class/virtio-ports")).ok()?;
    ports.filter_map(Result::ok).find_map(|port| {
        let text = fs::read_to_string(port.path().join("name")).ok()?;
        (text.trim() == name).then(|| root.join("dev").join(port.file_name()))
    })
}

struct Agent {
    out: File,
    bulk: File,
}

impl Agent {
    fn send(&mut self, message: &Message) -> io::Result<()> {
        self.out.write_all(&to_line(message))
    }

    fn log(&mut self, text: &str) -> io::Result<()> {
        self.send(&Message::Log(text.to_owned()))
    }

    fn run(&mut self, job: &Job) -> io::Result<Done> {
        for (name, value) in &job.sysctl {
            let path = Path::new("/proc/sys").join(name.replace('.', "/"));
            if let Err(error) = fs::write(&path, value) {
                self.log(&format!("cannot set {name} to {value:?}: {error}"))?;
                return Ok(Done { exit_code: Some(2), ..Done::default() });
            }
        }
        let before = vmstat(&fs::read_to_string("/proc/vmstat").unwrap_or_default());
        let mut done = match self.run_traced(job) {
            Ok(done) => done,
            Err(error) => {
                self.log(&format!("the job could not be run: {error}"))?;
                Done { exit_code: Some(2), ..Done::default() }
            }
        };
        let after = vmstat(&fs::read_to_string("/proc/vmstat").unwrap_or_default());
        done.vmstat = after
            .into_iter()
            .map(|(name, value)| (before.get(&name).map_or(value, |old| value - old), name))
            .filter_map(|(moved, name)| (moved != 0).then_some((name, moved)))
            .collect();
        for path in &job.collect {
            self.collect(path)?;
        }
        Ok(done)
    }

    fn run_traced(&mut self, job: &Job) -> io::Result<Done> {
        let Some(tracing) = &job.trace else { return self.run_child(job) };
        let session = trace::Session::start(Path::new(trace::TRACEFS), tracing)?;
        for name in &session.absent {
            self.log(&format!("not traced, because this kernel does not have it: {name}"))?;
        }
        let done = self.run_child(job)?;
        session.stop()?;
        let bytes = io::copy(&mut session.text()?, &mut self.bulk)?;
        self.send(&Message::File { path: TRACE_FILE.to_owned(), bytes })?;
        Ok(done)
    }

    /// Runs the job in a process of its own, so that nothing it does can take the agent with it.
    fn run_child(&mut self, job: &Job) -> io::Result<Done> {
        let this = || Command::new("/proc/self/exe");
        let (mut command, args, input) = match &job.workload {
            Workload::Quell(quell) => (this(), quell.args.clone(), Vec::new()),
            Workload::Program(program) => {
                (Command::new(program.guest_path()), program.args.clone(), Vec::new())
            }
            work @ Workload::Migrate(_) => (this(), vec![WORK_ARG.to_owned()], to_line(work)),
        };
        command.args(args);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .env("HOME", "/tmp")
            .envs(job.trace.is_some().then(|| (work::MARKER, Path::new(trace::TRACEFS).join("trace_marker"))))
            .spawn()?;
        // The kernel should kill the job and not the agent when memory runs out.
        let _ = fs::write(format!("/proc/{}/oom_score_adj", child.id()), "1000");
        if let Some(mut stdin) = child.stdin.take() {
            let _ = stdin.write_all(&input);
        }
        let lines = lines_of(&mut child);
        let start = Instant::now();
        let end = start + Duration::from_secs(job.timeout_s);
        let mut done = Done::default();
        loop {
            match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    done.bad_samples += u64::from(line.bad_sample);
                    self.out.write_all(&line.message)?;
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    done.timed_out = true;
                    child.kill()?;
                    break;
                }
            }
        }
        let status = child.wait()?;
        done.exit_code = status.code();
        done.signal = status.signal();
        done.seconds = start.elapsed().as_secs_f64();
        Ok(done)
    }

    fn collect(&mut self, path: &str) -> io::Result<()> {
        let mut bytes = 0;
        match File::open(path) {
            Ok(mut file) => {
                let mut buffer = vec![0; 1 << 20];
                loop {
                    let count = file.read(&mut buffer)?;
                    if count == 0 {
                        break;
                    }
                    self.bulk.write_all(&buffer[..count])?;
                    bytes += count as u64;
                }
            }
            Err(error) => self.log(&format!("cannot collect {path}: {error}"))?,
        }
        self.send(&Message::File { path: path.to_owned(), bytes })
    }
}

/// The job's output as protocol lines: its standard output holds messages already, or becomes log lines as
/// its standard error does.
fn lines_of(child: &mut Child) -> Receiver<Line> {
    let (sender, lines) = mpsc::channel();
    let streams: [Option<Box<dyn Read + Send>>; 2] = [
        child.stdout.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>),
        child.stderr.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>),
    ];
    for stream in streams.into_iter().flatten() {
        let sender = sender.clone();
        thread::spawn(move || {
            for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
                if sender.send(as_message(line)).is_err() {
                    break;
                }
            }
        });
    }
    lines
}

/// A line of the job's output.
#[derive(Debug, PartialEq)]
struct Line {
    /// As it goes to the host.
    message: Vec<u8>,
    /// It begins like a measurement and is none.
    bad_sample: bool,
}

fn as_message(mut line: Vec<u8>) -> Line {
    if serde_json::from_slice::<Message>(&line).is_ok() {
        line.push(b'\n');
        return Line { message: line, bad_sample: false };
    }
    let bad_sample = line.trim_ascii_start().starts_with(SAMPLE_START);
    Line { message: to_line(&Message::Log(String::from_utf8_lossy(&line).into_owned())), bad_sample }
}

fn vmstat(text: &str) -> BTreeMap<String, i64> {
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.trim().parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_found_by_its_name() {
        let root = tempfile::tempdir().unwrap();
        for (port, name) in [("vport1p1", "other"), ("vport1p2", CONTROL_PORT)] {
            let dir = root.path().join("sys/class/virtio-ports").join(port);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("name"), format!("{name}\n")).unwrap();
        }
        assert_eq!(find_port(root.path(), CONTROL_PORT), Some(root.path().join("dev/vport1p2")));
        assert_eq!(find_port(root.path(), BULK_PORT), None);
    }

    #[test]
    fn what_is_no_message_becomes_a_log_line() {
        let line = |text: &[u8]| String::from_utf8(as_message(text.to_vec()).message).unwrap();
        assert_eq!(line(b"{\"log\":\"x\"}"), "{\"log\":\"x\"}\n");
        assert_eq!(line(b"plain \"text\""), "{\"log\":\"plain \\\"text\\\"\"}\n");
        assert_eq!(line(&[0xff]), "{\"log\":\"\u{fffd}\"}\n");
    }

    #[test]
    fn what_begins_like_a_measurement_has_to_be_one() {
        let bad = |text: &str| as_message(text.as_bytes().to_vec()).bad_sample;
        let with = |value: &str| {
            format!(r#"{{"sample":{{"metric":"m","dimensions":{{}},"value":{value},"unit":"ns"}}}}"#)
        };
        assert!(!bad(&with("1.5")) && !bad("sample") && !bad("{\"log\":\"sample\"}"));
        assert!(
            bad(&with("NaN"))
                && bad(&with("\"1\""))
                && bad("{\"sample\":{\"metric\":5}}")
                && bad("{\"sample\":")
        );
    }

    #[test]
    fn counters_are_read_and_other_lines_skipped() {
        let counters = vmstat("nr_free_pages 100\npgmigrate_success 7\nbroken\nname word\n");
        assert_eq!(counters.len(), 2);
        assert_eq!(counters["pgmigrate_success"], 7);
    }
}
