//! One file per subcommand. Each reads its arguments, calls a library and prints; no logic of its own.

pub(crate) mod bench;
pub(crate) mod calibrate;
pub(crate) mod colors;
pub(crate) mod doctor;
pub(crate) mod evsets;
pub(crate) mod lab;
pub(crate) mod migrate;
mod monitor_args;
pub(crate) mod plug;
pub(crate) mod scan;
pub(crate) mod topo;
pub(crate) mod trace;
mod values;
pub(crate) mod watch;
