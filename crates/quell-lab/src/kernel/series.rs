//! `kernel/series` and its patches, applied so that only files whose content changes are written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use super::source::{Source, beside};
use crate::cache::write_whole;
use crate::error::{IoContext, LabError, Result};

/// A patch of the series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Path below `kernel/patches`.
    pub name: String,
    /// The file's content.
    pub content: Vec<u8>,
}

/// Reads `series` and the patches it lists; none if there is no such file.
///
/// # Errors
/// If a listed patch is missing, lies outside `patches/`, or is listed twice.
pub fn read_series(kernel_dir: &Path) -> Result<Vec<Patch>> {
    let path = kernel_dir.join("series");
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(&path).context("read", &path)?;
    let mut patches: Vec<Patch> = Vec::new();
    for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        if line.is_empty() {
            continue;
        }
        let bad =
            |reason: &str| LabError::BadPatch { path: path.clone(), reason: format!("{line}: {reason}") };
        if !is_inside(Path::new(line)) {
            return Err(bad("is not a path below kernel/patches"));
        }
        if patches.iter().any(|patch| patch.name == line) {
            return Err(bad("is listed twice"));
        }
        let file = kernel_dir.join("patches").join(line);
        let content = fs::read(&file).context("read the patch", &file)?;
        patches.push(Patch { name: line.to_owned(), content });
    }
    Ok(patches)
}

fn is_inside(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_)))
}

/// The files that a patch in `diff -u` or git format touches, relative to the source.
fn touched_files(patch: &Patch) -> Result<BTreeSet<PathBuf>> {
    let text = String::from_utf8_lossy(&patch.content);
    let lines: Vec<&str> = text.lines().collect();
    let mut files = BTreeSet::new();
    for (index, line) in lines.iter().enumerate() {
        let next = lines.get(index + 1).copied().unwrap_or_default();
        let names: Vec<&str> = if line.starts_with("--- ") && next.starts_with("+++ ") {
            vec![&line[4..], &next[4..]]
        } else if let Some(name) = line.strip_prefix("rename from ").or(line.strip_prefix("rename to ")) {
            files.insert(PathBuf::from(name));
            continue;
        } else {
            continue;
        };
        for name in names {
            let name = name.split('\t').next().unwrap_or_default().trim();
            if name != "/dev/null" {
                files.insert(name.split_once('/').map_or(name, |(_, rest)| rest).into());
            }
        }
    }
    match files.iter().find(|file| !is_inside(file)) {
        Some(file) => Err(LabError::BadPatch {
            path: patch.name.clone().into(),
            reason: format!("touches {}, outside the source", file.display()),
        }),
        None if files.is_empty() => Err(LabError::BadPatch {
            path: patch.name.clone().into(),
            reason: String::from("holds no change"),
        }),
        None => Ok(files),
    }
}

/// All files that the series touches.
pub(super) fn all_touched(patches: &[Patch]) -> Result<BTreeSet<PathBuf>> {
    let mut all = BTreeSet::new();
    for patch in patches {
        all.extend(touched_files(patch)?);
    }
    Ok(all)
}

/// Brings the tree to "source plus patches". Files that the last series touched and this one does not go
/// back to the source's content; files whose content stays the same keep their time, so that make does not
/// rebuild what depends on them.
pub(super) fn apply(tree: &Path, source: &Source, version: &str, patches: &[Patch]) -> Result<()> {
    let touched = all_touched(patches)?;
    let record = Touched::of(tree);
    let mut files = record.read()?;
    files.extend(touched.iter().cloned());

    let mut wanted: BTreeMap<PathBuf, Option<Vec<u8>>> = BTreeMap::new();
    for file in &files {
        wanted.insert(file.clone(), source.pristine(tree, file)?);
    }
    let scratch = beside(tree, "scratch");
    if !touched.is_empty() {
        patch_in_scratch(&scratch, version, patches, &touched, &mut wanted)?;
    }
    record.write(&files)?;
    for (file, content) in &wanted {
        set(&tree.join(file), content.as_deref())?;
    }
    record.write(&touched)
}

fn patch_in_scratch(
    scratch: &Path,
    version: &str,
    patches: &[Patch],
    touched: &BTreeSet<PathBuf>,
    wanted: &mut BTreeMap<PathBuf, Option<Vec<u8>>>,
) -> Result<()> {
    let _ = fs::remove_dir_all(scratch);
    fs::create_dir_all(scratch).context("create", scratch)?;
    for file in touched {
        set(&scratch.join(file), wanted[file].as_deref())?;
    }
    for patch in patches {
        run_patch(scratch, version, patch)?;
    }
    for file in touched {
        wanted.insert(file.clone(), read_if_there(&scratch.join(file))?);
    }
    fs::remove_dir_all(scratch).context("remove", scratch)
}

fn run_patch(dir: &Path, version: &str, patch: &Patch) -> Result<()> {
    let input = beside(dir, "patch");
    fs::write(&input, &patch.content).context("write", &input)?;
    let tool = |reason: String| LabError::Tool { program: String::from("patch"), reason };
    let output = Command::new("patch")
        .args(["-p1", "--batch", "--forward", "--fuzz=0", "--no-backup-if-mismatch", "-E", "-r", "-", "-d"])
        .arg(dir)
        .arg("-i")
        .arg(&input)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| tool(format!("{error}; install the package `patch`")))?;
    let _ = fs::remove_file(&input);
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let failed = failed_hunks(&text);
    let hunks = if failed.is_empty() { text.trim().to_owned() } else { failed.join(", ") };
    Err(LabError::PatchFailed { patch: patch.name.clone(), source_version: version.to_owned(), hunks })
}

/// The failures in the output of `patch`, as "file: hunk #2 at line 40".
fn failed_hunks(output: &str) -> Vec<String> {
    let mut file = "";
    let mut failed = Vec::new();
    for line in output.lines() {
        if let Some(rest) = line.strip_prefix("patching file ").or(line.strip_prefix("checking file ")) {
            file = rest.trim();
        } else if let Some((hunk, rest)) = line.split_once(" FAILED at ") {
            let at = rest.split(['.', ' ']).next().unwrap_or_default();
            failed.push(format!("{file}: {} at line {at}", hunk.trim().to_lowercase()));
        } else if line.contains("hunks ignored") || line.contains("hunk ignored") {
            failed.push(format!("{file}: {}", line.trim()));
        }
    }
    failed
}

/// Writes the file, or removes it for `None`, unless it is so already.
fn set(path: &Path, content: Option<&[u8]>) -> Result<()> {
    let now = read_if_there(path)?;
    match content {
        _ if now.as_deref() == content => Ok(()),
        None => fs::remove_file(path).context("remove", path),
        Some(content) => {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).context("create", parent)?;
            }
            fs::write(path, content).context("write", path)
        }
    }
}

pub(super) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context("read", path),
    }
}

/// The record, beside a tree, of the files in it that differ from the source.
struct Touched(PathBuf);

impl Touched {
    fn of(tree: &Path) -> Self {
        Self(beside(tree, "touched"))
    }

    fn read(&self) -> Result<BTreeSet<PathBuf>> {
        let text = read_if_there(&self.0)?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&text).lines().map(PathBuf::from).collect())
    }

    fn write(&self, files: &BTreeSet<PathBuf>) -> Result<()> {
        let text: String = files.iter().map(|file| format!("{}\n", file.display())).collect();
        write_whole(&self.0, text.as_bytes())
    }
}

/// Files of `tree` that differ from the source because an earlier series touched them.
pub(super) fn touched_before(tree: &Path) -> Result<BTreeSet<PathBuf>> {
    Touched::of(tree).read()
}

#[cfg(test)]
#[path = "series_tests.rs"]
mod tests;
