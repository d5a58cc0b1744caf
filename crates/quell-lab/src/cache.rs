//! Where the lab keeps what is expensive to make: sources, build directories, kernel images.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::Stop;
use crate::error::{IoContext, LabError, Result};

/// The lab's cache directory.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// `$XDG_CACHE_HOME/quell`, or `~/.cache/quell`.
    ///
    /// # Errors
    /// If neither variable is set, or the directory cannot be made.
    pub fn open() -> Result<Self> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let base = set("XDG_CACHE_HOME")
            .or_else(|| set("HOME").map(|home| home.join(".cache")))
            .ok_or(LabError::NoCacheDir)?;
        Self::at(base.join("quell"))
    }

    /// A cache in a directory of the caller's choice.
    ///
    /// # Errors
    /// If the directory cannot be made.
    pub fn at(root: impl Into<PathBuf>) -> Result<Self> {
        let root = root.into();
        fs::create_dir_all(&root).context("create", &root)?;
        Ok(Self { root })
    }

    /// A path in the cache; nothing is created.
    #[must_use]
    pub fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.join(below)
    }

    /// A directory in the cache, created if needed.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn dir(&self, below: impl AsRef<Path>) -> Result<PathBuf> {
        let dir = self.root.join(below);
        fs::create_dir_all(&dir).context("create", &dir)?;
        Ok(dir)
    }

    /// Takes the cache's lock of this name, waiting for its holder; it is released on drop, and by the
    /// kernel if the process dies. `waiting` is called once if there is something to wait for.
    ///
    /// # Errors
    /// [`LabError::CacheBusy`] after `deadline`, [`LabError::Interrupted`] on Ctrl-C.
    pub fn lock(&self, name: &str, deadline: Duration, stop: &Stop, waiting: impl FnOnce()) -> Result<Lock> {
        let path = self.root.join(format!("{name}.lock"));
        let file =
            File::options().create(true).truncate(false).write(true).open(&path).context("open", &path)?;
        let start = Instant::now();
        let mut waiting = Some(waiting);
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock { file }),
                Err(TryLockError::Error(error)) => return Err(error).context("lock", &path),
                Err(TryLockError::WouldBlock) => {}
            }
            if let Some(waiting) = waiting.take() {
                waiting();
            }
            stop.check()?;
            if start.elapsed() > deadline {
                return Err(LabError::CacheBusy { path, seconds: deadline.as_secs() });
            }
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// Fails if fewer than `need_mib` MiB are free for this user.
    ///
    /// # Errors
    /// [`LabError::DiskFull`].
    pub fn need_space(&self, purpose: &'static str, need_mib: u64) -> Result<()> {
        let hint = "free some space, or point XDG_CACHE_HOME to another disk";
        need_space(&self.root, purpose, need_mib, hint)
    }
}

/// Fails if fewer than `need_mib` MiB are free for this user in the file system of `dir`.
///
/// # Errors
/// [`LabError::DiskFull`].
pub(crate) fn need_space(dir: &Path, purpose: &'static str, need_mib: u64, hint: &'static str) -> Result<()> {
    let stat = nix::sys::statvfs::statvfs(dir)
        .map_err(std::io::Error::from)
        .context("read the free space of", dir)?;
    let free_mib = (stat.blocks_available() * stat.fragment_size()) >> 20;
    if free_mib < need_mib {
        return Err(LabError::DiskFull { path: dir.to_owned(), purpose, free_mib, need_mib, hint });
    }
    Ok(())
}

/// A held lock of the cache.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    /// A descriptor for a child, which then holds the lock too.
    pub(crate) fn inheritable(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }
}

/// Writes a file so that it either has its whole content or does not exist.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".partial-{}", std::process::id()));
    let partial = PathBuf::from(name);
    let written = fs::write(&partial, content).context("write", path);
    let renamed = written.and_then(|()| fs::rename(&partial, path).context("rename a new file to", path));
    if renamed.is_err() {
        let _ = fs::remove_file(&partial);
    }
    renamed
}

/// SHA-256 of some bytes, in hexadecimal.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// A digest over labelled parts. Length prefixes keep different divisions of the same bytes apart.
#[derive(Debug, Default)]
pub(crate) struct Key(Sha256);

impl Key {
    pub(crate) fn add(&mut self, label: &str, bytes: &[u8]) -> &mut Self {
        for part in [label.as_bytes(), bytes] {
            self.0.update((part.len() as u64).to_le_bytes());
            self.0.update(part);
        }
        self
    }

    /// The first 64 bits, in hexadecimal: enough for a name in a cache.
    pub(crate) fn short(self) -> String {
        hex(&self.0.finalize()[..8])
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(parts: &[(&str, &str)]) -> String {
        let mut key = Key::default();
        for (label, bytes) in parts {
            key.add(label, bytes.as_bytes());
        }
        key.short()
    }

    #[test]
    fn a_key_depends_on_every_part_and_its_borders() {
        let base = key(&[("patch", "ab"), ("config", "c")]);
        assert_eq!(base, key(&[("patch", "ab"), ("config", "c")]));
        assert_ne!(base, key(&[("patch", "a"), ("config", "bc")]));
        assert_ne!(base, key(&[("config", "c"), ("patch", "ab")]));
        assert_ne!(base, key(&[("patch", "ab")]));
    }

    #[test]
    fn sha256_is_the_standard_one() {
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn a_lock_has_one_holder_and_a_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let stop = Stop::default();
        let held = cache.lock("kernel", Duration::ZERO, &stop, || ()).unwrap();
        let mut waited = false;
        let refused = cache.lock("kernel", Duration::ZERO, &stop, || waited = true);
        assert!(matches!(refused, Err(LabError::CacheBusy { .. })) && waited);
        drop(held);
        cache.lock("kernel", Duration::ZERO, &stop, || ()).unwrap();
    }

    #[test]
    fn a_child_that_outlives_the_lab_still_holds_the_lock() {
        use std::process::{Command, Stdio};

        use nix::sys::signal::Signal;

        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let stop = Stop::default();
        let held = cache.lock("kernel", Duration::ZERO, &stop, || ()).unwrap();
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let fds = vec![held.inheritable().unwrap()];
        let mut child = crate::child::Contained::spawn(command, fds, Signal::SIGKILL).unwrap();
        drop(held);
        assert!(matches!(
            cache.lock("kernel", Duration::ZERO, &stop, || ()),
            Err(LabError::CacheBusy { .. })
        ));
        child.kill();
        cache.lock("kernel", Duration::ZERO, &stop, || ()).unwrap();
    }

    #[test]
    fn a_full_disk_is_reported_before_the_work() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        cache.need_space("a test", 0).unwrap();
        assert!(matches!(cache.need_space("a test", u64::MAX >> 21), Err(LabError::DiskFull { .. })));
    }
}
