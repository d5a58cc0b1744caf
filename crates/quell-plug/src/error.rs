//! What can go wrong.

use std::io;
use std::path::PathBuf;

use crate::Size;

/// An error of this crate. The texts do not repeat their source; print the chain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlugError {
    /// There is no QEMU at the socket.
    #[error(
        "Cannot connect to QEMU's monitor {path}: {reason}; is it the QMP socket (-qmp unix:PATH,server=on,wait=off) of a running QEMU, and not in use?"
    )]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// QEMU refused a command, or did not answer in time.
    #[error("QEMU did not {what}: {reason}")]
    Qmp {
        /// What was asked for.
        what: &'static str,
        /// Its answer.
        reason: String,
    },
    /// No such device.
    #[error("QEMU has no virtio-mem device {id:?}: {known}")]
    NoDevice {
        /// The name asked for.
        id: String,
        /// The devices that there are, in words.
        known: String,
    },
    /// The device cannot take this size.
    #[error("{id} cannot be resized to {size}: {reason}")]
    BadSize {
        /// The device.
        id: String,
        /// The size asked for.
        size: Size,
        /// Why not.
        reason: String,
    },
    /// A file of the kernel cannot be read.
    #[error("Cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file of the kernel has an unknown form.
    #[error("{path} is not understood: {reason}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is missing or wrong.
        reason: String,
    },
}

/// Result of this crate.
pub type Result<T, E = PlugError> = std::result::Result<T, E>;
