//! What a guest looks like, as an experiment file describes it.

use serde::{Deserialize, Serialize};

use crate::Size;

/// The virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestSpec {
    /// vCPUs.
    #[serde(default = "default_cpus")]
    pub cpus: u32,
    /// Boot memory; with `nodes` it must be their sum, and may be left out.
    #[serde(default)]
    pub memory: Option<Size>,
    /// NUMA nodes, from node 0; none for a machine without NUMA.
    #[serde(default)]
    pub nodes: Vec<Node>,
    /// Largest memory size after hotplug; needed for `virtio_mem`.
    #[serde(default)]
    pub max_memory: Option<Size>,
    /// Devices that can plug memory at run time.
    #[serde(default)]
    pub virtio_mem: Vec<VirtioMem>,
    /// Further words of the kernel command line.
    #[serde(default)]
    pub cmdline: String,
    /// Host CPUs for the vCPUs, in their order; empty leaves them to the host's scheduler.
    #[serde(default)]
    pub pin: Vec<u32>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its boot memory.
    pub memory: Size,
    /// Its vCPUs, as QEMU writes them (`0-1`); none for a node with only memory.
    #[serde(default)]
    pub cpus: Option<String>,
}

/// A virtio-mem device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VirtioMem {
    /// Name of the device in QEMU (`/machine/peripheral/ID`).
    pub id: String,
    /// Largest amount that it can plug.
    pub size: Size,
    /// Node that it belongs to.
    #[serde(default)]
    pub node: u32,
    /// Amount plugged at boot.
    #[serde(default)]
    pub requested: Size,
}

const fn default_cpus() -> u32 {
    2
}

impl Default for GuestSpec {
    /// Two vCPUs, one node, 1 GiB.
    fn default() -> Self {
        Self {
            cpus: default_cpus(),
            memory: None,
            nodes: Vec::new(),
            max_memory: None,
            virtio_mem: Vec::new(),
            cmdline: String::new(),
            pin: Vec::new(),
        }
    }
}

impl GuestSpec {
    /// Boot memory of all nodes, in bytes; 1 GiB where nothing says otherwise.
    #[must_use]
    pub fn boot_memory(&self) -> Size {
        let nodes = self.nodes.iter().map(|node| node.memory.0).sum();
        self.memory.unwrap_or(if self.nodes.is_empty() { Size(1 << 30) } else { Size(nodes) })
    }

    /// Checks what QEMU would only report cryptically.
    ///
    /// # Errors
    /// The reason, in words.
    pub fn validate(&self) -> Result<(), String> {
        if !(1..=64).contains(&self.cpus) {
            return Err(format!("`cpus` is {}: must be 1 to 64", self.cpus));
        }
        let sum: u64 = self.nodes.iter().map(|node| node.memory.0).sum();
        if !self.nodes.is_empty() && self.boot_memory().0 != sum {
            return Err(format!("`memory` is {}, but the nodes have {}", self.boot_memory(), Size(sum)));
        }
        if self.boot_memory().0 < 128 << 20 {
            return Err(format!("{} of memory cannot boot: give it 128M or more", self.boot_memory()));
        }
        if !self.virtio_mem.is_empty() {
            let most = self.boot_memory().0 + self.virtio_mem.iter().map(|device| device.size.0).sum::<u64>();
            if self.max_memory.is_none_or(|max| max.0 < most) {
                return Err(format!("`virtio_mem` needs `max_memory` of at least {}", Size(most)));
            }
        }
        let word = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if let Some(device) = self.virtio_mem.iter().find(|device| device.id.is_empty() || !word(&device.id))
        {
            return Err(format!("the virtio_mem id {:?} is not a plain word", device.id));
        }
        let range = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b == b'-');
        if let Some(cpus) =
            self.nodes.iter().filter_map(|node| node.cpus.as_deref()).find(|cpus| !range(cpus))
        {
            return Err(format!("`cpus = {cpus:?}` of a node is not a range like \"0-1\""));
        }
        if !self.pin.is_empty() && self.pin.len() != self.cpus as usize {
            return Err(format!("`pin` names {} host CPUs for {} vCPUs", self.pin.len(), self.cpus));
        }
        Ok(())
    }

    /// Devices that QEMU must have for this guest.
    #[must_use]
    pub fn devices(&self) -> Vec<&'static str> {
        let mut devices = vec!["virtio-serial-pci", "virtserialport"];
        if !self.virtio_mem.is_empty() {
            devices.push("virtio-mem-pci");
        }
        devices
    }
}
