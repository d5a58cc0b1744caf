//! Which QEMU is here, and what it can do.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::spec::GuestSpec;
use crate::error::{LabError, Result};

const PROGRAM: &str = "qemu-system-x86_64";
const MISSING: &str = "install the Debian package qemu-system-x86 (`cargo xtask lab-setup` does)";

/// An installed QEMU.
#[derive(Clone, Debug)]
pub struct Qemu {
    /// The program.
    pub program: PathBuf,
    /// First line of `--version`.
    pub version: String,
    devices: BTreeSet<String>,
}

impl Qemu {
    /// The QEMU on the `PATH`.
    ///
    /// # Errors
    /// If there is none, with the package to install.
    pub fn find() -> Result<Self> {
        Self::at(Path::new(PROGRAM))
    }

    /// This QEMU.
    ///
    /// # Errors
    /// If it cannot be run.
    pub fn at(program: &Path) -> Result<Self> {
        let ask = |args: &[&str]| -> Result<String> {
            let tool = |reason: String| LabError::Tool { program: program.display().to_string(), reason };
            let output = Command::new(program)
                .args(args)
                .stdin(Stdio::null())
                .output()
                .map_err(|error| tool(format!("{error}; {MISSING}")))?;
            if !output.status.success() {
                return Err(tool(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
            }
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let version = ask(&["--version"])?.lines().next().unwrap_or_default().to_owned();
        let devices = parse_devices(&ask(&["-device", "help"])?);
        Ok(Self { program: program.to_owned(), version, devices })
    }

    /// Checks that this guest's devices exist here.
    ///
    /// # Errors
    /// [`LabError::NoDevice`] for the first that does not.
    pub fn check(&self, spec: &GuestSpec) -> Result<()> {
        match spec.devices().into_iter().find(|device| !self.devices.contains(*device)) {
            None => Ok(()),
            Some(device) => Err(LabError::NoDevice {
                version: self.version.clone(),
                device: device.to_owned(),
                hint: "this build of QEMU leaves it out; use the one of the Debian package qemu-system-x86",
            }),
        }
    }
}

/// Lines are `name "virtio-serial-pci", bus PCI, alias "virtio-serial"`.
fn parse_devices(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| Some(line.strip_prefix("name \"")?.split_once('"')?.0.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Size;
    use crate::guest::spec::VirtioMem;

    fn qemu(list: &str) -> Qemu {
        Qemu { program: PROGRAM.into(), version: String::from("QEMU 7.2"), devices: parse_devices(list) }
    }

    #[test]
    fn a_missing_device_is_named_before_anything_is_booted() {
        let list = "Storage devices:\nname \"virtio-serial-pci\", bus PCI, alias \"x\"\nname \"virtserialport\", bus y\n";
        let mut spec = GuestSpec::default();
        qemu(list).check(&spec).unwrap();
        assert!(qemu("").check(&spec).unwrap_err().to_string().contains("virtio-serial-pci"));
        spec.virtio_mem.push(VirtioMem {
            id: String::from("a"),
            size: Size(1 << 30),
            node: 0,
            requested: Size(0),
        });
        let error = qemu(list).check(&spec).unwrap_err().to_string();
        assert!(error.contains("QEMU 7.2 has no device virtio-mem-pci"), "{error}");
    }

    #[test]
    fn no_qemu_names_the_package() {
        let error = Qemu::at(Path::new("/nonexistent/qemu")).unwrap_err().to_string();
        assert!(error.contains("qemu-system-x86"), "{error}");
    }
}
