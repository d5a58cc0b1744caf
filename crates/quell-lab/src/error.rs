//! What can go wrong in the lab.

use std::io;
use std::path::PathBuf;

/// An error of the lab. The texts do not repeat their source; print the chain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// A file operation failed.
    #[error("Cannot {action} {path}")]
    Io {
        /// The attempt, as a verb.
        action: &'static str,
        /// What it was done to.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Too little space, seen before or while writing.
    #[error("{path} has {free_mib} MiB free, and {purpose} needs about {need_mib} MiB: {hint}")]
    DiskFull {
        /// Directory that was to be written to.
        path: PathBuf,
        /// What for.
        purpose: &'static str,
        /// Space left, in MiB.
        free_mib: u64,
        /// Space wanted, in MiB.
        need_mib: u64,
        /// What to do.
        hint: &'static str,
    },
    /// Another process holds the cache for longer than the deadline.
    #[error("Another kernel build has held {path} for {seconds} s: wait for it, or end it")]
    CacheBusy {
        /// The lock file.
        path: PathBuf,
        /// How long we waited.
        seconds: u64,
    },
    /// There is no cache directory to use.
    #[error("No cache directory: neither XDG_CACHE_HOME nor HOME is set")]
    NoCacheDir,
    /// The Debian package with the kernel source is missing.
    #[error(
        "No kernel source: {path} does not exist. Install the Debian package linux-source-6.12 (`cargo xtask lab-setup` does), or name a source tree with --source DIR"
    )]
    NoSource {
        /// Where it was expected.
        path: PathBuf,
    },
    /// The directory given as source is not a Linux source tree.
    #[error("{path} is not a Linux source tree: {reason}")]
    BadSource {
        /// The directory.
        path: PathBuf,
        /// What is missing or wrong.
        reason: String,
    },
    /// `kernel/` of the repository was not found.
    #[error(
        "No directory with kernel/config and experiments/ here or above {start}: run this in a checkout of Quell, or name it with --repo DIR"
    )]
    NoRepo {
        /// Where the search began.
        start: PathBuf,
    },
    /// A line of `kernel/series`, or a patch, cannot be used.
    #[error("{path}: {reason}")]
    BadPatch {
        /// The series file or the patch.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A patch does not apply to this source.
    #[error("{patch} does not apply to {source_version}: {hunks}")]
    PatchFailed {
        /// Path below `kernel/patches`.
        patch: String,
        /// The source it was tried on.
        source_version: String,
        /// Which hunks of which files failed.
        hunks: String,
    },
    /// A configuration fragment cannot be read.
    #[error(
        "{path}, line {line}: {text:?} is neither `CONFIG_X=value`, `# CONFIG_X is not set`, nor a comment"
    )]
    BadConfigLine {
        /// The fragment.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// Options that the kernel did not take.
    #[error("The kernel did not take {} (missing dependency, or unknown to this version)", options.join(", "))]
    ConfigNotTaken {
        /// The options as asked for.
        options: Vec<String>,
    },
    /// The kernel build failed.
    #[error("Building the kernel failed ({reason}); the whole log is {log}. Its end:\n{tail}")]
    BuildFailed {
        /// Exit status or signal, or the known cause.
        reason: String,
        /// Log file.
        log: PathBuf,
        /// Its last 20 lines.
        tail: String,
    },
    /// A guest's program does not compile.
    #[error("Compiling {path} for the guest failed:\n{tail}")]
    ProgramFailed {
        /// The C file.
        path: PathBuf,
        /// The end of the compiler's messages.
        tail: String,
    },
    /// A program that is needed is missing or failed.
    #[error("Cannot run {program}: {reason}")]
    Tool {
        /// Its name.
        program: String,
        /// What happened, and what to install.
        reason: String,
    },
    /// The binary for the guest, or one of its libraries, cannot be packed.
    #[error("Cannot pack {path} for the guest: {reason}")]
    Pack {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// QEMU is there but lacks a device.
    #[error("{version} has no device {device}: {hint}")]
    NoDevice {
        /// QEMU's version line.
        version: String,
        /// Name of the device.
        device: String,
        /// What to do.
        hint: &'static str,
    },
    /// A guest failed before it could take a job.
    #[error("The guest did not come up: {reason}")]
    Guest {
        /// What happened, with the end of its console.
        reason: String,
    },
    /// No accelerator boots a kernel.
    #[error("No accelerator boots this kernel: {reason}")]
    NoAccelerator {
        /// What each one did.
        reason: String,
    },
    /// An experiment file is wrong.
    #[error("{path}: {reason}")]
    BadExperiment {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line where known.
        reason: String,
    },
    /// A name that does not exist.
    #[error("No {kind} is called {name:?}{}", suggestion(.nearest.as_deref(), .known))]
    UnknownName {
        /// What was looked up: experiment, arm …
        kind: &'static str,
        /// The name given.
        name: String,
        /// The existing name that is most like it.
        nearest: Option<String>,
        /// All names.
        known: Vec<String>,
    },
    /// Saved results cannot be read.
    #[error("{path} is not a result of `quell lab run`: {reason}")]
    BadRun {
        /// File or directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Ctrl-C or a termination signal.
    #[error("Interrupted")]
    Interrupted,
}

fn suggestion(nearest: Option<&str>, known: &[String]) -> String {
    match nearest {
        Some(nearest) => format!(": did you mean {nearest:?}?"),
        None if known.is_empty() => String::from(": there is none at all"),
        None => format!(": there are {}", known.join(", ")),
    }
}

/// Result of the lab.
pub type Result<T, E = LabError> = std::result::Result<T, E>;

/// Gives file operations their context.
pub(crate) trait IoContext<T> {
    fn context(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn context(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T> {
        self.map_err(|source| LabError::Io { action, path: path.into(), source })
    }
}

/// The name in `known` that is most like `name`, if one is like it at all.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_finds_the_name_that_was_meant() {
        let known = ["migrate-batch", "plug-online"];
        assert_eq!(nearest("migrate_batch", known).as_deref(), Some("migrate-batch"));
        assert_eq!(nearest("migrat-bach", known).as_deref(), Some("migrate-batch"));
        assert_eq!(nearest("xyz", known), None);
    }
}
