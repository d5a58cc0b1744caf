//! Child processes that cannot outlive the lab.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, getpid, getppid};

use crate::Stop;
use crate::error::{IoContext, Result};

/// A child in a process group of its own, killed with its group on drop, and by the kernel if the thread
/// that spawned it ends.
#[derive(Debug)]
pub(crate) struct Contained {
    child: Child,
    status: Option<ExitStatus>,
}

impl Contained {
    /// Spawns the command. `fds[i]` becomes descriptor `FIRST_FD + i` of the child. On the parent's death the
    /// child gets `on_death`.
    pub(crate) fn spawn(mut command: Command, fds: Vec<OwnedFd>, on_death: Signal) -> io::Result<Self> {
        command.process_group(0);
        let sources: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let parent = getpid();
        let setup = move || prepare(&sources, parent, on_death);
        // SAFETY: `prepare` runs in the child between fork and exec. It only makes async-signal-safe system
        // calls (prctl, getppid, fcntl, dup2) and allocates nothing.
        unsafe { command.pre_exec(setup) };
        let child = command.spawn()?;
        drop(fds);
        Ok(Self { child, status: None })
    }

    pub(crate) fn inner(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The exit status, if the child has ended.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    /// Waits for the end until `deadline`.
    pub(crate) fn wait_until(&mut self, deadline: Instant) -> io::Result<Option<ExitStatus>> {
        loop {
            let status = self.ended()?;
            if status.is_some() || Instant::now() >= deadline {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the end; on [`Stop`] the group is killed.
    pub(crate) fn wait_or_stop(&mut self, stop: &Stop) -> Result<ExitStatus> {
        loop {
            let soon = Instant::now() + Duration::from_millis(200);
            if let Some(status) = self.wait_until(soon).context("wait for", "a child process")? {
                return Ok(status);
            }
            if let Err(interrupted) = stop.check() {
                self.terminate(Duration::from_secs(5));
                return Err(interrupted);
            }
        }
    }

    /// Ends the whole group: politely, then after `grace` by force.
    pub(crate) fn terminate(&mut self, grace: Duration) {
        self.signal(Signal::SIGTERM);
        let _ = self.wait_until(Instant::now() + grace);
        self.kill();
    }

    /// Ends the whole group by force and reaps the child.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        if self.status.is_none() {
            self.status = self.child.wait().ok();
        }
    }

    fn signal(&self, signal: Signal) {
        // Once the child is reaped its process group number may belong to somebody else.
        if self.status.is_none() {
            let _ = killpg(Pid::from_raw(self.child.id().cast_signed()), signal);
        }
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        self.kill();
    }
}

/// First descriptor that [`Contained::spawn`] hands to its child: far above those that the standard library
/// itself uses between fork and exec.
pub(crate) const FIRST_FD: RawFd = 100;

fn prepare(sources: &[RawFd], parent: Pid, on_death: Signal) -> io::Result<()> {
    prctl::set_pdeathsig(on_death)?;
    if getppid() != parent {
        return Err(io::Error::from(io::ErrorKind::Interrupted));
    }
    // The sources are first moved out of the way of the targets, so that no dup2 overwrites a later source.
    let base = FIRST_FD + sources.len() as RawFd;
    let mut moved = [-1; 8];
    for (slot, &source) in moved.iter_mut().zip(sources) {
        // SAFETY: fcntl with F_DUPFD_CLOEXEC only creates a new descriptor.
        *slot = unsafe { libc::fcntl(source, libc::F_DUPFD_CLOEXEC, base) };
        if *slot < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    for (target, &source) in (FIRST_FD..).zip(&moved[..sources.len()]) {
        // SAFETY: nothing in the child between fork and exec owns `target`.
        if unsafe { libc::dup2(source, target) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
