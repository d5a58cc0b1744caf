//! A running guest, from its boot to its end.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use quell_migrate::Settings;
use quell_plug::Qmp;
use serde::{Deserialize, Serialize};

use super::accel::Accelerator;
use super::args::{SOCKETS, qemu_args};
use super::console::{Splat, out_of_memory, splats, tail};
use super::qemu::Qemu;
use super::spec::GuestSpec;
use crate::Stop;
use crate::child::Contained;
use crate::error::{IoContext, LabError, Result};
use crate::protocol::{Done, Hello, Job, Measurement, Message, Request, to_line};

/// How long QEMU may take to answer on its monitor, even on a busy host.
const QMP_DEADLINE: Duration = Duration::from_secs(60);
/// What a job may take beyond its own limit, for its messages to arrive.
const JOB_GRACE: Duration = Duration::from_secs(60);
/// Most that is kept of a console.
const CONSOLE_BYTES: usize = 4 << 20;

/// What is needed to start a guest.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The QEMU to use.
    pub qemu: &'a Qemu,
    /// The machine.
    pub spec: &'a GuestSpec,
    /// KVM or TCG.
    pub accelerator: Accelerator,
    /// The `bzImage`.
    pub kernel: &'a Path,
    /// The archive that [`crate::initramfs::build`] made.
    pub initramfs: &'a Path,
    /// The kernel's command line.
    pub cmdline: String,
    /// Where the console is kept as it comes; `None` keeps it in memory only.
    pub console_file: Option<PathBuf>,
}

/// What went wrong with a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// It did not answer in time.
    Hang,
    /// Its kernel panicked.
    Panic,
    /// It ran out of memory.
    OutOfMemory,
    /// QEMU ended by itself.
    QemuExited,
    /// The job reported an error.
    JobFailed,
    /// Its kernel reported a bug.
    Splat,
    /// Its clock runs faster than the host's, so its durations mean nothing.
    Clock,
}

/// A guest's failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Which kind.
    pub kind: FailureKind,
    /// Details in words.
    pub detail: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            FailureKind::Hang => "hung",
            FailureKind::Panic => "kernel panic",
            FailureKind::OutOfMemory => "out of memory",
            FailureKind::QemuExited => "QEMU ended",
            FailureKind::JobFailed => "the job failed",
            FailureKind::Splat => "the kernel reported a bug",
            FailureKind::Clock => "its clock is wrong",
        };
        write!(f, "{kind}: {}", self.detail)
    }
}

/// What is left of a guest.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// Its whole console.
    pub console: String,
    /// What QEMU wrote to its standard error.
    pub qemu_errors: String,
    /// Kernel bug reports on the console.
    pub splats: Vec<Splat>,
    /// Why it failed, if it did.
    pub failure: Option<Failure>,
}

/// A file that a job asked to be collected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collected {
    /// Its path in the guest.
    pub path: String,
    /// Its content.
    pub content: Vec<u8>,
}

/// What a job has sent.
#[derive(Clone, Debug, Default)]
pub struct JobOutput {
    /// What it measured, in order.
    pub samples: Vec<Measurement>,
    /// Its surroundings in the guest.
    pub settings: Option<Settings>,
    /// Lines that it wrote.
    pub log: Vec<String>,
    /// The files asked for.
    pub files: Vec<Collected>,
    /// What `/proc/vmstat` counted meanwhile; counters that did not move are left out.
    pub vmstat: BTreeMap<String, i64>,
}

/// A running guest. Dropping it ends QEMU at once.
#[derive(Debug)]
pub struct Guest {
    process: Contained,
    control: UnixStream,
    received: Vec<u8>,
    console: Capture,
    errors: Capture,
    bulk: Capture,
    bulk_used: usize,
    stop: Stop,
    /// What the agent said of itself.
    pub hello: Hello,
}

impl Guest {
    /// Starts QEMU and waits for the agent.
    ///
    /// A guest that does not come up is the inner error, with its console.
    ///
    /// # Errors
    /// If QEMU cannot be started at all, or on Ctrl-C.
    pub fn boot(launch: &Launch<'_>, stop: &Stop) -> Result<Result<Self, Box<Ended>>> {
        let mut guest = Self::spawn(launch, stop)?;
        let deadline = Instant::now() + launch.accelerator.boot_deadline();
        match guest.wait_for(deadline, |message| match message {
            Message::Hello(hello) => Some(hello),
            _ => None,
        })? {
            Ok(hello) => guest.hello = hello,
            Err(failure) => return Ok(Err(Box::new(guest.end_with(Some(failure))))),
        }
        Ok(Ok(guest))
    }

    fn spawn(launch: &Launch<'_>, stop: &Stop) -> Result<Self> {
        launch.qemu.check(launch.spec)?;
        let program = &launch.qemu.program;
        let mut ours = Vec::new();
        let mut theirs: Vec<OwnedFd> = Vec::new();
        for _ in SOCKETS {
            let (here, there) = UnixStream::pair().context("make a socket for", program)?;
            ours.push(here);
            theirs.push(there.into());
        }
        let mut command = Command::new(program);
        command.args(qemu_args(
            launch.spec,
            launch.accelerator,
            launch.kernel,
            launch.initramfs,
            &launch.cmdline,
        ));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let file = match &launch.console_file {
            Some(path) => Some(File::create(path).context("create", path)?),
            None => None,
        };
        let mut process = Contained::spawn(command, theirs, Signal::SIGKILL).context("start", program)?;
        let stdout = process.inner().stdout.take().expect("QEMU's output is a pipe");
        let stderr = process.inner().stderr.take().expect("QEMU's errors are a pipe");
        let console = Capture::start(stdout, file, CONSOLE_BYTES);
        let errors = Capture::start(stderr, None, CONSOLE_BYTES);
        let (Some(qmp), Some(bulk), Some(control)) = (ours.pop(), ours.pop(), ours.pop()) else {
            unreachable!("three sockets were made")
        };
        control.set_read_timeout(Some(Duration::from_millis(100))).context("set up", "the control socket")?;
        let bulk = Capture::start(bulk, None, usize::MAX);
        if !launch.spec.pin.is_empty() {
            let pinned = Qmp::connect(qmp, QMP_DEADLINE).and_then(|mut qmp| qmp.pin(&launch.spec.pin));
            pinned.map_err(|error| LabError::Guest { reason: format!("pinning its vCPUs: {error}") })?;
        }
        Ok(Self {
            process,
            control,
            received: Vec::new(),
            console,
            errors,
            bulk,
            bulk_used: 0,
            stop: stop.clone(),
            hello: Hello::default(),
        })
    }

    /// Runs a job to its end. What it sends is added to `output` as it comes, so that a failure leaves it there.
    ///
    /// # Errors
    /// Outer: Ctrl-C. Inner: the guest or its job failed.
    pub fn run(&mut self, job: &Job, output: &mut JobOutput) -> Result<Result<(), Failure>> {
        if let Err(error) = self.control.write_all(&to_line(&Request::Job(job.clone()))) {
            return Ok(Err(self.diagnose(&format!("it takes no job: {error}"))));
        }
        let mut files = Vec::new();
        let start = Instant::now();
        let deadline = Instant::now() + Duration::from_secs(job.timeout_s) + JOB_GRACE;
        let done = self.wait_for(deadline, |message| {
            match message {
                Message::Done(done) => return Some(done),
                Message::File { path, bytes } => files.push((path, bytes as usize)),
                Message::Sample(sample) => output.samples.push(sample),
                Message::Settings(settings) => output.settings = Some(settings),
                Message::Log(line) => output.log.push(line),
                Message::Hello(_) => {}
            }
            None
        })?;
        let done = match done {
            Ok(done) => done,
            Err(failure) => return Ok(Err(failure)),
        };
        let host_seconds = start.elapsed().as_secs_f64();
        for (path, bytes) in files {
            match self.take_bulk(bytes, deadline)? {
                Some(content) => output.files.push(Collected { path, content }),
                None => return Ok(Err(self.hang(&format!("{path} did not arrive whole")))),
            }
        }
        let failure =
            self.job_failure(job, &done, &output.log).or_else(|| clock_failure(&done, host_seconds));
        output.vmstat = done.vmstat;
        Ok(failure.map_or(Ok(()), Err))
    }

    fn job_failure(&self, job: &Job, done: &Done, log: &[String]) -> Option<Failure> {
        let failed = |detail: String| Some(Failure { kind: FailureKind::JobFailed, detail });
        if done.timed_out {
            return failed(format!("it was killed after {} s", job.timeout_s));
        }
        let how = match (done.exit_code, done.signal) {
            (Some(0), _) if done.bad_samples > 0 => {
                let first = log.iter().find(|line| line.trim_start().starts_with("{\"sample\""));
                let (count, first) = (done.bad_samples, first.map_or("", String::as_str));
                return failed(format!(
                    "{count} lines look like measurements and are none, the first: {first}"
                ));
            }
            (Some(0), _) => return None,
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => String::from("no exit status"),
        };
        if out_of_memory(&self.console.text()) {
            let detail = format!("the kernel killed the job ({how})");
            return Some(Failure { kind: FailureKind::OutOfMemory, detail });
        }
        failed(format!("{how}: {}", log.last().map_or("it said nothing", String::as_str)))
    }

    fn take_bulk(&mut self, bytes: usize, deadline: Instant) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some(content) = self.bulk.slice(self.bulk_used, bytes) {
                self.bulk_used += bytes;
                return Ok(Some(content));
            }
            self.stop.check()?;
            if Instant::now() > deadline {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Reads messages until `pick` takes one.
    fn wait_for<T>(
        &mut self,
        deadline: Instant,
        mut pick: impl FnMut(Message) -> Option<T>,
    ) -> Result<Result<T, Failure>> {
        let mut buffer = [0; 64 << 10];
        loop {
            while let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                match serde_json::from_slice(&line) {
                    Ok(message) => {
                        if let Some(picked) = pick(message) {
                            return Ok(Ok(picked));
                        }
                    }
                    Err(error) => {
                        let text = String::from_utf8_lossy(&line).trim().to_owned();
                        return Ok(Err(self.diagnose(&format!("it sent {text:?}: {error}"))));
                    }
                }
            }
            self.stop.check()?;
            if Instant::now() > deadline {
                return Ok(Err(self.hang("it did not answer in time")));
            }
            match self.control.read(&mut buffer) {
                Ok(0) => return Ok(Err(self.diagnose("its control port is closed"))),
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error)
                    if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&error.kind()) => {}
                Err(error) => return Ok(Err(self.diagnose(&format!("its control port: {error}")))),
            }
        }
    }

    fn hang(&self, detail: &str) -> Failure {
        let tail = tail(&self.console.text(), 3);
        let said =
            if tail.is_empty() { String::from("its console is empty") } else { format!("last: {tail}") };
        Failure { kind: FailureKind::Hang, detail: format!("{detail}; {said}") }
    }

    /// Finds out why QEMU stopped talking.
    fn diagnose(&mut self, detail: &str) -> Failure {
        let status = self.process.wait_until(Instant::now() + Duration::from_secs(5)).ok().flatten();
        self.console.wait_end(Duration::from_secs(2));
        self.errors.wait_end(Duration::from_secs(2));
        let console = self.console.text();
        if let Some(panic) =
            splats(&console).into_iter().rev().find(|splat| splat.title.contains("Kernel panic"))
        {
            let kind = if panic.title.contains("out of memory")
                || panic.title.contains("System is deadlocked on memory")
            {
                FailureKind::OutOfMemory
            } else {
                FailureKind::Panic
            };
            return Failure { kind, detail: panic.title };
        }
        let status = status.map_or_else(|| String::from("still running"), |status| status.to_string());
        let said = tail(self.errors.text().trim(), 3);
        let detail = [detail, &status, &said]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("; ");
        Failure { kind: FailureKind::QemuExited, detail }
    }

    /// Asks the guest to power off, waits for that long, and then ends it by force.
    #[must_use]
    pub fn end(mut self, grace: Duration) -> Ended {
        if !grace.is_zero() && self.control.write_all(&to_line(&Request::Shutdown)).is_ok() {
            let _ = self.process.wait_until(Instant::now() + grace);
        }
        self.end_with(None)
    }

    /// Ends the guest and keeps `failure`; without one, a kernel bug report is the failure.
    #[must_use]
    pub(crate) fn end_with(mut self, failure: Option<Failure>) -> Ended {
        self.process.kill();
        self.console.wait_end(Duration::from_secs(2));
        self.errors.wait_end(Duration::from_secs(2));
        let console = self.console.text();
        let splats = splats(&console);
        let splat =
            splats.first().map(|splat| Failure { kind: FailureKind::Splat, detail: splat.title.clone() });
        Ended { qemu_errors: self.errors.text(), failure: failure.or(splat), splats, console }
    }
}

/// A job cannot have taken longer in the guest than on the host, where its beginning and end were also waited for. The
/// margin is for short jobs and the rounding of rates.
fn clock_failure(done: &Done, host_seconds: f64) -> Option<Failure> {
    (done.seconds > host_seconds * 1.05 + 0.2).then(|| Failure {
        kind: FailureKind::Clock,
        detail: format!(
            "the job took {:.1} s by the guest's clock, and {host_seconds:.1} s by the host's",
            done.seconds
        ),
    })
}

/// A stream read by a thread of its own into memory, and into a file.
#[derive(Debug)]
struct Capture {
    bytes: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<()>,
}

impl Capture {
    fn start(mut stream: impl Read + Send + 'static, mut file: Option<File>, most: usize) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&bytes);
        let thread = thread::spawn(move || {
            let mut buffer = [0; 64 << 10];
            loop {
                match stream.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => {
                        if let Some(file) = &mut file {
                            let _ = file.write_all(&buffer[..count]);
                        }
                        let mut bytes = shared.lock().unwrap_or_else(PoisonError::into_inner);
                        let room = most.saturating_sub(bytes.len()).min(count);
                        bytes.extend_from_slice(&buffer[..room]);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
        });
        Self { bytes, thread }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    fn slice(&self, from: usize, count: usize) -> Option<Vec<u8>> {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.get(from..from.checked_add(count)?).map(<[u8]>::to_vec)
    }

    /// Waits until the stream has ended, so that nothing of it is missed.
    fn wait_end(&self, most: Duration) {
        let end = Instant::now() + most;
        while !self.thread.is_finished() && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
    }
}
