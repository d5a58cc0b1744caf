//! The checkout that holds `kernel/` and `experiments/`.

use std::env;
use std::path::{Path, PathBuf};

use crate::error::{IoContext, LabError, Result};

/// The checkout named, or the one that the current directory or else this binary is in.
///
/// # Errors
/// If none of them is one.
pub fn find(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(dir) = named {
        let no_repo = LabError::NoRepo { start: dir.to_owned() };
        return is_repo(dir).then(|| dir.to_owned()).ok_or(no_repo);
    }
    let here = env::current_dir().context("find", "the current directory")?;
    let binary = env::current_exe().ok().and_then(|path| path.canonicalize().ok());
    [Some(here.clone()), binary]
        .iter()
        .flatten()
        .find_map(|start| start.ancestors().find(|dir| is_repo(dir)))
        .map(Path::to_owned)
        .ok_or(LabError::NoRepo { start: here })
}

fn is_repo(dir: &Path) -> bool {
    dir.join("kernel/config").is_dir() && dir.join("experiments").is_dir()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_directory_without_the_two_folders_is_not_one() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(find(Some(dir.path())), Err(LabError::NoRepo { .. })));
        fs::create_dir_all(dir.path().join("kernel/config")).unwrap();
        fs::create_dir_all(dir.path().join("experiments")).unwrap();
        assert_eq!(find(Some(dir.path())).unwrap(), dir.path());
    }
}
