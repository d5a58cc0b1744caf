//! `cargo xtask lab-setup` and the lab's tier of tests.

use std::fs;
use std::io::{self, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::step::{Action, Invocation, Step};

/// Kernel source; on Debian 12 it comes from the security suite.
const SOURCE_PACKAGE: &str = "linux-source-6.12";
/// What building kernels and booting guests needs.
const PACKAGES: [&str; 19] = [
    "qemu-system-x86",
    SOURCE_PACKAGE,
    "gcc",
    "libc6-dev",
    "make",
    "binutils",
    "flex",
    "bison",
    "bc",
    "libelf-dev",
    "libssl-dev",
    "pahole",
    "kmod",
    "patch",
    "perl",
    "rsync",
    "tar",
    "xz-utils",
    "zlib1g-dev",
];

/// Arguments of `cargo xtask lab-setup`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Install without asking.
    #[arg(long)]
    yes: bool,
}

/// Installs what the lab needs and this machine lacks. Safe to repeat.
///
/// # Errors
///
/// This is no Debian, a package cannot be had, or apt fails.
pub fn setup(args: &Args) -> Result<bool> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    if !is_debian(&release) {
        bail!(
            "lab-setup knows Debian 12 and 13 only; here install the equivalents of: {} (a source tree for \
             `quell lab kernel build --source DIR` replaces {SOURCE_PACKAGE})",
            PACKAGES.join(" ")
        );
    }
    let missing: Vec<&str> = PACKAGES.into_iter().filter(|package| !is_installed(package)).collect();
    if missing.is_empty() {
        println!("lab-setup: all {} packages are installed", PACKAGES.len());
        return Ok(true);
    }
    println!("lab-setup: will install {}", missing.join(" "));
    if !args.yes && !confirmed()? {
        println!("Nothing was installed.");
        return Ok(false);
    }
    apt(&["update", "-q"])?;
    if missing.contains(&SOURCE_PACKAGE) && !has_candidate(SOURCE_PACKAGE) {
        bail!(
            "no configured suite has {SOURCE_PACKAGE}: on Debian 12 it is in the suites bookworm-security and \
             bookworm-backports (add one of them to apt's sources); or use `quell lab kernel build --source DIR` with a Linux 6.12 tree"
        );
    }
    let mut install = vec!["install", "-q", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=600"];
    install.extend(&missing);
    apt(&install)?;
    Ok(true)
}

fn is_debian(os_release: &str) -> bool {
    os_release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or(line.strip_prefix("ID_LIKE=")))
        .any(|value| value.trim_matches('"').split(' ').any(|id| id == "debian"))
}

fn is_installed(package: &str) -> bool {
    let status = quiet_output("dpkg-query", &["-W", "-f", "${db:Status-Status}", package]);
    status.is_some_and(|text| text == "installed")
}

fn has_candidate(package: &str) -> bool {
    quiet_output("apt-cache", &["policy", package]).is_some_and(|text| policy_has_candidate(&text))
}

fn policy_has_candidate(text: &str) -> bool {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Candidate:"))
        .any(|version| version.trim() != "(none)")
}

fn quiet_output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).env("LC_ALL", "C").stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn confirmed() -> Result<bool> {
    print!("Continue? [y/N] ");
    io::stdout().flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

fn apt(args: &[&str]) -> Result<()> {
    let is_root = quiet_output("id", &["-u"]).is_some_and(|id| id == "0");
    let mut command = Command::new(if is_root { "apt-get" } else { "sudo" });
    if !is_root {
        command.args(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    }
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
    let typed = format!("{}apt-get {}", if is_root { "" } else { "sudo " }, args.join(" "));
    println!("$ {typed}");
    let status = command.status().with_context(|| format!("cannot run `{typed}`"))?;
    if status.success() { Ok(()) } else { bail!("`{typed}` failed: {status}") }
}

/// The steps of `cargo xtask test --lab`: with short forms of the experiments, or with `--full` as they are.
pub fn steps(full: bool) -> Vec<Step> {
    let step = |name, purpose, action| Step { name, purpose, action };
    let quell = |args: &[&'static str]| {
        let run = ["run", "--release", "--quiet", "--package", "quell", "--"];
        Action::Run(Invocation::cargo(&[&run, args].concat()))
    };
    let experiment = |name| {
        let form: &[&'static str] = if full { &[] } else { &["--short"] };
        quell(&[&["lab", "run", name, "--output", "target/quell-runs"], form].concat())
    };
    let setup = Invocation::cargo(&["run", "--quiet", "--package", "xtask", "--", "lab-setup", "--yes"]);
    let guests = ["test", "--package", "quell", "--test", "lab", "--", "--test-threads", "1"];
    vec![
        step("lab set-up", "the packages that build and boot kernels are installed", Action::Run(setup)),
        step("kernel", "the patch series applies and the kernel builds", quell(&["lab", "kernel", "build"])),
        step("doctor", "what the lab needs is there, and a guest boots", quell(&["doctor", "--lab"])),
        step(
            "guests",
            "guests boot, work, fail and end as they should",
            Action::Run(Invocation::cargo(&guests).env("QUELL_LAB_TESTS", "1")),
        ),
        step("migrate-batch", "move_pages with and without the global drain", experiment("migrate-batch")),
        step(
            "debug kernel",
            "the series builds with KASAN, lockdep and DEBUG_VM",
            quell(&["lab", "kernel", "build", "--debug"]),
        ),
        step(
            "migrate-stress",
            "pages arrive whole under stress, and no kernel check complains",
            experiment("migrate-stress"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debian_and_its_children_are_recognized() {
        assert!(is_debian("NAME=\"Debian GNU/Linux\"\nID=debian\n"));
        assert!(is_debian("ID=ubuntu\nID_LIKE=\"debian\"\n"));
        assert!(!is_debian("ID=fedora\nID_LIKE=\"rhel centos\"\n"));
        assert!(!is_debian(""));
    }

    #[test]
    fn a_package_without_a_candidate_is_noticed() {
        assert!(policy_has_candidate("x:\n  Installed: (none)\n  Candidate: 6.12.1-1\n"));
        assert!(!policy_has_candidate("x:\n  Installed: (none)\n  Candidate: (none)\n"));
        assert!(!policy_has_candidate(""));
    }

    #[test]
    fn only_the_full_tier_runs_the_experiments_as_they_are() {
        let text = |full| format!("{:?}", steps(full));
        assert!(text(false).contains("--short") && !text(true).contains("--short"));
        assert!([false, true].into_iter().all(|full| text(full).contains("migrate-stress")));
    }
}
