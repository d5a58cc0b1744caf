//! Guests: what they look like, which accelerator boots them, and a running one.

pub mod accel;
pub(crate) mod args;
pub mod console;
mod qemu;
pub mod running;
pub mod spec;

pub use accel::{Accelerator, Probe, probe};
pub use args::{kernel_cmdline, qemu_args};
pub use qemu::Qemu;
pub use running::{Collected, Ended, Failure, FailureKind, Guest, JobOutput, Launch};
pub use spec::GuestSpec;
