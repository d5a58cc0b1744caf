//! Kernel sources: Debian's package, or a directory.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::UNIX_EPOCH;

use nix::sys::signal::Signal;

use super::series::{Patch, all_touched, read_if_there, touched_before};
use crate::Stop;
use crate::cache::{Key, sha256, write_whole};
use crate::child::Contained;
use crate::error::{IoContext, LabError, Result};

/// Debian's package that holds the source.
pub const PACKAGE: &str = "linux-source-6.12";
/// Where the package puts it.
pub const TARBALL: &str = "/usr/src/linux-source-6.12.tar.xz";
/// What does not belong to the source when a directory that was built in is given.
const NOT_SOURCE: [&str; 8] = [
    "/.git",
    "*.o",
    "*.cmd",
    "/.config",
    "/include/config",
    "/include/generated",
    "/arch/*/include/generated",
    "/vmlinux*",
];

/// Where a kernel's source comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A compressed tar archive as Debian ships it.
    Tarball(PathBuf),
    /// A source tree, which is copied and never written to.
    Dir(PathBuf),
}

impl Default for Source {
    /// Debian's package.
    fn default() -> Self {
        Self::Tarball(TARBALL.into())
    }
}

/// Exactly which source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceId {
    /// For people: package and version.
    pub label: String,
    /// For keys: changes whenever the content may have changed.
    pub digest: String,
}

impl SourceId {
    /// A name for the directories that belong to this source. A directory's changes are followed in place.
    pub(super) fn dir_name(&self) -> String {
        let safe = |c: char| if c.is_ascii_alphanumeric() || "-._~".contains(c) { c } else { '-' };
        let name: String = self.label.chars().map(safe).collect();
        format!("{}-{}", name.trim_matches('-'), &sha256(self.label.as_bytes())[..6])
    }
}

impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}

impl Source {
    /// Finds out which source this is.
    ///
    /// # Errors
    /// If it is not there, or not a kernel.
    pub fn identify(&self) -> Result<SourceId> {
        match self {
            Self::Tarball(path) => identify_tarball(path),
            Self::Dir(path) => identify_dir(path),
        }
    }

    /// Brings `tree` up to date with the source, except for the files that patches touch.
    pub(super) fn prepare(&self, tree: &Path, patches: &[Patch], stop: &Stop) -> Result<()> {
        match self {
            Self::Tarball(_) if tree.exists() => Ok(()),
            Self::Tarball(archive) => unpack(archive, tree, stop),
            Self::Dir(dir) => {
                let mut command = Command::new("rsync");
                command.args(["-a", "--delete"]);
                command.args(NOT_SOURCE.map(|pattern| format!("--exclude={pattern}")));
                for file in all_touched(patches)?.union(&touched_before(tree)?) {
                    command.arg(format!("--exclude=/{}", file.display()));
                }
                command.arg(dir.join("")).arg(tree.join(""));
                run(command, "rsync", stop)
            }
        }
    }

    /// The source's own content of a file; `None` if the source has no such file.
    ///
    /// For an archive a copy is set aside on the first call, before a patch changes the file.
    pub(super) fn pristine(&self, tree: &Path, file: &Path) -> Result<Option<Vec<u8>>> {
        let Self::Tarball(_) = self else {
            let Self::Dir(dir) = self else { unreachable!("a source is an archive or a directory") };
            return read_if_there(&dir.join(file));
        };
        let aside = beside(tree, "pristine").join(file);
        let absent = beside(tree, "absent").join(file);
        if let Some(content) = read_if_there(&aside)? {
            return Ok(Some(content));
        }
        if absent.exists() {
            return Ok(None);
        }
        let content = read_if_there(&tree.join(file))?;
        let (path, text) = match &content {
            Some(content) => (aside, content.as_slice()),
            None => (absent, [].as_slice()),
        };
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).context("create", parent)?;
        }
        write_whole(&path, text)?;
        Ok(content)
    }
}

/// A path that belongs to a tree and lies beside it. The tree's own name has dots, so its "extension" may not
/// be replaced.
pub(super) fn beside(tree: &Path, what: &str) -> PathBuf {
    let mut name = tree.as_os_str().to_owned();
    name.push(".");
    name.push(what);
    name.into()
}

fn identify_tarball(path: &Path) -> Result<SourceId> {
    let meta = fs::metadata(path).map_err(|_| LabError::NoSource { path: path.to_owned() })?;
    if let Some(version) = (path == Path::new(TARBALL)).then(package_version).flatten() {
        let label = format!("{PACKAGE} {version}");
        return Ok(SourceId { digest: label.clone(), label });
    }
    let digest = sha256(&fs::read(path).context("read", path)?);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(SourceId { label: format!("{name} ({} bytes, sha256 {})", meta.len(), &digest[..12]), digest })
}

/// The exact version of Debian's package, if it was installed as one.
fn package_version() -> Option<String> {
    let output = Command::new("dpkg-query")
        .args(["-W", "-f", "${Version}", PACKAGE])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let version = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !version.is_empty()).then_some(version)
}

fn identify_dir(dir: &Path) -> Result<SourceId> {
    let bad = |reason: String| LabError::BadSource { path: dir.to_owned(), reason };
    let makefile =
        fs::read_to_string(dir.join("Makefile")).map_err(|error| bad(format!("Makefile: {error}")))?;
    let field = |name: &str| {
        makefile.lines().find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        })
    };
    let (Some(version), Some(patchlevel), Some(sublevel)) =
        (field("VERSION"), field("PATCHLEVEL"), field("SUBLEVEL"))
    else {
        return Err(bad(String::from("its Makefile names no version")));
    };
    let dir = dir.canonicalize().context("resolve", dir)?;
    let mut key = Key::default();
    add_metadata(&dir, &dir, &mut key)?;
    let place = &sha256(dir.as_os_str().as_encoded_bytes())[..8];
    let extra = field("EXTRAVERSION").unwrap_or_default();
    Ok(SourceId {
        label: format!("directory {place} {version}.{patchlevel}.{sublevel}{extra}"),
        digest: key.short(),
    })
}

/// Names, sizes and times of all files: enough to see that something was edited.
fn add_metadata(root: &Path, dir: &Path, key: &mut Key) -> Result<()> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir).context("list", dir)? {
        entries.push(entry.context("list", dir)?.path());
    }
    entries.sort();
    for path in entries {
        let meta = fs::symlink_metadata(&path).context("look at", &path)?;
        if meta.is_dir() {
            if path != root.join(".git") {
                add_metadata(root, &path, key)?;
            }
            continue;
        }
        let modified = meta.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let stamp = format!("{} {}", meta.len(), modified.unwrap_or_default().as_nanos());
        let name = path.strip_prefix(root).unwrap_or(&path);
        key.add(&name.to_string_lossy(), stamp.as_bytes());
    }
    Ok(())
}

fn unpack(archive: &Path, tree: &Path, stop: &Stop) -> Result<()> {
    let partial = beside(tree, "partial");
    if partial.exists() {
        fs::remove_dir_all(&partial).context("remove", &partial)?;
    }
    fs::create_dir_all(&partial).context("create", &partial)?;
    let mut command = Command::new("tar");
    command.arg("-xf").arg(archive).arg("--strip-components=1").arg("-C").arg(&partial);
    run(command, "tar", stop)?;
    fs::rename(&partial, tree).context("rename the unpacked source to", tree)
}

fn run(mut command: Command, program: &str, stop: &Stop) -> Result<()> {
    let tool = |reason: String| LabError::Tool { program: program.to_owned(), reason };
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = Contained::spawn(command, Vec::new(), Signal::SIGKILL)
        .map_err(|error| tool(format!("{error}; `cargo xtask lab-setup` installs it")))?;
    let status = child.wait_or_stop(stop)?;
    if status.success() { Ok(()) } else { Err(tool(status.to_string())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_beside_a_tree_keeps_its_whole_name() {
        assert_eq!(beside(Path::new("/c/linux-6.12.117"), "touched"), Path::new("/c/linux-6.12.117.touched"));
    }

    #[test]
    fn a_missing_package_says_what_to_install() {
        let error = Source::Tarball("/nonexistent/linux.tar.xz".into()).identify().unwrap_err().to_string();
        assert!(error.contains("linux-source-6.12") && error.contains("--source DIR"), "{error}");
    }

    #[test]
    fn a_directory_is_followed_by_content_and_must_be_a_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let source = Source::Dir(dir.path().to_owned());
        assert!(matches!(source.identify(), Err(LabError::BadSource { .. })));
        fs::write(
            dir.path().join("Makefile"),
            "VERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 9\nEXTRAVERSION = -rc1\n",
        )
        .unwrap();
        let first = source.identify().unwrap();
        assert!(first.label.ends_with("6.12.9-rc1"), "{first}");
        assert_eq!(source.identify().unwrap(), first);
        fs::write(dir.path().join("new.c"), "int x;").unwrap();
        let second = source.identify().unwrap();
        assert_eq!(second.dir_name(), first.dir_name());
        assert_ne!(second.digest, first.digest);
    }
}
