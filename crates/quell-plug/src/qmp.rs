//! QEMU's control protocol, with a deadline on every answer.

use std::io::{BufRead, BufReader, Error, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use qapi::{Command, ExecuteError, Stream, qmp};

use crate::error::{PlugError, Result};

/// A connection to QEMU's monitor.
pub struct Qmp {
    inner: qapi::Qmp<Stream<BufReader<UnixStream>, UnixStream>>,
}

impl std::fmt::Debug for Qmp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qmp").finish_non_exhaustive()
    }
}

impl Qmp {
    /// Connects to the socket of a running QEMU.
    ///
    /// # Errors
    /// [`PlugError::Connect`].
    pub fn open(path: &Path, deadline: Duration) -> Result<Self> {
        let connected = UnixStream::connect(path).map_err(ExecuteError::from);
        let greeted = connected.and_then(|socket| Self::connect(socket, deadline));
        greeted.map_err(|error| PlugError::Connect { path: path.to_owned(), reason: error.to_string() })
    }

    /// Greets QEMU on the socket; every answer, now and later, must come within `deadline`.
    ///
    /// # Errors
    /// If QEMU has ended or does not answer.
    pub fn connect(socket: UnixStream, deadline: Duration) -> Result<Self, ExecuteError> {
        socket.set_read_timeout(Some(deadline))?;
        socket.set_write_timeout(Some(deadline))?;
        let mut reader = BufReader::new(socket.try_clone()?);
        // The library panics on a closed socket at this point.
        if reader.fill_buf()?.is_empty() {
            return Err(Error::new(ErrorKind::UnexpectedEof, "QEMU closed its monitor").into());
        }
        let mut inner = qapi::Qmp::new(Stream::new(reader, socket));
        inner.handshake()?;
        Ok(Self { inner })
    }

    /// Executes a command of [`qapi::qmp`].
    ///
    /// # Errors
    /// What QEMU answers, or a missed deadline; after that the connection is of no use.
    pub fn execute<C: Command>(&mut self, command: &C) -> Result<C::Ok, ExecuteError> {
        self.inner.execute(command)
    }

    /// Pins each vCPU's thread to the host CPU of the same place in `host_cpus`.
    ///
    /// # Errors
    /// If QEMU does not answer or a CPU does not exist.
    pub fn pin(&mut self, host_cpus: &[u32]) -> Result<(), ExecuteError> {
        for vcpu in self.execute(&qmp::query_cpus_fast {})? {
            let qmp::CpuInfoFast::x86_64(base) = vcpu else { continue };
            let Some(&cpu) = host_cpus.get(base.cpu_index as usize) else { continue };
            let mut set = CpuSet::new();
            set.set(cpu as usize).map_err(Error::from)?;
            sched_setaffinity(Pid::from_raw(base.thread_id as i32), &set).map_err(Error::from)?;
        }
        Ok(())
    }
}
