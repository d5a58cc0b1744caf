//! How much memory this process may still take.

use std::fs;
use std::path::Path;

use quell_core::Bytes;

/// The least of what the machine has available (`MemAvailable`) and what the control group (version 2) and its
/// parents still allow. `None` where nothing tells.
pub(super) fn available_memory(root: &Path) -> Option<Bytes> {
    [of_machine(root), of_cgroups(root)].into_iter().flatten().min()
}

fn of_machine(root: &Path) -> Option<Bytes> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024).map(Bytes)
}

fn of_cgroups(root: &Path) -> Option<Bytes> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let own = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let top = root.join("sys/fs/cgroup");
    Path::new(own).ancestors().filter_map(|group| left_in(&top.join(group))).min()
}

/// What a control group still allows; `None` if it sets no limit.
fn left_in(group: &Path) -> Option<Bytes> {
    let read = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    Some(Bytes(read("memory.max")?.saturating_sub(read("memory.current")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_tightest_limit_counts() {
        let mut files = vec![("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:  4096 kB\n")];
        assert_eq!(available_memory(tree(&files).path()), Some(Bytes::mib(4)));
        files.extend([
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.max", "2097152\n"),
            ("sys/fs/cgroup/a/memory.current", "1048576\n"),
        ]);
        assert_eq!(available_memory(tree(&files).path()), Some(Bytes::mib(1)));
    }

    #[test]
    fn nothing_known_and_nonsense_are_none() {
        assert_eq!(available_memory(tree(&[]).path()), None);
        let files = [("proc/meminfo", "MemAvailable: lots kB"), ("proc/self/cgroup", "0::/\u{0}")];
        assert_eq!(available_memory(tree(&files).path()), None);
    }
}
