//! Small files under an injectable root; what is odd becomes a note that names the file.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use quell_core::CpuId;

use crate::cpulist::{parse_cpu_list, shortened};

/// A directory that stands for `/`, and what was noticed while reading below it.
#[derive(Debug)]
pub(crate) struct Files<'a> {
    root: &'a Path,
    pub notes: Vec<String>,
}

impl<'a> Files<'a> {
    pub fn new(root: &'a Path) -> Self {
        Self { root, notes: Vec::new() }
    }

    pub fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    pub fn exists(&self, relative: &str) -> bool {
        self.path(relative).exists()
    }

    /// The file's trimmed text; `None` if it does not exist, is empty or cannot be read (noted, unless it is absent).
    pub fn text(&mut self, relative: &str) -> Option<String> {
        match fs::read(self.path(relative)) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes).trim_matches(['\0', ' ', '\n', '\t']).to_owned();
                (!text.is_empty()).then_some(text)
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => None,
            Err(error) => {
                self.note(relative, &format!("cannot be read: {error}"));
                None
            }
        }
    }

    /// The file's number; anything else is noted and `None`.
    pub fn number(&mut self, relative: &str) -> Option<u32> {
        let text = self.text(relative)?;
        if text == "-1" {
            // The kernel's way to say that the firmware did not tell.
            return None;
        }
        let number = text.parse().ok();
        if number.is_none() {
            self.note(relative, &format!("holds \"{}\" where a number belongs", shortened(&text)));
        }
        number
    }

    /// The file's list of CPUs; anything else is noted and `None`.
    pub fn cpus(&mut self, relative: &str) -> Option<Vec<CpuId>> {
        let text = self.text(relative)?;
        match parse_cpu_list(&text) {
            Ok(cpus) => Some(cpus),
            Err(error) => {
                self.note(relative, &error.to_string());
                None
            }
        }
    }

    /// Numbers of the entries of a directory that are named `prefix` and a number, ascending.
    pub fn numbered(&mut self, relative: &str, prefix: &str) -> Vec<u32> {
        let Ok(entries) = fs::read_dir(self.path(relative)) else {
            return Vec::new();
        };
        let mut numbers: Vec<u32> = entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix(prefix)?.parse().ok())
            .collect();
        numbers.sort_unstable();
        numbers
    }

    pub fn note(&mut self, relative: &str, what: &str) {
        let path = self.path(relative);
        self.notes.push(format!("{}: {what}", path.display()));
    }
}
