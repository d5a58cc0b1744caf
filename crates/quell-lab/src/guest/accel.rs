//! Which accelerator really boots a kernel here.
//!
//! `/dev/kvm` says little: behind some clouds' modules it opens and then runs no ordinary kernel. So the
//! lab boots one, with a deadline, and takes TCG where that fails.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::args;
use super::qemu::Qemu;
use super::running::{Guest, Launch};
use super::spec::GuestSpec;
use crate::Stop;
use crate::cache::{Cache, Key, write_whole};
use crate::error::{LabError, Result};
use crate::kernel::Kernel;

/// How long a boot may take. A healthy KVM needs about 2 s.
const KVM_DEADLINE: Duration = Duration::from_secs(25);
/// TCG needs about 4 s on an idle machine and much more on a busy one.
const TCG_DEADLINE: Duration = Duration::from_secs(180);

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accelerator {
    /// The CPU, through KVM.
    Kvm,
    /// QEMU's translator: absolute times mean nothing.
    Tcg,
}

impl Accelerator {
    pub(super) fn qemu(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg,thread=multi",
        }
    }

    pub(super) fn cpu(self) -> &'static str {
        match self {
            Self::Kvm => "host",
            Self::Tcg => "max",
        }
    }

    /// Name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "KVM",
            Self::Tcg => "TCG",
        }
    }

    /// How long a guest may take to its agent.
    #[must_use]
    pub fn boot_deadline(self) -> Duration {
        match self {
            Self::Kvm => KVM_DEADLINE,
            Self::Tcg => TCG_DEADLINE,
        }
    }
}

/// The outcome of the probe boots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// The one to use.
    pub accelerator: Accelerator,
    /// Seconds that its probe boot took.
    pub boot_seconds: f64,
    /// Why KVM is not used; `None` if it is.
    pub kvm_problem: Option<String>,
}

/// Boots the kernel with KVM and, if that does not reach the agent in time, with TCG. The answer is kept in
/// the cache for this QEMU and this boot of the host.
///
/// # Errors
/// [`LabError::NoAccelerator`] if neither boots.
pub fn probe(cache: &Cache, qemu: &Qemu, kernel: &Kernel, initramfs: &Path, stop: &Stop) -> Result<Probe> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mut key = Key::default();
    key.add("qemu", qemu.version.as_bytes()).add("host", boot_id.trim().as_bytes());
    let saved = cache.dir("probes")?.join(format!("{}.json", key.short()));
    if let Some(probe) = fs::read(&saved).ok().and_then(|text| serde_json::from_slice(&text).ok()) {
        return Ok(probe);
    }
    let boots = |accelerator| try_boot(qemu, accelerator, kernel, initramfs, stop);
    let kvm = match kvm_device() {
        Ok(()) => boots(Accelerator::Kvm)?,
        Err(reason) => Err(reason),
    };
    let probe = match kvm {
        Ok(boot_seconds) => Probe { accelerator: Accelerator::Kvm, boot_seconds, kvm_problem: None },
        Err(problem) => match boots(Accelerator::Tcg)? {
            Ok(boot_seconds) => {
                Probe { accelerator: Accelerator::Tcg, boot_seconds, kvm_problem: Some(problem) }
            }
            Err(tcg) => {
                return Err(LabError::NoAccelerator { reason: format!("KVM: {problem}; TCG: {tcg}") });
            }
        },
    };
    write_whole(&saved, &serde_json::to_vec_pretty(&probe).expect("a probe is plain data"))?;
    Ok(probe)
}

fn kvm_device() -> Result<(), String> {
    let open = fs::File::options().read(true).write(true).open("/dev/kvm");
    open.map(drop).map_err(|error| format!("/dev/kvm: {error}"))
}

/// Outer error: the lab must end. Inner error: this accelerator does not work.
fn try_boot(
    qemu: &Qemu,
    accelerator: Accelerator,
    kernel: &Kernel,
    initramfs: &Path,
    stop: &Stop,
) -> Result<Result<f64, String>> {
    let spec = GuestSpec::default();
    let launch = Launch {
        qemu,
        spec: &spec,
        accelerator,
        kernel: &kernel.image,
        initramfs,
        cmdline: args::kernel_cmdline(&spec, accelerator, ""),
        console_file: None,
    };
    let start = Instant::now();
    match Guest::boot(&launch, stop)? {
        Ok(guest) => {
            let seconds = start.elapsed().as_secs_f64();
            drop(guest);
            Ok(Ok(seconds))
        }
        Err(ended) => Ok(Err(ended.failure.map_or_else(String::new, |failure| failure.to_string()))),
    }
}
