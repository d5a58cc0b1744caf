//! What can go wrong; a missing kernel feature is not an error but an `Option` or a note.

use std::io;
use std::path::PathBuf;

use quell_core::CpuId;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that must be understood holds something else.
    #[error("cannot understand {path}: {why}", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with its content.
        why: String,
    },
    /// Neither sysfs nor `/proc/cpuinfo` names a single CPU.
    #[error("found no CPU under {root}: neither sys/devices/system/cpu nor proc/cpuinfo lists one; are /sys and /proc mounted?", root = root.display())]
    NoCpus {
        /// The directory that stands for `/`.
        root: PathBuf,
    },
    /// A text is not a list of CPUs.
    #[error("\"{list}\" is not a list of CPUs: {why}; write for example 0,2-3")]
    CpuList {
        /// The text.
        list: String,
        /// What is wrong with it.
        why: String,
    },
    /// The calling thread could not be pinned.
    #[error("cannot run on CPU {cpu}; this process may use CPU {allowed}")]
    Pin {
        /// The CPU asked for.
        cpu: CpuId,
        /// The CPUs that the process may use, as a list.
        allowed: String,
        /// The kernel's answer.
        source: nix::Error,
    },
    /// The kernel did not tell which CPUs the calling thread may use.
    #[error("cannot ask the kernel which CPUs this process may use")]
    Affinity {
        /// The kernel's answer.
        source: nix::Error,
    },
    /// A ping-pong needs two CPUs.
    #[error("cannot measure a round trip from CPU {cpu} to itself")]
    SameCpu {
        /// The CPU named twice.
        cpu: CpuId,
    },
    /// The architecture has no counter that this crate can read.
    #[error("this build has no time-stamp counter to measure with; the probe needs an x86-64 machine")]
    NoTsc,
    /// The counter's rate makes no sense.
    #[error(
        "the time-stamp counter ran at {ticks_per_ms} ticks per ms, outside 10,000 to 100,000,000; it cannot be used as a clock"
    )]
    TscRate {
        /// The measured rate.
        ticks_per_ms: f64,
    },
    /// The reference clock could not be read.
    #[error("cannot read the clock CLOCK_MONOTONIC_RAW")]
    Clock {
        /// The kernel's answer.
        source: nix::Error,
    },
    /// The helper thread of a probe could not be started.
    #[error("cannot start the probe's helper thread for CPU {cpu}")]
    Helper {
        /// The helper's CPU.
        cpu: CpuId,
        /// Why the thread did not start.
        source: io::Error,
    },
}
