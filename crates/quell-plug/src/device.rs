//! The virtio-mem devices of a QEMU.

use qapi::qmp;
use serde::Serialize;

use crate::error::{PlugError, Result};
use crate::{Qmp, Size};

/// A virtio-mem device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Its id in QEMU; `None` for a device without, which cannot be resized.
    pub id: Option<String>,
    /// NUMA node of the guest that it belongs to.
    pub node: i64,
    /// Smallest amount that it plugs.
    pub block: Size,
    /// Largest amount that it can plug.
    pub max: Size,
    /// Amount that the guest is asked to plug.
    pub requested: Size,
    /// Amount that the guest has plugged.
    pub size: Size,
}

/// All virtio-mem devices.
///
/// # Errors
/// If QEMU does not answer.
pub fn devices(qmp: &mut Qmp) -> Result<Vec<Device>> {
    let all = qmp
        .execute(&qmp::query_memory_devices {})
        .map_err(|error| PlugError::Qmp { what: "list its memory devices", reason: error.to_string() })?;
    let devices = all.into_iter().filter_map(|device| match device {
        qmp::MemoryDeviceInfo::virtio_mem(device) => {
            let device = device.into_inner();
            Some(Device {
                id: device.id,
                node: device.node,
                block: Size(device.block_size),
                max: Size(device.max_size),
                requested: Size(device.requested_size),
                size: Size(device.size),
            })
        }
        _ => None,
    });
    Ok(devices.collect())
}

/// The device of this id.
///
/// # Errors
/// [`PlugError::NoDevice`] with those that there are.
pub fn find(qmp: &mut Qmp, id: &str) -> Result<Device> {
    let devices = devices(qmp)?;
    if let Some(device) = devices.iter().find(|device| device.id.as_deref() == Some(id)) {
        return Ok(device.clone());
    }
    let names: Vec<&str> = devices.iter().filter_map(|device| device.id.as_deref()).collect();
    Err(PlugError::NoDevice { id: id.to_owned(), known: known(id, &names) })
}

fn known(id: &str, names: &[&str]) -> String {
    let likeness = |name: &str| strsim::jaro_winkler(id, name);
    let nearest = names.iter().filter(|name| likeness(name) > 0.7);
    match nearest.max_by(|a, b| likeness(a).total_cmp(&likeness(b))) {
        Some(name) => format!("did you mean {name:?}?"),
        None if names.is_empty() => String::from(
            "there is none with an id (start it with -object memory-backend-ram,id=ram1,size=8G,reserve=off -device virtio-mem-pci,id=vmem0,memdev=ram1)",
        ),
        None => format!("there are {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_device_is_told_what_there_is() {
        assert_eq!(known("vmem", &["vmem0", "other"]), "did you mean \"vmem0\"?");
        assert_eq!(known("xyz", &["vmem0", "ram"]), "there are vmem0, ram");
        assert!(known("xyz", &[]).contains("-device virtio-mem-pci"));
    }
}
