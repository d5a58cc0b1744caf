//! The guest's root: the `quell` binary as `/init`, with the libraries it needs.

mod cpio;
mod libs;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cache::{Cache, Key, write_whole};
use crate::error::{IoContext, LabError, Result};

pub use cpio::Writer;
pub use libs::needed;

/// Directories that the agent mounts on, or expects.
const DIRECTORIES: [&str; 6] = ["dev", "etc", "proc", "sys", "tmp", "run"];

/// A further file of the archive.
#[derive(Clone, Debug)]
pub struct Extra {
    /// Its absolute path in the guest.
    pub path: PathBuf,
    /// Its content; it can be executed.
    pub content: Vec<u8>,
}

/// Makes the archive with `binary` as `/init`, or finds it in the cache, and returns its path.
///
/// # Errors
/// If the binary or one of its libraries cannot be read, or the cache cannot be written.
pub fn build(cache: &Cache, binary: &Path, extra: &[Extra]) -> Result<PathBuf> {
    let dir = cache.dir("initramfs")?;
    let content = fs::read(binary).context("read", binary)?;
    let libraries = needed(binary, &content)?;
    let mut key = Key::default();
    key.add("init", &content);
    let mut files = Vec::new();
    for library in libraries {
        let content = fs::read(&library).context("read", &library)?;
        key.add(&library.to_string_lossy(), &content);
        files.push((library, content));
    }
    for file in extra {
        key.add(&file.path.to_string_lossy(), &file.content);
        files.push((file.path.clone(), file.content.clone()));
    }
    let path = dir.join(format!("{}.cpio", key.short()));
    if !path.exists() {
        let init = stripped(binary, &dir).unwrap_or(content);
        let archive = pack(&init, &files)
            .map_err(|error| LabError::Pack { path: binary.to_owned(), reason: error.to_string() })?;
        cache.need_space("the guest's initramfs", (archive.len() as u64 >> 20) + 1)?;
        remove_old(&dir)?;
        write_whole(&path, &archive)?;
    }
    Ok(path)
}

fn pack(init: &[u8], files: &[(PathBuf, Vec<u8>)]) -> std::io::Result<Vec<u8>> {
    let mut writer = Writer::new(Vec::new());
    let mut made: BTreeSet<PathBuf> = BTreeSet::new();
    for dir in DIRECTORIES {
        writer.directory(dir)?;
        made.insert(dir.into());
    }
    for (path, content) in files {
        let path = path.strip_prefix("/").unwrap_or(path);
        let mut parents: Vec<&Path> =
            path.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()).collect();
        parents.reverse();
        for dir in parents {
            if made.insert(dir.to_owned()) {
                writer.directory(&dir.to_string_lossy())?;
            }
        }
        writer.file(&path.to_string_lossy(), 0o755, content)?;
    }
    writer.file("init", 0o755, init)?;
    writer.finish()
}

/// The binary without debug information, where binutils are there to make it: a tenth of the size.
fn stripped(binary: &Path, dir: &Path) -> Option<Vec<u8>> {
    let output = dir.join(format!("strip-{}", std::process::id()));
    let done = Command::new("strip")
        .arg("--strip-debug")
        .arg("-o")
        .arg(&output)
        .arg(binary)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    let content = done.then(|| fs::read(&output).ok()).flatten();
    let _ = fs::remove_file(&output);
    content
}

/// Archives of earlier binaries are of no use; every build makes a new one. Recent ones may still be booting.
fn remove_old(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).context("list", dir)? {
        let path = entry.context("list", dir)?.path();
        let age =
            fs::metadata(&path).and_then(|meta| meta.modified()).ok().and_then(|time| time.elapsed().ok());
        if age.is_some_and(|age| age.as_secs() > 24 * 3600) {
            let _ = fs::remove_file(&path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_very_test_binary_can_be_packed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let binary = std::env::current_exe().unwrap();
        let path = build(&cache, &binary, &[]).unwrap();
        let archive = fs::read(&path).unwrap();
        assert!(archive.starts_with(b"070701"));
        let has = |name: &str| archive.windows(name.len()).any(|window| window == name.as_bytes());
        assert!(has("init\0") && has("TRAILER!!!\0"));
        assert!(has("libc.so.6\0") || needed(&binary, &fs::read(&binary).unwrap()).unwrap().is_empty());
        assert_eq!(build(&cache, &binary, &[]).unwrap(), path);
        let extra = Extra { path: PathBuf::from("/programs/x"), content: b"x".to_vec() };
        let other = build(&cache, &binary, &[extra]).unwrap();
        assert_ne!(other, path);
        let archive = fs::read(&other).unwrap();
        assert!(archive.windows(11).any(|window| window == b"programs/x\0"));
    }

    #[test]
    fn parents_come_before_their_files() {
        let archive = pack(b"x", &[(PathBuf::from("/lib/a/b.so"), b"lib".to_vec())]).unwrap();
        let at = |name: &str| {
            let name = format!("{name}\0");
            archive.windows(name.len()).position(|window| window == name.as_bytes()).unwrap()
        };
        assert!(at("lib") < at("lib/a") && at("lib/a") < at("lib/a/b.so"));
    }
}
