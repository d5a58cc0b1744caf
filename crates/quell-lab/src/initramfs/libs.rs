//! The shared libraries of a binary.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use goblin::elf::Elf;

use crate::error::{LabError, Result};

/// The loader of a binary and every library that it would load, as absolute paths; nothing for a static binary.
///
/// The loader itself is asked (`ld.so --list`), so its search path and configuration are the right ones.
///
/// # Errors
/// If `content` is not an ELF file, or a library is missing.
pub fn needed(binary: &Path, content: &[u8]) -> Result<Vec<PathBuf>> {
    let pack = |reason: String| LabError::Pack { path: binary.to_owned(), reason };
    let elf = Elf::parse(content).map_err(|error| pack(error.to_string()))?;
    let Some(loader) = elf.interpreter else { return Ok(Vec::new()) };
    let output = Command::new(loader)
        .arg("--list")
        .arg(binary)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| pack(format!("{loader}: {error}")))?;
    if !output.status.success() {
        return Err(pack(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    let mut paths = parse_list(&String::from_utf8_lossy(&output.stdout)).map_err(pack)?;
    if !paths.iter().any(|path| path == Path::new(loader)) {
        paths.push(loader.into());
    }
    Ok(paths)
}

/// Lines are `name => path (address)`, `path (address)`, or `linux-vdso.so.1 (address)`, which is no file.
fn parse_list(text: &str) -> Result<Vec<PathBuf>, String> {
    let mut paths = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        let (name, target) = line.split_once(" => ").unwrap_or((line, line));
        if target.starts_with("not found") {
            return Err(format!("its library {name} is not found"));
        }
        let path = target.rsplit_once(" (").map_or(target, |(path, _)| path);
        if path.starts_with('/') {
            paths.push(PathBuf::from(path));
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_list_is_understood() {
        let text = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007f)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected: Vec<PathBuf> = [
            "/lib/x86_64-linux-gnu/libgcc_s.so.1",
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ]
        .map(PathBuf::from)
        .to_vec();
        assert_eq!(parse_list(text).unwrap(), expected);
        assert!(parse_list("\tlibx.so => not found\n").unwrap_err().contains("libx.so"));
    }

    #[test]
    fn a_text_file_is_not_packed() {
        assert!(matches!(needed(Path::new("notes.txt"), b"hello"), Err(LabError::Pack { .. })));
    }
}
