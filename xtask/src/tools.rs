//! Which development tools this machine has, and how to get those it lacks.

use std::process::{Command, Stdio};

/// The optional tools that were found.
#[derive(Clone, Copy, Debug)]
pub struct Tools {
    /// `cargo fmt` works.
    pub rustfmt: bool,
    /// `cargo clippy` works.
    pub clippy: bool,
    /// `cargo nextest` works.
    pub nextest: bool,
    /// A C compiler driver, which rustc uses as its linker.
    pub linker: bool,
}

/// How to get rustfmt.
pub const GET_RUSTFMT: &str = "rustfmt is missing; get it with: rustup component add rustfmt";
/// How to get clippy.
pub const GET_CLIPPY: &str = "clippy is missing; get it with: rustup component add clippy";
/// How to get a linker.
pub const GET_LINKER: &str = "no linker: `cc` is missing; get it with: apt-get install gcc libc6-dev";

impl Tools {
    /// Asks each tool for its version.
    pub fn find() -> Self {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        Self {
            rustfmt: answers(&cargo, &["fmt", "--version"]),
            clippy: answers(&cargo, &["clippy", "--version"]),
            nextest: answers(&cargo, &["nextest", "--version"]),
            linker: answers("cc", &["--version"]),
        }
    }
}

fn answers(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_answers_only_if_it_exists_and_succeeds() {
        assert!(answers("true", &[]));
        assert!(!answers("false", &[]));
        assert!(!answers("./no-such-program", &[]));
    }
}
