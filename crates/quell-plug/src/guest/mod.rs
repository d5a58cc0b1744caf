//! What memory the guest that this runs in really has.

mod zoneinfo;

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::Serialize;

use crate::error::{PlugError, Result};

pub use zoneinfo::Zone;

/// A page of memory needs this many bytes of page structures per byte (`struct page` is 64 bytes on x86-64, a page 4096).
pub const MEMMAP_DIVISOR: u64 = 64;

/// The guest's memory at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Memory that the kernel can use, in bytes (`MemTotal`).
    pub total_bytes: u64,
    /// Memory that could be given to programs, in bytes (`MemAvailable`); `None` if the kernel does not say.
    pub available_bytes: Option<u64>,
    /// The memory blocks; `None` if this kernel cannot plug memory.
    pub blocks: Option<Blocks>,
    /// The zones with memory, by node.
    pub zones: Vec<Zone>,
}

/// The memory blocks, in which the kernel brings memory online and offline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Blocks {
    /// Bytes of one block.
    pub block_bytes: u64,
    /// Blocks in use.
    pub online: u64,
    /// Blocks that were added and are not (yet) in use.
    pub not_online: u64,
}

impl Memory {
    /// Reads it below `root` (`/`).
    ///
    /// # Errors
    /// If `/proc/meminfo` or `/proc/zoneinfo` cannot be read or understood.
    pub fn read(root: &Path) -> Result<Self> {
        let meminfo = read(root, "proc/meminfo")?;
        let total = field(&meminfo, "MemTotal").ok_or_else(|| PlugError::Format {
            path: root.join("proc/meminfo"),
            reason: String::from("it has no MemTotal"),
        })?;
        let zones = zoneinfo::parse(&read(root, "proc/zoneinfo")?)
            .map_err(|reason| PlugError::Format { path: root.join("proc/zoneinfo"), reason })?;
        Ok(Self {
            total_bytes: total,
            available_bytes: field(&meminfo, "MemAvailable"),
            blocks: Blocks::read(root)?,
            zones,
        })
    }

    /// Most memory that can be plugged before the page structures for it fill what is available, in bytes.
    #[must_use]
    pub fn headroom_bytes(&self) -> Option<u64> {
        self.available_bytes.map(|available| available.saturating_mul(MEMMAP_DIVISOR))
    }

    /// All memory that was added is in use.
    #[must_use]
    pub fn all_online(&self) -> bool {
        self.blocks.is_none_or(|blocks| blocks.not_online == 0)
    }
}

impl Blocks {
    fn read(root: &Path) -> Result<Option<Self>> {
        let dir = root.join("sys/devices/system/memory");
        let size_file = dir.join("block_size_bytes");
        let size = match fs::read_to_string(&size_file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(PlugError::Read { path: size_file, source }),
        };
        let block_bytes = u64::from_str_radix(size.trim(), 16)
            .map_err(|error| PlugError::Format { path: size_file, reason: error.to_string() })?;
        let mut blocks = Self { block_bytes, online: 0, not_online: 0 };
        let entries = fs::read_dir(&dir).map_err(|source| PlugError::Read { path: dir.clone(), source })?;
        for entry in entries.filter_map(std::result::Result::ok) {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("memory"));
            if number.is_none_or(|number| number.parse::<u64>().is_err()) {
                continue;
            }
            // A block can go away between the listing and the reading.
            let Ok(state) = fs::read_to_string(entry.path().join("state")) else { continue };
            if state.trim() == "online" {
                blocks.online += 1;
            } else {
                blocks.not_online += 1;
            }
        }
        Ok(Some(blocks))
    }
}

fn read(root: &Path, path: &str) -> Result<String> {
    let path = root.join(path);
    fs::read_to_string(&path).map_err(|source| PlugError::Read { path, source })
}

/// A field of `/proc/meminfo` in bytes.
fn field(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal:        2048 kB\nMemFree:  1 kB\nMemAvailable:    1024 kB\n");
    const ZONEINFO: (&str, &str) = (
        "proc/zoneinfo",
        "Node 0, zone   Normal\n  pages free     5\n        min      1\n        low      2\n        high     3\n        \
         spanned  512\n        present  512\n        managed  500\n",
    );

    #[test]
    fn a_guest_with_a_block_that_is_not_online_yet() {
        let root = tree(&[
            MEMINFO,
            ZONEINFO,
            ("sys/devices/system/memory/block_size_bytes", "8000000\n"),
            ("sys/devices/system/memory/memory0/state", "online\n"),
            ("sys/devices/system/memory/memory1/state", "online\n"),
            ("sys/devices/system/memory/memory32/state", "offline\n"),
            ("sys/devices/system/memory/auto_online_blocks", "online\n"),
        ]);
        let memory = Memory::read(root.path()).unwrap();
        assert_eq!(memory.blocks, Some(Blocks { block_bytes: 128 << 20, online: 2, not_online: 1 }));
        assert_eq!((memory.total_bytes, memory.headroom_bytes()), (2 << 20, Some(64 << 20)));
        assert!(!memory.all_online());
        assert_eq!(memory.zones[0].managed_pages, 500);
    }

    #[test]
    fn a_kernel_without_hotplug_has_no_blocks() {
        let root = tree(&[MEMINFO, ZONEINFO]);
        let memory = Memory::read(root.path()).unwrap();
        assert!(memory.blocks.is_none() && memory.all_online());
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        let text = |files: &[(&str, &str)]| Memory::read(tree(files).path()).unwrap_err().to_string();
        assert!(text(&[ZONEINFO]).contains("proc/meminfo"));
        assert!(text(&[("proc/meminfo", "rubbish"), ZONEINFO]).contains("no MemTotal"));
        assert!(text(&[MEMINFO, ("proc/zoneinfo", "Node x, zone y\n")]).contains("line 1"));
        let bad = ("sys/devices/system/memory/block_size_bytes", "big\n");
        assert!(text(&[MEMINFO, ZONEINFO, bad]).contains("block_size_bytes"));
    }

    #[test]
    fn this_machine_can_be_read() {
        let memory = Memory::read(Path::new("/")).unwrap();
        assert!(memory.total_bytes > 0 && memory.zones.iter().any(|zone| zone.managed_pages > 0));
    }
}
