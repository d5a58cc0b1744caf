//! What else the kernel does with pages behind the workload's back.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{MigrateError, Result};

const THP: &str = "sys/kernel/mm/transparent_hugepage/enabled";
const BALANCING: &str = "proc/sys/kernel/numa_balancing";
/// Clocks that are read without a device access; `tsc-early` is the TSC during the first seconds after boot.
const CHEAP_CLOCKS: [&str; 3] = ["tsc", "tsc-early", "kvm-clock"];
const MGLRU: &str = "sys/kernel/mm/lru_gen/enabled";

/// The settings that change what `move_pages` does or costs. `None`: this kernel has no such thing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub transparent_hugepage: Option<String>,
    /// Automatic NUMA balancing: `0` is off.
    pub numa_balancing: Option<String>,
    /// Multi-generational LRU: `0x0000` is off.
    pub mglru: Option<String>,
    /// Clock that the durations come from.
    pub clocksource: Option<String>,
}

impl Settings {
    /// Reads the settings below `root`.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).ok().map(|text| text.trim().to_owned());
        let chosen = |text: String| {
            let start = text.find('[')? + 1;
            let end = start + text[start..].find(']')?;
            Some(text[start..end].to_owned())
        };
        Self {
            transparent_hugepage: text(THP).and_then(chosen),
            numa_balancing: text(BALANCING),
            mglru: text(MGLRU),
            clocksource: text("sys/devices/system/clocksource/clocksource0/current_clocksource"),
        }
    }

    /// Turns all of them off, as root in a guest, and returns what they are then.
    ///
    /// # Errors
    /// If one exists and cannot be written.
    pub fn quiesce(root: &Path) -> Result<Self> {
        for (path, value) in [(THP, "never"), (BALANCING, "0"), (MGLRU, "0")] {
            let path = root.join(path);
            if path.exists() {
                fs::write(&path, value).map_err(|source| MigrateError::Setting { path, value, source })?;
            }
        }
        Ok(Self::read(root))
    }

    /// In words, what of this disturbs the measurement.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.numa_balancing.as_deref().is_some_and(|value| value != "0") {
            warnings
                .push(String::from("automatic NUMA balancing is on: the kernel may move pages by itself"));
        }
        if self
            .mglru
            .as_deref()
            .is_some_and(|value| value.trim_start_matches("0x").bytes().any(|b| b != b'0'))
        {
            warnings.push(String::from("MGLRU is on: its aging runs beside the measurement"));
        }
        if self.clocksource.as_deref().is_some_and(|clock| !CHEAP_CLOCKS.contains(&clock)) {
            warnings
                .push(String::from("the clock is not the TSC: each sample holds an expensive clock read"));
        }
        warnings
    }
}

/// The NUMA nodes with memory, in ascending order; node 0 where the kernel has no NUMA.
#[must_use]
pub fn memory_nodes(root: &Path) -> Vec<u32> {
    let text = fs::read_to_string(root.join("sys/devices/system/node/has_memory")).unwrap_or_default();
    parse_list(text.trim()).filter(|nodes| !nodes.is_empty()).unwrap_or_else(|| vec![0])
}

/// A list as the kernel prints it: `0-1,4`.
fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        if last > 1023 {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
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

    #[test]
    fn settings_are_read_turned_off_and_read_again() {
        let root = tree(&[(THP, "always [madvise] never\n"), (BALANCING, "1\n"), (MGLRU, "0x0007\n")]);
        let before = Settings::read(root.path());
        assert_eq!(before.transparent_hugepage.as_deref(), Some("madvise"));
        assert_eq!(before.warnings().len(), 2);
        let after = Settings::quiesce(root.path()).unwrap();
        assert_eq!((after.numa_balancing.as_deref(), after.mglru.as_deref()), (Some("0"), Some("0")));
        assert_eq!(after.warnings(), Vec::<String>::new());
    }

    #[test]
    fn a_kernel_without_them_has_none() {
        let root = tree(&[]);
        assert_eq!(Settings::quiesce(root.path()).unwrap(), Settings::default());
        assert_eq!(memory_nodes(root.path()), [0]);
    }

    #[test]
    fn nodes_with_memory_are_listed() {
        let nodes = |text| memory_nodes(tree(&[("sys/devices/system/node/has_memory", text)]).path());
        assert_eq!(nodes("0\n"), [0]);
        assert_eq!(nodes("0-1,4\n"), [0, 1, 4]);
        assert_eq!(nodes("rubbish\n"), [0]);
        assert_eq!(nodes("0-4294967295\n"), [0]);
    }
}
