//! Memory hotplug by virtio-mem: the host's side, which asks QEMU for another size and watches the device follow
//! ([`resize`]), and the guest's side, which sees what memory it really has ([`guest`]).
//!
//! The two sides can disagree. The device's `size` counts what the guest has *accepted* (plugged); memory is *usable*
//! once the guest has brought it online, and only the guest knows that.

#![forbid(unsafe_code)]

mod device;
mod error;
pub mod guest;
mod qmp;
mod resize;
mod size;

pub use device::{Device, devices, find};
pub use error::{PlugError, Result};
pub use qmp::Qmp;
pub use resize::{Ending, Options, Outcome, Progress, resize};
pub use size::Size;
