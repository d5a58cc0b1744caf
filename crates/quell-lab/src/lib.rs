//! The lab: builds a kernel, boots it in QEMU, and runs A/B experiments on fresh guests.
//!
//! A guest boots from an archive that holds nothing but the `quell` binary and its libraries; that binary is
//! its first process and takes jobs over virtio-serial ([`agent`]). [`kernel`] builds the kernel from a
//! distribution's source, the repository's patch series and its configuration fragments, and keeps the images
//! by content. [`guest`] runs one QEMU, which cannot outlive the lab and leaves no file behind.

#![deny(unsafe_code)]

pub mod agent;
mod cache;
mod child;
pub mod doctor;
mod error;
pub mod experiment;
pub mod guest;
pub mod initramfs;
pub mod kernel;
mod program;
mod protocol;
pub mod repo;
mod stop;

pub use cache::{Cache, Lock, sha256};
pub use error::{LabError, Result, nearest};
pub use protocol::{Hello, Job, Measurement, QuellCommand, TRACE_FILE, Tracing, Workload};
pub use quell_plug::Size;
pub use stop::Stop;
