//! Driving the kernel's makefiles.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::Progress;
use super::config::{Fragment, Options, not_taken, to_text};
use crate::Stop;
use crate::cache::{Lock, write_whole};
use crate::child::Contained;
use crate::error::{IoContext, LabError, Result};

/// Lines of a failed build that are shown.
const TAIL_LINES: usize = 20;

/// The compiler that kbuild will use, with the tools that also shape the image.
pub(super) fn compiler() -> Result<String> {
    let first_line = |program: &str| -> Result<String> {
        let tool = |reason: String| LabError::Tool { program: program.to_owned(), reason };
        let output = Command::new(program)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| tool(format!("{error}; `cargo xtask lab-setup` installs it")))?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
    };
    Ok(format!("{}, pahole {}", first_line("gcc")?, first_line("pahole")?))
}

/// One source tree with one directory for objects.
pub(super) struct Make<'a> {
    pub(super) tree: &'a Path,
    pub(super) objects: &'a Path,
    pub(super) log: PathBuf,
    pub(super) jobs: usize,
    /// Inherited by make and all its children: should the lab be killed, the lock stays until they have ended.
    pub(super) lock: &'a Lock,
}

impl Make<'_> {
    /// Writes the `.config`, unless the options are those of the last time.
    pub(super) fn configure(&self, options: &Options, stop: &Stop) -> Result<()> {
        let config = self.objects.join(".config");
        let asked = to_text(options);
        let stamp = self.objects.join(".quell-options");
        if config.exists() && fs::read_to_string(&stamp).is_ok_and(|text| text == asked) {
            return Ok(());
        }
        let mut log = File::create(&self.log).context("create", &self.log)?;
        self.run(&["tinyconfig"], &mut log, stop, &mut |_| ())?;
        let mut file = File::options().append(true).open(&config).context("open", &config)?;
        file.write_all(asked.as_bytes()).context("write", &config)?;
        self.run(&["olddefconfig"], &mut log, stop, &mut |_| ())?;
        let text = fs::read_to_string(&config).context("read", &config)?;
        let missing = not_taken(options, &Fragment::parse(&config, &text)?.options);
        if !missing.is_empty() {
            return Err(LabError::ConfigNotTaken { options: missing });
        }
        write_whole(&stamp, asked.as_bytes())
    }

    /// Builds `bzImage`.
    pub(super) fn build(&self, stop: &Stop, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let mut log = File::create(&self.log).context("create", &self.log)?;
        let steps_file = self.objects.join(".quell-steps");
        let of = fs::read_to_string(&steps_file).ok().and_then(|text| text.trim().parse().ok());
        let mut done = 0;
        self.run(&["bzImage"], &mut log, stop, &mut |line| {
            if line.starts_with("  ") {
                done += 1;
                progress(Progress::Make { done, of, line: line.trim().to_owned() });
            }
        })?;
        // Later builds are incremental, so the largest count is that of a complete one.
        if done > of.unwrap_or(0) {
            write_whole(&steps_file, done.to_string().as_bytes())?;
        }
        Ok(())
    }

    fn run(&self, targets: &[&str], log: &mut File, stop: &Stop, line: &mut dyn FnMut(&str)) -> Result<()> {
        let mut command = Command::new("make");
        command.arg("-C").arg(self.tree).arg(format!("O={}", self.objects.display()));
        command.arg(format!("-j{}", self.jobs.max(1))).args(targets);
        // The image must not depend on who built it and when.
        command.env("KBUILD_BUILD_USER", "quell").env("KBUILD_BUILD_HOST", "lab");
        command.env("KBUILD_BUILD_TIMESTAMP", "1970-01-01").env("KBUILD_BUILD_VERSION", "1");
        command.env("LC_ALL", "C").env_remove("MAKEFLAGS").env_remove("MAKELEVEL").env_remove("MFLAGS");
        let errors = log.try_clone().context("share", &self.log)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
        let tool = |reason: String| LabError::Tool { program: String::from("make"), reason };
        let lock = self.lock.inheritable().context("share", "the lock of the cache")?;
        // SIGTERM, not SIGKILL, lets make end its children and remove half-written files.
        let mut child = Contained::spawn(command, vec![lock], Signal::SIGTERM)
            .map_err(|error| tool(error.to_string()))?;
        let output = child.inner().stdout.take().expect("make's output is a pipe");
        let (sender, lines) = mpsc::channel();
        let reader = thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
        loop {
            match lines.recv_timeout(Duration::from_millis(200)) {
                Ok(text) => {
                    writeln!(log, "{text}").context("write", &self.log)?;
                    line(&text);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Err(interrupted) = stop.check() {
                child.terminate(Duration::from_secs(5));
                return Err(interrupted);
            }
        }
        let _ = reader.join();
        let status = child.wait_or_stop(stop)?;
        if status.success() { Ok(()) } else { Err(self.failure(&status.to_string())) }
    }

    fn failure(&self, status: &str) -> LabError {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
        let reason = if text.contains("No space left on device") {
            String::from("the disk is full")
        } else {
            format!("make: {status}")
        };
        LabError::BuildFailed { reason, log: self.log.clone(), tail }
    }
}
