//! `quell plug`: memory hotplug, from the host and from inside the guest.

mod set;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Subcommand;
use quell_plug::{Device, Qmp, devices};
use quell_report::{Column, Table};

use crate::terminal;

/// Resizes virtio-mem devices of a QEMU, and shows inside a guest what memory it really has.
///
/// Exits with 0, with 1 if the guest did not follow in time, and with 2 if it could not run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// On the host: the virtio-mem devices of a QEMU
    List(ListArgs),
    /// On the host: give a device another size, and wait until the guest has followed
    Set(set::Args),
    /// In the guest: one line per period with its memory, blocks and zones until Ctrl-C
    Watch(watch::Args),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// QMP socket of the QEMU
    #[arg(long, value_name = "SOCKET")]
    qmp: PathBuf,
    /// Print JSON (quell.plug-list/1)
    #[arg(long)]
    json: bool,
}

/// What `list --json` prints.
#[derive(serde::Serialize)]
struct List {
    schema: &'static str,
    devices: Vec<Device>,
}

/// How long QEMU may take to answer: while it allocates memory ahead, it answers nobody.
const QMP_DEADLINE: Duration = Duration::from_secs(60);

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::List(args) => list(args),
        Command::Set(args) => set::run(args),
        Command::Watch(args) => watch::run(args),
    }
}

fn list(args: &ListArgs) -> Result<ExitCode> {
    let devices = devices(&mut Qmp::open(&args.qmp, QMP_DEADLINE)?)?;
    if args.json {
        terminal::print_json(&List { schema: "quell.plug-list/1", devices })?;
        return Ok(ExitCode::SUCCESS);
    }
    let number = Column::number;
    let mut table = Table::new([
        Column::text("device"),
        number("node"),
        number("size"),
        number("requested"),
        number("at most"),
        number("blocks of"),
    ]);
    for device in devices {
        table.row([
            device.id.unwrap_or_else(|| String::from("(without id)")).into(),
            device.node.to_string().into(),
            device.size.to_string().into(),
            device.requested.to_string().into(),
            device.max.to_string().into(),
            device.block.to_string().into(),
        ]);
    }
    terminal::print(&table.render(terminal::look()))?;
    Ok(ExitCode::SUCCESS)
}
