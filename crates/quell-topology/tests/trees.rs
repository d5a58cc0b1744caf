//! The reader on invented machines.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use quell_core::{Bytes, CpuId, NodeId};
use quell_topology::cpuid::Machine;
use quell_topology::{
    CacheKind, CacheShape, CpuidCache, CpuidFacts, Error, Source, Topology, parse_cpu_list,
};
use tempfile::TempDir;

struct Tree(TempDir);

impl Tree {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn put(&self, path: &str, text: impl AsRef<[u8]>) -> &Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn cpu(&self, cpu: u32, file: &str, text: &str) -> &Self {
        self.put(&format!("sys/devices/system/cpu/cpu{cpu}/{file}"), text)
    }

    fn cache(&self, cpu: u32, level: u32, kind: &str, size: &str, ways: u32, shared: &str) -> &Self {
        let index = if kind == "Instruction" { 1 } else { level - u32::from(level == 1) };
        let kib: u32 = size.trim_end_matches('K').parse().unwrap();
        for (file, text) in [
            ("level", level.to_string()),
            ("type", kind.into()),
            ("size", size.into()),
            ("ways_of_associativity", ways.to_string()),
            ("number_of_sets", (kib * 1024 / 64 / ways).to_string()),
            ("coherency_line_size", "64".into()),
            ("shared_cpu_list", shared.into()),
        ] {
            self.cpu(cpu, &format!("cache/index{index}/{file}"), &format!("{text}\n"));
        }
        self
    }

    fn online(&self, list: &str) -> &Self {
        self.put("sys/devices/system/cpu/online", format!("{list}\n"))
    }

    fn read(&self) -> Topology {
        Topology::read(self.0.path()).unwrap()
    }

    fn root(&self) -> &Path {
        self.0.path()
    }
}

fn ids(list: &str) -> Vec<CpuId> {
    parse_cpu_list(list).unwrap()
}

/// Two sockets of four cores of two threads, threads numbered as Linux does on Intel: 0-7, then siblings 8-15.
fn intel_two_sockets() -> Tree {
    let tree = Tree::new();
    tree.online("0-15").put("sys/devices/system/cpu/present", "0-15\n");
    let mut info = String::new();
    for cpu in 0..16u32 {
        let (core, socket) = (cpu % 4, cpu % 8 / 4);
        let siblings = format!("{},{}", cpu % 8, cpu % 8 + 8);
        let package = if socket == 0 { "0-3,8-11" } else { "4-7,12-15" };
        tree.cpu(cpu, "topology/core_id", &core.to_string())
            .cpu(cpu, "topology/physical_package_id", &socket.to_string())
            .cpu(cpu, "topology/thread_siblings_list", &siblings)
            .cache(cpu, 1, "Data", "48K", 12, &siblings)
            .cache(cpu, 1, "Instruction", "32K", 8, &siblings)
            .cache(cpu, 2, "Unified", "1280K", 20, &siblings)
            .cache(cpu, 3, "Unified", "49152K", 12, package);
        write!(
            info,
            "processor\t: {cpu}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 106\nmodel name\t: Xeon\nstepping\t: 6\n\
             apicid\t\t: {}\nflags\t\t: tsc constant_tsc nonstop_tsc rdtscp\n\n",
            socket * 64 + core * 2 + cpu / 8
        )
        .unwrap();
    }
    tree.put("proc/cpuinfo", info);
    tree.put("sys/devices/system/node/online", "0-1\n");
    for (node, list) in [(0, "0-3,8-11"), (1, "4-7,12-15")] {
        let dir = format!("sys/devices/system/node/node{node}");
        tree.put(&format!("{dir}/cpulist"), list)
            .put(
                &format!("{dir}/meminfo"),
                format!("Node {node} MemTotal:  1024 kB\nNode {node} MemFree: 1 kB\n"),
            )
            .put(&format!("{dir}/distance"), if node == 0 { "10 21\n" } else { "21 10\n" });
    }
    tree.put("sys/class/dmi/id/sys_vendor", "Maker\n").put("sys/class/dmi/id/product_name", "Box 1\n");
    tree
}

#[test]
fn intel_with_hyperthreads_and_two_sockets() {
    let topology = intel_two_sockets().read();
    assert_eq!(topology.notes, Vec::<String>::new());
    assert_eq!(
        (topology.model.family, topology.model.model, topology.model.stepping),
        (Some(6), Some(106), Some(6))
    );
    assert_eq!(topology.model.name.as_deref(), Some("Xeon"));
    assert_eq!((topology.hypervisor.present, topology.tsc.invariant), (Some(false), Some(true)));
    assert_eq!(topology.hypervisor.product.as_deref(), Some("Maker Box 1"));
    assert_eq!(topology.llcs.len(), 2);
    assert_eq!(topology.llcs[1].cpus, ids("4-7,12-15"));
    assert_eq!((topology.llcs[1].advertised, topology.llcs[1].ways), (Bytes::mib(48), Some(12)));
    assert_eq!(topology.caches.len(), 8 + 8 + 8 + 2);
    assert!(topology.are_siblings(CpuId(3), CpuId(11)) && !topology.are_siblings(CpuId(3), CpuId(3)));
    assert_eq!(topology.share_llc(CpuId(0), CpuId(11)), Some(true));
    assert_eq!(topology.share_llc(CpuId(0), CpuId(4)), Some(false));
    assert_eq!(topology.cpu(CpuId(12)).unwrap().node, Some(NodeId(1)));
    assert_eq!(topology.nodes[1].distances, [21, 10]);
    assert_eq!(topology.nodes[1].memory, Some(Bytes::mib(1)));
}

#[test]
fn amd_with_many_llcs_and_512_cpus() {
    let tree = Tree::new();
    tree.online("0-511");
    for cpu in 0..512u32 {
        let first = cpu / 8 * 8;
        tree.cache(cpu, 3, "Unified", "32768K", 16, &format!("{first}-{}", first + 7));
    }
    let topology = tree.read();
    assert_eq!(topology.llcs.len(), 64);
    assert_eq!(topology.llc_of(CpuId(511)).unwrap().id.0, 63);
    assert!(topology.llcs.iter().all(|llc| llc.cpus.len() == 8 && llc.source == Source::Sysfs));
    assert!(topology.nodes.is_empty());
}

#[test]
fn holes_in_the_numbering_and_offline_cpus() {
    let tree = Tree::new();
    tree.online("0,3,7").put("sys/devices/system/cpu/present", "0-7\n");
    for cpu in [0, 3, 7] {
        // The kernel names only online CPUs here; a list with more must not bring them back.
        tree.cache(cpu, 3, "Unified", "16384K", 16, "0-7");
    }
    let topology = tree.read();
    assert_eq!(topology.online(), ids("0,3,7"));
    assert_eq!(topology.offline, ids("1-2,4-6"));
    assert_eq!(topology.llcs[0].cpus, ids("0,3,7"));
    assert_eq!(topology.notes, Vec::<String>::new());
}

#[test]
fn a_machine_without_an_l3_has_its_l2s_as_llcs() {
    let tree = Tree::new();
    tree.online("0-1");
    for cpu in 0..2 {
        tree.cache(cpu, 1, "Data", "32K", 8, &cpu.to_string()).cache(
            cpu,
            2,
            "Unified",
            "512K",
            8,
            &cpu.to_string(),
        );
    }
    let topology = tree.read();
    assert_eq!(topology.llcs.iter().map(|llc| llc.level).collect::<Vec<_>>(), [2, 2]);
}

/// CPUID of an invented machine: an L3 shared by the APIC ids that agree above `shift` bits.
struct Fake {
    l3_mib: u64,
    shift: u32,
    apic: fn(CpuId) -> Option<u32>,
    allowed: Option<Vec<CpuId>>,
}

impl Machine for Fake {
    fn cpuid(&self) -> Option<CpuidFacts> {
        let shape = CacheShape {
            size: Bytes::mib(self.l3_mib),
            ways: 16,
            sets: (self.l3_mib * 1024) as u32,
            line_bytes: 64,
        };
        Some(CpuidFacts {
            vendor: Some("AuthenticAMD".into()),
            hypervisor: true,
            hypervisor_signature: Some("KVMKVMKVM".into()),
            caches: vec![CpuidCache {
                level: 3,
                kind: CacheKind::Unified,
                shape,
                inclusive: false,
                sharing_shift: self.shift,
            }],
            ..CpuidFacts::default()
        })
    }
    fn apic_id(&self, cpu: CpuId) -> Option<u32> {
        (self.apic)(cpu)
    }
    fn allowed(&self) -> Option<Vec<CpuId>> {
        self.allowed.clone()
    }
}

#[test]
fn a_vm_without_cache_folders_falls_back_to_cpuid() {
    let tree = Tree::new();
    tree.online("0-3");
    let mut machine = Fake { l3_mib: 32, shift: 1, apic: |cpu| Some(cpu.0), allowed: Some(ids("2")) };
    let topology = Topology::read_with(tree.root(), &machine).unwrap();
    assert_eq!(
        topology.llcs.iter().map(|llc| llc.cpus.clone()).collect::<Vec<_>>(),
        [ids("0-1"), ids("2-3")]
    );
    assert!(topology.llcs.iter().all(|llc| llc.source == Source::Cpuid && llc.inclusive == Some(false)));
    assert_eq!(topology.hypervisor.name, Some("KVM"));
    assert_eq!(topology.allowed, ids("2"));
    assert!(topology.restriction().unwrap().contains("CPU 0-1,3"));
    // CPU number to APIC id is not the identity everywhere; /proc/cpuinfo tells.
    tree.put("proc/cpuinfo", "processor: 0\napicid: 0\n\nprocessor: 1\napicid: 2\n\nprocessor: 2\napicid: 1\n\nprocessor: 3\napicid: 3\n");
    let topology = Topology::read_with(tree.root(), &machine).unwrap();
    assert_eq!(topology.llcs[0].cpus, ids("0,2"));
    // Without either, the size is known and the sharing is not.
    tree.put("proc/cpuinfo", "");
    machine.apic = |_| None;
    let topology = Topology::read_with(tree.root(), &machine).unwrap();
    assert!(topology.llcs.is_empty() && topology.caches[0].cpus.is_empty());
    assert_eq!(topology.caches[0].size, Some(Bytes::mib(32)));
    assert!(
        topology.notes.iter().any(|note| note.contains("not known which CPUs share")),
        "{:?}",
        topology.notes
    );
    // Ids that are all the same say nothing either.
    machine.apic = |_| Some(0);
    assert!(Topology::read_with(tree.root(), &machine).unwrap().llcs.is_empty());
    // One CPU shares with nobody.
    tree.online("0");
    assert_eq!(Topology::read_with(tree.root(), &machine).unwrap().llcs[0].cpus, ids("0"));
}

#[test]
fn files_alone_without_caches_say_so() {
    let tree = Tree::new();
    tree.online("0-1");
    let topology = tree.read();
    assert!(topology.caches.is_empty() && topology.llcs.is_empty());
    assert!(topology.notes[0].contains("no cache folders"), "{:?}", topology.notes);
    assert_eq!(topology.share_llc(CpuId(0), CpuId(1)), None);
}

#[test]
fn sysfs_and_cpuid_that_disagree_are_both_kept() {
    let tree = Tree::new();
    tree.online("0-3");
    let mut info = String::new();
    for cpu in 0..4 {
        tree.cache(cpu, 3, "Unified", "16384K", 16, "0-3");
        write!(info, "processor: {cpu}\napicid: {cpu}\n\n").unwrap();
    }
    tree.put("proc/cpuinfo", info);
    let machine = Fake { l3_mib: 32, shift: 1, apic: |_| None, allowed: None };
    let topology = Topology::read_with(tree.root(), &machine).unwrap();
    assert_eq!(topology.llcs[0].advertised, Bytes::mib(16));
    assert_eq!(topology.caches[0].cpuid_differs.unwrap().size, Bytes::mib(32));
    let notes = topology.notes.join("\n");
    assert!(notes.contains("sysfs says 16 MiB") && notes.contains("CPUID says 32 MiB"), "{notes}");
    assert!(notes.contains("sysfs says CPU 0-3 share it; CPUID says CPU 0-1"), "{notes}");
}

#[test]
fn folders_that_contradict_each_other_give_disjoint_domains() {
    let tree = Tree::new();
    tree.online("0-2");
    tree.cache(0, 3, "Unified", "16384K", 16, "0-1")
        .cache(1, 3, "Unified", "16384K", 16, "1-2")
        .cache(2, 3, "Unified", "16384K", 16, "0");
    let topology = tree.read();
    let mut members: Vec<CpuId> = topology.llcs.iter().flat_map(|llc| llc.cpus.clone()).collect();
    members.sort();
    assert_eq!(members, ids("0-2"));
    let notes = topology.notes.join("\n");
    assert!(notes.contains("contradicts itself") && notes.contains("does not name CPU 2 itself"), "{notes}");
}

#[test]
fn broken_text_is_noted_with_the_file_or_an_error() {
    let tree = intel_two_sockets();
    tree.cpu(5, "cache/index3/size", "big").cpu(6, "cache/index3/level", "three").cpu(
        7,
        "topology/core_id",
        "x",
    );
    tree.put("sys/devices/system/node/node1/distance", "10 far")
        .put("proc/cpuinfo", [0xff, 0xfe, b'\n', b':']);
    let topology = tree.read();
    let notes = topology.notes.join("\n");
    for file in ["cpu6/cache/index3/level", "cpu7/topology/core_id", "node1/distance"] {
        assert!(notes.contains(file), "{file} is not in {notes}");
    }
    tree.online("0-x");
    let error = Topology::read(tree.root()).unwrap_err();
    assert!(matches!(&error, Error::Malformed { path, .. } if path.ends_with("online")), "{error}");
    assert!(matches!(Topology::read(Tree::new().root()), Err(Error::NoCpus { .. })));
}

#[test]
fn the_cpuset_of_the_closest_group_counts() {
    let tree = intel_two_sockets();
    tree.put("proc/self/cgroup", "0::/a.slice/b.service\n")
        .put("sys/fs/cgroup/cpuset.cpus.effective", "0-15\n")
        .put("sys/fs/cgroup/a.slice/cpuset.cpus.effective", "4-7\n");
    assert_eq!(tree.read().cpuset, Some(ids("4-7")));
    tree.put("proc/self/cgroup", "3:cpu,cpuset:/box\n0::/\n")
        .put("sys/fs/cgroup/cpuset/box/cpuset.effective_cpus", "2\n");
    assert_eq!(tree.read().cpuset, Some(ids("2")));
    tree.put("proc/self/cgroup", "nonsense\n");
    assert_eq!(tree.read().cpuset, None);
}

#[test]
fn this_machine_can_be_read() {
    let topology = Topology::read(Path::new("/")).unwrap();
    assert!(!topology.cpus.is_empty() && !topology.allowed.is_empty());
    let members: usize = topology.llcs.iter().map(|llc| llc.cpus.len()).sum();
    assert!(members <= topology.cpus.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever one file holds, the reader answers or names the file; domains stay disjoint.
    #[test]
    fn no_content_makes_it_panic(victim in 0usize..10, content in prop::collection::vec(any::<u8>(), 0..40)) {
        let tree = Tree::new();
        tree.online("0-3").put("proc/cpuinfo", "processor: 0\napicid: 0\n");
        for cpu in 0..4 {
            tree.cache(cpu, 3, "Unified", "8192K", 16, "0-3").cpu(cpu, "topology/core_cpus_list", &cpu.to_string());
        }
        let files = [
            "sys/devices/system/cpu/online", "sys/devices/system/cpu/present", "proc/cpuinfo", "proc/self/cgroup",
            "sys/devices/system/cpu/cpu1/cache/index0/level", "sys/devices/system/cpu/cpu1/cache/index0/size",
            "sys/devices/system/cpu/cpu1/cache/index0/shared_cpu_list", "sys/devices/system/node/online",
            "sys/devices/system/cpu/cpu1/cache/index0/type", "sys/devices/system/cpu/cpu1/topology/core_cpus_list",
        ];
        tree.put(files[victim], content);
        let machine = Fake { l3_mib: 8, shift: 2, apic: |cpu| Some(cpu.0), allowed: None };
        match Topology::read_with(tree.root(), &machine) {
            Ok(topology) => {
                let members: Vec<CpuId> = topology.llcs.iter().flat_map(|llc| llc.cpus.clone()).collect();
                let mut unique = members.clone();
                unique.sort();
                unique.dedup();
                prop_assert_eq!(unique.len(), members.len());
            }
            Err(error) => prop_assert!(error.to_string().contains("online"), "{}", error),
        }
    }
}
