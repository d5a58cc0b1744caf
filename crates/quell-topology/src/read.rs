//! Reads a [`Topology`] from files and CPUID.

use std::collections::BTreeMap;
use std::path::Path;

use quell_core::{Bytes, CpuId, NodeId};

use crate::cpuid::{CpuidFacts, FilesOnly, Machine, ThisMachine, hypervisor_name};
use crate::files::Files;
use crate::model::{Cpu, CpuModel, Hypervisor, Node, Topology, TscFacts};
use crate::{Error, caches, format_cpu_list, parse_cpu_list};

const CPU_DIR: &str = "sys/devices/system/cpu";
const NODE_DIR: &str = "sys/devices/system/node";

impl Topology {
    /// Reads the topology below `root`.
    ///
    /// With `/` it describes this machine: CPUID and the calling thread's affinity count too. Any other root
    /// is a tree of files that stands for a machine; then only the files count.
    ///
    /// # Errors
    /// [`Error::NoCpus`] if no CPU can be found, [`Error::Malformed`] if the list of online CPUs cannot be
    /// understood. Anything else that is missing or odd becomes a note.
    pub fn read(root: &Path) -> Result<Self, Error> {
        if root == Path::new("/") {
            Self::read_with(root, &ThisMachine)
        } else {
            Self::read_with(root, &FilesOnly)
        }
    }

    /// As [`Topology::read`], with a stand-in for CPUID and affinity.
    ///
    /// # Errors
    /// As [`Topology::read`].
    pub fn read_with(root: &Path, machine: &dyn Machine) -> Result<Self, Error> {
        let mut files = Files::new(root);
        let info = CpuInfo::read(&mut files);
        let online = online(&mut files, &info, root)?;
        let facts = machine.cpuid();
        let mut allowed = machine.allowed().unwrap_or_else(|| online.clone());
        allowed.retain(|cpu| online.binary_search(cpu).is_ok());

        let mut found_caches = caches::from_sysfs(&mut files, &online);
        let apic = apic_ids(&info, &online, machine, found_caches.is_empty() && facts.is_some());
        if let Some(facts) = &facts {
            if found_caches.is_empty() {
                found_caches = caches::from_cpuid(facts, &online, apic.as_deref());
                files.notes.push(without_sysfs(facts, apic.is_some() || online.len() == 1));
            } else {
                let apic = apic.as_deref();
                caches::compare(&mut found_caches, facts, &online, apic, &mut files.notes);
            }
        } else if found_caches.is_empty() {
            files.notes.push(format!("{} has no cache folders", files.path(CPU_DIR).display()));
        }
        let llcs = caches::llcs(&found_caches, &online, &mut files.notes);
        let nodes = nodes(&mut files, &online);
        let cpus = online
            .iter()
            .enumerate()
            .map(|(i, &id)| Cpu {
                node: nodes.iter().find(|node| node.cpus.contains(&id)).map(|node| node.id),
                apic_id: apic.as_ref().map(|ids| ids[i]),
                allowed: allowed.binary_search(&id).is_ok(),
                ..cpu(&mut files, &info, &online, id)
            })
            .collect();
        let offline = offline(&mut files, &online);
        let facts = facts.as_ref();
        Ok(Self {
            model: model(&info, facts),
            hypervisor: hypervisor(&mut files, &info, facts),
            tsc: tsc(&mut files, &info, facts),
            cpus,
            offline,
            cpuset: cpuset(&mut files),
            allowed,
            caches: found_caches,
            llcs,
            nodes,
            notes: files.notes,
        })
    }
}

/// `/proc/cpuinfo`: per CPU the fields by name.
#[derive(Debug, Default)]
struct CpuInfo {
    cpus: BTreeMap<CpuId, BTreeMap<String, String>>,
}

impl CpuInfo {
    fn read(files: &mut Files) -> Self {
        let mut info = Self::default();
        let text = files.text("proc/cpuinfo").unwrap_or_default();
        for block in text.split("\n\n") {
            let fields: BTreeMap<String, String> = block
                .lines()
                .filter_map(|line| line.split_once(':'))
                .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
                .collect();
            if let Some(number) = fields.get("processor").and_then(|number| number.parse().ok()) {
                info.cpus.insert(CpuId(number), fields);
            }
        }
        info
    }

    /// A field of the first CPU.
    fn first(&self, field: &str) -> Option<&str> {
        let value = self.cpus.values().next()?.get(field)?;
        (!value.is_empty()).then_some(value.as_str())
    }

    /// Whether the first CPU has a flag; `None` without flags.
    fn flag(&self, flag: &str) -> Option<bool> {
        Some(self.first("flags")?.split_whitespace().any(|found| found == flag))
    }

    fn number(&self, cpu: CpuId, field: &str) -> Option<u32> {
        self.cpus.get(&cpu)?.get(field)?.parse().ok()
    }
}

fn online(files: &mut Files, info: &CpuInfo, root: &Path) -> Result<Vec<CpuId>, Error> {
    let file = format!("{CPU_DIR}/online");
    let mut online = match files.text(&file) {
        Some(text) => parse_cpu_list(&text)
            .map_err(|error| Error::Malformed { path: files.path(&file), why: error.to_string() })?,
        None => info.cpus.keys().copied().collect(),
    };
    if online.is_empty() {
        online = files.numbered(CPU_DIR, "cpu").into_iter().map(CpuId).collect();
    }
    if online.is_empty() { Err(Error::NoCpus { root: root.to_owned() }) } else { Ok(online) }
}

fn offline(files: &mut Files, online: &[CpuId]) -> Vec<CpuId> {
    let mut present = files.cpus(&format!("{CPU_DIR}/present")).unwrap_or_default();
    present.retain(|cpu| online.binary_search(cpu).is_err());
    present
}

/// The APIC ids of all CPUs, or `None` if one is missing; asks CPU by CPU only if that is worth it.
fn apic_ids(info: &CpuInfo, online: &[CpuId], machine: &dyn Machine, ask: bool) -> Option<Vec<u32>> {
    let listed: Option<Vec<u32>> = online.iter().map(|&cpu| info.number(cpu, "apicid")).collect();
    let ids = match listed {
        None if ask => online.iter().map(|&cpu| machine.apic_id(cpu)).collect(),
        listed => listed,
    }?;
    // Ids that are not unique (some emulators leave them all zero) say nothing.
    let mut unique = ids.clone();
    unique.sort_unstable();
    unique.dedup();
    (unique.len() == ids.len()).then_some(ids)
}

fn without_sysfs(facts: &CpuidFacts, sharing_known: bool) -> String {
    let what = match (facts.caches.is_empty(), sharing_known) {
        (true, _) => "CPUID does not describe any either, so the caches are unknown",
        (false, true) => "the caches below come from CPUID and the APIC ids",
        (false, false) => "the caches below come from CPUID; without APIC ids it is unknown who shares them",
    };
    format!("the kernel has no cache folders for its CPUs; {what}")
}

fn cpu(files: &mut Files, info: &CpuInfo, online: &[CpuId], id: CpuId) -> Cpu {
    let dir = format!("{CPU_DIR}/cpu{id}/topology");
    let siblings = files
        .cpus(&format!("{dir}/core_cpus_list"))
        .or_else(|| files.cpus(&format!("{dir}/thread_siblings_list")))
        .map(|mut siblings| {
            siblings.retain(|cpu| online.binary_search(cpu).is_ok());
            siblings
        })
        .filter(|siblings| siblings.contains(&id))
        .unwrap_or_else(|| vec![id]);
    Cpu {
        id,
        core: files.number(&format!("{dir}/core_id")).or_else(|| info.number(id, "core id")),
        package: files
            .number(&format!("{dir}/physical_package_id"))
            .or_else(|| info.number(id, "physical id")),
        siblings,
        node: None,
        apic_id: None,
        allowed: false,
    }
}

fn nodes(files: &mut Files, online: &[CpuId]) -> Vec<Node> {
    let numbers: Vec<u32> = files
        .cpus(&format!("{NODE_DIR}/online"))
        .map(|list| list.into_iter().map(|id| id.0).collect())
        .unwrap_or_else(|| files.numbered(NODE_DIR, "node"));
    numbers.into_iter().map(|number| node(files, online, number)).collect()
}

fn node(files: &mut Files, online: &[CpuId], number: u32) -> Node {
    let dir = format!("{NODE_DIR}/node{number}");
    let mut cpus = files.cpus(&format!("{dir}/cpulist")).unwrap_or_default();
    cpus.retain(|cpu| online.binary_search(cpu).is_ok());
    let meminfo = files.text(&format!("{dir}/meminfo")).unwrap_or_default();
    // "Node 0 MemTotal:        4548812 kB"
    let memory = meminfo
        .lines()
        .find_map(|line| line.split_once("MemTotal:")?.1.split_whitespace().next()?.parse::<u64>().ok())
        .and_then(|kib| kib.checked_mul(1024))
        .map(Bytes);
    let distance_file = format!("{dir}/distance");
    let text = files.text(&distance_file).unwrap_or_default();
    let distances: Option<Vec<u32>> = text.split_whitespace().map(|d| d.parse().ok()).collect();
    if distances.is_none() {
        files.note(
            &distance_file,
            &format!("holds \"{}\" where numbers belong", crate::cpulist::shortened(&text)),
        );
    }
    Node { id: NodeId(number), cpus, memory, distances: distances.unwrap_or_default() }
}

fn model(info: &CpuInfo, facts: Option<&CpuidFacts>) -> CpuModel {
    let text = |field: &str, other: fn(&CpuidFacts) -> Option<String>| {
        info.first(field).map(str::to_owned).or_else(|| facts.and_then(other))
    };
    let number = |field: &str, other: fn(&CpuidFacts) -> Option<u32>| {
        info.first(field).and_then(|value| value.parse().ok()).or_else(|| facts.and_then(other))
    };
    CpuModel {
        vendor: text("vendor_id", |facts| facts.vendor.clone()),
        family: number("cpu family", |facts| facts.family),
        model: number("model", |facts| facts.model),
        stepping: number("stepping", |facts| facts.stepping),
        name: text("model name", |facts| facts.name.clone()),
    }
}

fn hypervisor(files: &mut Files, info: &CpuInfo, facts: Option<&CpuidFacts>) -> Hypervisor {
    let signature = facts.and_then(|facts| facts.hypervisor_signature.clone());
    let dmi = ["sys_vendor", "product_name"]
        .into_iter()
        .filter_map(|name| files.text(&format!("sys/class/dmi/id/{name}")))
        .collect::<Vec<_>>();
    Hypervisor {
        present: facts.map(|facts| facts.hypervisor).or_else(|| info.flag("hypervisor")),
        name: signature.as_deref().and_then(hypervisor_name),
        signature,
        product: (!dmi.is_empty()).then(|| dmi.join(" ")),
    }
}

fn tsc(files: &mut Files, info: &CpuInfo, facts: Option<&CpuidFacts>) -> TscFacts {
    let (constant, nonstop) = (info.flag("constant_tsc"), info.flag("nonstop_tsc"));
    TscFacts {
        invariant: facts
            .map(|facts| facts.invariant_tsc)
            .or_else(|| constant.zip(nonstop).map(|(constant, nonstop)| constant && nonstop)),
        constant,
        nonstop,
        rdtscp: facts.map(|facts| facts.rdtscp).or_else(|| info.flag("rdtscp")),
        clocksource: files.text("sys/devices/system/clocksource/clocksource0/current_clocksource"),
    }
}

/// The CPUs of this process's cpuset: of the closest control group up the tree that tells, version 2 or 1.
fn cpuset(files: &mut Files) -> Option<Vec<CpuId>> {
    let groups = files.text("proc/self/cgroup")?;
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (mount, file) = match controllers {
            "" => ("sys/fs/cgroup", "cpuset.cpus.effective"),
            list if list.split(',').any(|name| name == "cpuset") => {
                ("sys/fs/cgroup/cpuset", "cpuset.effective_cpus")
            }
            _ => return None,
        };
        let mut group = path.trim_matches('/');
        loop {
            let file =
                if group.is_empty() { format!("{mount}/{file}") } else { format!("{mount}/{group}/{file}") };
            if files.exists(&file) {
                return files.cpus(&file);
            }
            if group.is_empty() {
                return None;
            }
            group = group.rsplit_once('/').map_or("", |(parent, _)| parent);
        }
    })
}

impl Topology {
    /// In words, which online CPUs this process may not use and who forbids it; `None` if it may use all.
    #[must_use]
    pub fn restriction(&self) -> Option<String> {
        let barred: Vec<CpuId> = self.cpus.iter().filter(|cpu| !cpu.allowed).map(|cpu| cpu.id).collect();
        if barred.is_empty() {
            return None;
        }
        let by_cpuset = self
            .cpuset
            .as_ref()
            .is_some_and(|set| !set.is_empty() && !barred.iter().any(|cpu| set.contains(cpu)));
        let who = if by_cpuset { "its cpuset" } else { "its CPU affinity (taskset, systemd, container)" };
        Some(format!("this process may not use CPU {}: {who} forbids it", format_cpu_list(&barred)))
    }
}
