//! Configuration fragments: `tinyconfig`, then `base.config`, then the others by name, `debug.config` last.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{IoContext, LabError, Result};

/// Options by name (`CONFIG_X`), each with its value as written in a `.config`; `n` for "not set".
pub type Options = BTreeMap<String, String>;

/// One file of options.
#[derive(Clone, Debug)]
pub struct Fragment {
    /// Options it sets.
    pub options: Options,
}

impl Fragment {
    /// Reads the text of a fragment or of a `.config`.
    ///
    /// # Errors
    /// [`LabError::BadConfigLine`] for anything but options and comments; `path` is only for that text.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let mut options = Options::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            let unset = line.strip_prefix("# ").and_then(|rest| rest.strip_suffix(" is not set"));
            if let Some(name) = unset.filter(|name| is_option(name)) {
                options.insert(name.to_owned(), String::from("n"));
            } else if !line.is_empty() && !line.starts_with('#') {
                let option =
                    line.split_once('=').filter(|(name, value)| is_option(name) && !value.is_empty());
                let (name, value) = option.ok_or_else(|| LabError::BadConfigLine {
                    path: path.to_owned(),
                    line: index + 1,
                    text: line.to_owned(),
                })?;
                options.insert(name.to_owned(), value.to_owned());
            }
        }
        Ok(Self { options })
    }
}

fn is_option(name: &str) -> bool {
    name.strip_prefix("CONFIG_")
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
}

/// All options of the fragments; a later fragment overrides an earlier one.
#[must_use]
pub fn merge(fragments: &[Fragment]) -> Options {
    fragments.iter().flat_map(|fragment| fragment.options.clone()).collect()
}

/// The fragments of a directory in the order in which they count.
pub(super) fn read_fragments(dir: &Path, debug: bool) -> Result<Vec<Fragment>> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(dir).context("list", dir)? {
        let path = entry.context("list", dir)?.path();
        if path.extension().is_some_and(|ext| ext == "config") {
            paths.push(path);
        }
    }
    let rank = |path: &Path| match path.file_stem().and_then(|stem| stem.to_str()) {
        Some("base") => 0,
        Some("debug") => 2,
        _ => 1,
    };
    paths.retain(|path| debug || rank(path) != 2);
    paths.sort_by_key(|path| (rank(path), path.clone()));
    paths.iter().map(|path| Fragment::parse(path, &fs::read_to_string(path).context("read", path)?)).collect()
}

/// The options as lines of a `.config`.
pub(super) fn to_text(options: &Options) -> String {
    options
        .iter()
        .map(|(name, value)| match value.as_str() {
            "n" => format!("# {name} is not set\n"),
            value => format!("{name}={value}\n"),
        })
        .collect()
}

/// The options asked for that the final configuration does not have.
pub(super) fn not_taken(asked: &Options, got: &Options) -> Vec<String> {
    let is = |name: &str| got.get(name).map_or("n", String::as_str);
    asked
        .iter()
        .filter(|(name, value)| is(name) != value.as_str())
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Fragment {
        Fragment::parse(Path::new("test.config"), text).unwrap()
    }

    #[test]
    fn later_fragments_override_and_every_spelling_of_no_is_the_same() {
        let base = parse("# comment\nCONFIG_A=y\nCONFIG_B=y\nCONFIG_NR=64\nCONFIG_S=\"a=b\"\n");
        let later = parse("# CONFIG_A is not set\nCONFIG_B=n\nCONFIG_NR=8\n");
        let merged = merge(&[base, later]);
        assert_eq!(
            to_text(&merged),
            "# CONFIG_A is not set\n# CONFIG_B is not set\nCONFIG_NR=8\nCONFIG_S=\"a=b\"\n"
        );
        assert_eq!(merge(&[parse(&to_text(&merged))]), merged);
    }

    #[test]
    fn a_bad_line_is_named() {
        for line in ["CONFIG_A", "A=y", "CONFIG_A=", "CONFIG_=y", "CONFIG_A y"] {
            let error =
                Fragment::parse(Path::new("x.config"), &format!("CONFIG_OK=y\n{line}\n")).unwrap_err();
            assert!(matches!(error, LabError::BadConfigLine { line: 2, .. }), "{line}");
        }
    }

    #[test]
    fn options_that_the_kernel_dropped_are_found() {
        let asked = parse("CONFIG_A=y\nCONFIG_B=y\n# CONFIG_C is not set\n# CONFIG_D is not set\n").options;
        let got = parse("CONFIG_A=y\nCONFIG_D=y\n").options;
        assert_eq!(not_taken(&asked, &got), ["CONFIG_B=y", "CONFIG_D=n"]);
    }

    #[test]
    fn base_comes_first_and_debug_last_and_only_when_asked() {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in [("debug", "CONFIG_A=1"), ("aaa", "CONFIG_A=2"), ("base", "CONFIG_A=3")] {
            fs::write(dir.path().join(format!("{file}.config")), text).unwrap();
        }
        fs::write(dir.path().join("README.md"), "not a fragment").unwrap();
        let values = |debug| {
            let fragments = read_fragments(dir.path(), debug).unwrap();
            fragments.iter().map(|f| f.options["CONFIG_A"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(values(false), ["3", "2"]);
        assert_eq!(values(true), ["3", "2", "1"]);
    }
}
