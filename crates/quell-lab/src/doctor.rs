//! What the lab needs, what of it is here, and what really boots.

use std::path::Path;
use std::process::{Command, Stdio};

use serde::Serialize;

use crate::Stop;
use crate::cache::Cache;
use crate::guest::{Accelerator, GuestSpec, Qemu, probe};
use crate::initramfs;
use crate::kernel::{Source, any_cached};

/// Programs that a kernel build runs, and the Debian package of each.
pub const TOOLS: [(&str, &str); 12] = [
    ("gcc", "gcc"),
    ("make", "make"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("pahole", "pahole"),
    ("patch", "patch"),
    ("tar", "tar"),
    ("xz", "xz-utils"),
    ("strip", "binutils"),
    ("perl", "perl"),
    ("rsync", "rsync"),
];

/// Headers that a kernel build includes, and the Debian package of each.
pub const HEADERS: [(&str, &str); 2] =
    [("/usr/include/libelf.h", "libelf-dev"), ("/usr/include/openssl/opensslv.h", "libssl-dev")];

/// Whether something is as the lab needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It is.
    Present,
    /// It is not, and the lab cannot work without.
    Missing,
    /// It is not, and the lab does without.
    Degraded,
    /// That could not be found out.
    Unknown,
}

/// One thing that the lab needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is.
    pub name: String,
    /// How it is.
    pub state: State,
    /// Its version, or what is wrong.
    pub detail: String,
    /// What to do, if anything.
    pub fix: Option<String>,
}

impl Finding {
    fn new(name: &str, state: State, detail: impl Into<String>, fix: Option<&str>) -> Self {
        Self { name: name.to_owned(), state, detail: detail.into(), fix: fix.map(str::to_owned) }
    }
}

const SETUP: &str = "run `cargo xtask lab-setup`";
const BUILD: &str = "run `quell lab kernel build`; the next check then boots that kernel";

/// Everything the lab needs. Boots a kernel from the cache, if there is one, to see which accelerator works;
/// that takes up to some minutes the first time, and until the host restarts the answer is remembered.
///
/// `agent` is the `quell` binary, which becomes the guest's first process.
#[must_use]
pub fn check(agent: &Path, stop: &Stop) -> Vec<Finding> {
    let mut findings = vec![source(), tools(), headers()];
    let qemu = Qemu::find();
    findings.push(match &qemu {
        Ok(qemu) => match qemu.check(&GuestSpec::default()) {
            Ok(()) => Finding::new("QEMU", State::Present, &qemu.version, None),
            Err(error) => Finding::new("QEMU", State::Missing, error.to_string(), Some(SETUP)),
        },
        Err(error) => Finding::new("QEMU", State::Missing, error.to_string(), Some(SETUP)),
    });
    let cache = match Cache::open() {
        Ok(cache) => cache,
        Err(error) => {
            findings.push(Finding::new("cache", State::Missing, error.to_string(), None));
            return findings;
        }
    };
    findings.push(match cache.need_space("a kernel build", 6 << 10) {
        Ok(()) => Finding::new("cache", State::Present, cache.path("").display().to_string(), None),
        Err(error) => Finding::new("cache", State::Degraded, error.to_string(), None),
    });
    let kernel = match any_cached(&cache) {
        Ok(Some(kernel)) => kernel,
        Ok(None) => {
            findings.push(Finding::new("kernel", State::Degraded, "none built yet", Some(BUILD)));
            findings.push(Finding::new("accelerator", State::Unknown, "no kernel to boot", Some(BUILD)));
            return findings;
        }
        Err(error) => {
            findings.push(Finding::new("kernel", State::Unknown, error.to_string(), None));
            return findings;
        }
    };
    findings.push(Finding::new("kernel", State::Present, format!("Linux {}", kernel.info.release), None));
    if let Ok(qemu) = qemu {
        let probed = initramfs::build(&cache, agent, &[])
            .and_then(|initramfs| probe(&cache, &qemu, &kernel, &initramfs, stop));
        findings.push(match probed {
            Ok(probe) if probe.accelerator == Accelerator::Kvm => {
                let detail = format!("KVM boots in {:.1} s", probe.boot_seconds);
                Finding::new("accelerator", State::Present, detail, None)
            }
            Ok(probe) => {
                let problem = probe.kvm_problem.unwrap_or_default();
                let detail = format!("TCG boots in {:.1} s; KVM does not: {problem}", probe.boot_seconds);
                Finding::new("accelerator", State::Degraded, detail, None)
            }
            Err(error) => Finding::new("accelerator", State::Missing, error.to_string(), None),
        });
    }
    findings
}

fn source() -> Finding {
    match Source::default().identify() {
        Ok(id) => Finding::new("kernel source", State::Present, id.to_string(), None),
        Err(error) => Finding::new("kernel source", State::Missing, error.to_string(), Some(SETUP)),
    }
}

fn tools() -> Finding {
    let runs = |program: &str| {
        let status = Command::new(program)
            .arg("--version")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        status.is_ok()
    };
    let missing: Vec<&str> =
        TOOLS.iter().filter(|(program, _)| !runs(program)).map(|(_, package)| *package).collect();
    missing_packages("build tools", &missing)
}

fn headers() -> Finding {
    // Debian keeps some headers below the architecture's directory.
    let there = |path: &str| {
        Path::new(path).exists()
            || Path::new(&path.replace("/include/", "/include/x86_64-linux-gnu/")).exists()
    };
    let missing: Vec<&str> =
        HEADERS.iter().filter(|(path, _)| !there(path)).map(|(_, package)| *package).collect();
    missing_packages("headers", &missing)
}

fn missing_packages(name: &str, missing: &[&str]) -> Finding {
    if missing.is_empty() {
        Finding::new(name, State::Present, "all there", None)
    } else {
        Finding::new(name, State::Missing, format!("missing packages: {}", missing.join(" ")), Some(SETUP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_packages_are_named_with_the_remedy() {
        assert_eq!(missing_packages("headers", &[]).state, State::Present);
        let finding = missing_packages("headers", &["libelf-dev", "libssl-dev"]);
        assert_eq!(finding.state, State::Missing);
        assert!(finding.detail.contains("libelf-dev libssl-dev"));
        assert!(finding.fix.unwrap().contains("lab-setup"));
    }
}
