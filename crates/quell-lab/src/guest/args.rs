//! QEMU's command line, as a pure function of the guest.

use std::path::Path;
use std::sync::LazyLock;

use super::accel::Accelerator;
use super::spec::GuestSpec;
use crate::child::FIRST_FD;

/// Name of the port for JSON lines, in the guest's `/sys/class/virtio-ports/*/name`.
pub(crate) const CONTROL_PORT: &str = "quell.control";
/// Name of the port for raw bytes.
pub(crate) const BULK_PORT: &str = "quell.bulk";

/// The sockets that QEMU inherits, in the order of their descriptors.
pub(crate) const SOCKETS: [&str; 3] = ["control", "bulk", "qmp"];

/// Words that every guest's kernel gets: the console, a quick death instead of a hang, messages from warnings
/// upward, and the TSC as clock (under TCG the kernel would distrust it and read a slow device instead).
const CMDLINE: &str = "console=ttyS0 panic=-1 oops=panic loglevel=5 tsc=reliable clocksource=tsc";

/// The kernel command line of a guest whose arm adds `extra`.
#[must_use]
pub fn kernel_cmdline(spec: &GuestSpec, accelerator: Accelerator, extra: &str) -> String {
    let clock = match accelerator {
        Accelerator::Tcg => tcg_clock(*HOST_KHZ),
        Accelerator::Kvm => String::new(),
    };
    [CMDLINE, clock.as_str(), spec.cmdline.trim(), extra.trim()]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The host's TSC rate in kHz, which is also that of a guest under TCG; `None` if it cannot be measured.
static HOST_KHZ: LazyLock<Option<u32>> =
    LazyLock::new(|| quell_topology::tsc_ticks_per_ms().ok().map(|rate| rate.round() as u32));

/// On a busy host the emulated timers stall while the TSC runs on. A kernel that measures the one by the other then has a
/// clock that is several times too fast, or finds that its timer does not work and panics. So it is told the rate,
/// and not to check the timer.
fn tcg_clock(khz: Option<u32>) -> String {
    let rate = khz.map(|khz| format!(" tsc_early_khz={khz}"));
    format!("no_timer_check{}", rate.unwrap_or_default())
}

/// The arguments of QEMU. It has no files and no network: the console is its standard output, the ports and
/// QMP are inherited sockets.
#[must_use]
pub fn qemu_args(
    spec: &GuestSpec,
    accelerator: Accelerator,
    kernel: &Path,
    initramfs: &Path,
    cmdline: &str,
) -> Vec<String> {
    let mut args: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| args.extend(words.iter().map(|word| (*word).to_owned()));
    add(&["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-name", "quell-lab"]);
    add(&["-machine", "q35", "-accel", accelerator.qemu(), "-cpu", accelerator.cpu()]);
    add(&["-smp", &spec.cpus.to_string()]);
    let memory = match spec.max_memory {
        Some(max) => format!("{},slots={},maxmem={max}", spec.boot_memory(), spec.virtio_mem.len().max(1)),
        None => spec.boot_memory().to_string(),
    };
    add(&["-m", &memory]);
    for (id, node) in spec.nodes.iter().enumerate() {
        add(&["-object", &format!("memory-backend-ram,id=node{id},size={}", node.memory)]);
        let cpus = node.cpus.as_ref().map(|cpus| format!(",cpus={cpus}")).unwrap_or_default();
        add(&["-numa", &format!("node,nodeid={id},memdev=node{id}{cpus}")]);
    }
    for device in &spec.virtio_mem {
        let id = &device.id;
        add(&["-object", &format!("memory-backend-ram,id={id}-ram,size={},reserve=off", device.size)]);
        let (node, requested) = (device.node, device.requested);
        add(&[
            "-device",
            &format!("virtio-mem-pci,id={id},memdev={id}-ram,node={node},requested-size={requested}"),
        ]);
    }
    add(&["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]);
    for (index, name) in SOCKETS.iter().enumerate() {
        add(&["-chardev", &format!("socket,id={name},fd={}", FIRST_FD + index as i32)]);
    }
    add(&["-mon", "chardev=qmp,mode=control"]);
    add(&["-device", "virtio-serial-pci"]);
    add(&["-device", &format!("virtserialport,chardev=control,name={CONTROL_PORT}")]);
    add(&["-device", &format!("virtserialport,chardev=bulk,name={BULK_PORT}")]);
    add(&["-kernel", &kernel.to_string_lossy(), "-initrd", &initramfs.to_string_lossy(), "-append", cmdline]);
    args
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Size;
    use crate::guest::spec::{Node, VirtioMem};

    fn line(spec: &GuestSpec, accelerator: Accelerator) -> String {
        let cmdline = kernel_cmdline(spec, Accelerator::Kvm, "arm=1");
        qemu_args(spec, accelerator, Path::new("/k"), Path::new("/i"), &cmdline).join(" ")
    }

    #[test]
    fn a_plain_guest() {
        assert_eq!(
            line(&GuestSpec::default(), Accelerator::Tcg),
            "-nodefaults -no-user-config -display none -no-reboot -name quell-lab -machine q35 \
             -accel tcg,thread=multi -cpu max -smp 2 -m 1G -chardev stdio,id=console,signal=off \
             -serial chardev:console -chardev socket,id=control,fd=100 -chardev socket,id=bulk,fd=101 \
             -chardev socket,id=qmp,fd=102 -mon chardev=qmp,mode=control -device virtio-serial-pci \
             -device virtserialport,chardev=control,name=quell.control \
             -device virtserialport,chardev=bulk,name=quell.bulk -kernel /k -initrd /i -append \
             console=ttyS0 panic=-1 oops=panic loglevel=5 tsc=reliable clocksource=tsc arm=1"
        );
    }

    #[test]
    fn under_tcg_the_kernel_is_told_its_clocks_rate() {
        assert_eq!(tcg_clock(Some(2_594_000)), "no_timer_check tsc_early_khz=2594000");
        assert_eq!(tcg_clock(None), "no_timer_check");
        let line = kernel_cmdline(&GuestSpec::default(), Accelerator::Tcg, "arm=1");
        assert!(line.contains(" no_timer_check") && line.ends_with("arm=1"), "{line}");
    }

    #[test]
    fn nodes_and_memory_devices() {
        let spec = GuestSpec {
            nodes: vec![
                Node { memory: Size(512 << 20), cpus: Some(String::from("0-1")) },
                Node { memory: Size(256 << 20), cpus: None },
            ],
            max_memory: Some(Size(8 << 30)),
            virtio_mem: vec![VirtioMem {
                id: String::from("vmem0"),
                size: Size(4 << 30),
                node: 1,
                requested: Size(0),
            }],
            cmdline: String::from("memhp_default_state=online"),
            ..GuestSpec::default()
        };
        spec.validate().unwrap();
        let line = line(&spec, Accelerator::Kvm);
        for part in [
            "-accel kvm -cpu host",
            "-m 768M,slots=1,maxmem=8G",
            "-object memory-backend-ram,id=node0,size=512M -numa node,nodeid=0,memdev=node0,cpus=0-1",
            "-object memory-backend-ram,id=node1,size=256M -numa node,nodeid=1,memdev=node1 ",
            "-object memory-backend-ram,id=vmem0-ram,size=4G,reserve=off",
            "-device virtio-mem-pci,id=vmem0,memdev=vmem0-ram,node=1,requested-size=0 ",
            "memhp_default_state=online arm=1",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
    }

    #[test]
    fn guests_that_cannot_be_are_refused() {
        let refused = |spec: GuestSpec| spec.validate().unwrap_err();
        let default = GuestSpec::default;
        assert!(refused(GuestSpec { cpus: 0, ..default() }).contains("1 to 64"));
        assert!(refused(GuestSpec { memory: Some(Size(1 << 20)), ..default() }).contains("cannot boot"));
        assert!(refused(GuestSpec { pin: vec![0], ..default() }).contains("1 host CPUs for 2"));
        let node = Node { memory: Size(1 << 30), cpus: Some(String::from("0,device=x")) };
        assert!(refused(GuestSpec { nodes: vec![node], ..default() }).contains("not a range"));
        let node = Node { memory: Size(1 << 30), cpus: None };
        let spec = GuestSpec { nodes: vec![node], memory: Some(Size(2 << 30)), ..default() };
        assert!(refused(spec).contains("the nodes have 1G"));
        let device = VirtioMem { id: String::from("a,b"), size: Size(1 << 30), node: 0, requested: Size(0) };
        let spec = GuestSpec { virtio_mem: vec![device], ..default() };
        assert!(refused(spec.clone()).contains("at least 2G"));
        assert!(refused(GuestSpec { max_memory: Some(Size(2 << 30)), ..spec }).contains("plain word"));
    }
}
