//! C programs for the guests, compiled on the host and kept in the cache.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::cache::{Cache, Key, write_whole};
use crate::error::{IoContext, LabError, Result};
use crate::initramfs::Extra;
use crate::protocol::Program;

/// Static, as the guest has no libraries but those of `quell`.
const FLAGS: [&str; 5] = ["-O2", "-Wall", "-Werror", "-static", "-pthread"];
/// Lines of the compiler's messages that are shown.
const TAIL_LINES: usize = 20;

/// Compiles the program, or finds it in the cache, for packing into an initramfs.
///
/// # Errors
/// If the source cannot be read, there is no gcc, or it does not compile.
pub(crate) fn compile(cache: &Cache, repo: &Path, program: &Program) -> Result<Extra> {
    let source = repo.join(&program.source);
    let text = fs::read(&source).context("read", &source)?;
    let mut key = Key::default();
    key.add("source", &text);
    for flag in FLAGS {
        key.add("flag", flag.as_bytes());
    }
    let dir = cache.dir("programs")?;
    let kept = dir.join(key.short());
    if !kept.exists() {
        let output = kept.with_extension(format!("build-{}", std::process::id()));
        let built = gcc(&source, &output).and_then(|()| fs::read(&output).context("read", &output));
        let _ = fs::remove_file(&output);
        write_whole(&kept, &built?)?;
    }
    Ok(Extra { path: program.guest_path(), content: fs::read(&kept).context("read", &kept)? })
}

fn gcc(source: &Path, output: &Path) -> Result<()> {
    let run = Command::new("gcc").args(FLAGS).arg("-o").arg(output).arg(source).stdin(Stdio::null()).output();
    let run = run.map_err(|error| LabError::Tool {
        program: String::from("gcc"),
        reason: format!("{error}; `cargo xtask lab-setup` installs it"),
    })?;
    if run.status.success() {
        return Ok(());
    }
    let messages = String::from_utf8_lossy(&run.stderr);
    let lines: Vec<&str> = messages.lines().collect();
    let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
    Err(LabError::ProgramFailed { path: source.to_owned(), tail })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn program(dir: &Path, text: &str) -> Program {
        fs::write(dir.join("hello.c"), text).unwrap();
        Program { source: PathBuf::from("hello.c"), args: vec![] }
    }

    #[test]
    fn a_program_is_compiled_once_and_an_error_shows_the_compilers_words() {
        if Command::new("gcc").arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("skipped: gcc is not installed");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().join("cache")).unwrap();
        let good = program(dir.path(), "int main(void) { return 7; }\n");
        let built = compile(&cache, dir.path(), &good).unwrap();
        assert_eq!(built.path, Path::new("/programs/hello"));
        assert!(built.content.starts_with(b"\x7fELF"));
        assert_eq!(compile(&cache, dir.path(), &good).unwrap().content, built.content);

        let bad = program(dir.path(), "int main(void) { return no_such_name; }\n");
        let error = compile(&cache, dir.path(), &bad).unwrap_err().to_string();
        assert!(error.contains("hello.c") && error.contains("no_such_name"), "{error}");
        let kept = fs::read_dir(dir.path().join("cache/programs")).unwrap().count();
        assert_eq!(kept, 1, "a failed build leaves nothing");
    }
}
