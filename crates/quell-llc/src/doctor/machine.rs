//! What this process may use, and what the system says of itself.

use std::fs;
use std::path::Path;

use quell_core::CpuId;
use quell_topology::{Source, Topology, format_cpu_list};

use super::{Finding, Rule, Severity, listed};

/// Facts about the machine as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// CPUs online.
    pub online: usize,
    /// CPUs that take part in the measurement.
    pub measured: Vec<CpuId>,
    /// Which CPUs this process may not use and who forbids it, in words.
    pub restriction: Option<String>,
    /// LLC domains that are known, and those among them without a CPU that this process may use.
    pub llcs: [usize; 2],
    /// The kernel describes caches in sysfs.
    pub cache_folders: bool,
    /// CPUID describes a cache otherwise than sysfs.
    pub cpuid_differs: bool,
    /// What was missing, malformed or contradictory when the topology was read.
    pub notes: Vec<String>,
    /// The VM has a performance monitoring unit.
    pub pmu: bool,
    /// The setting of transparent huge pages, if the kernel has them.
    pub huge_pages: Option<String>,
    /// What the measuring threads had to say, such as a priority that could not be raised.
    pub asides: Vec<String>,
}

impl Machine {
    /// Reads what there is below `root`, which stands for `/`.
    #[must_use]
    pub fn read(root: &Path, topology: &Topology, measured: Vec<CpuId>) -> Self {
        let barred = topology
            .llcs
            .iter()
            .filter(|llc| !llc.cpus.iter().any(|cpu| topology.allowed.contains(cpu)))
            .count();
        let huge_pages = fs::read_to_string(root.join("sys/kernel/mm/transparent_hugepage/enabled")).ok();
        Self {
            online: topology.cpus.len(),
            measured,
            restriction: topology.restriction(),
            llcs: [topology.llcs.len(), barred],
            cache_folders: topology.caches.iter().any(|cache| cache.source == Source::Sysfs),
            cpuid_differs: topology.caches.iter().any(|cache| cache.cpuid_differs.is_some()),
            notes: topology.notes.clone(),
            pmu: root.join("sys/bus/event_source/devices/cpu").exists(),
            huge_pages: huge_pages.as_deref().and_then(chosen).map(str::to_owned),
            asides: Vec::new(),
        }
    }
}

/// The choice in brackets: `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    Some(text.split_once('[')?.1.split_once(']')?.0)
}

pub(super) const RULES: &[Rule<Machine>] =
    &[one_cpu, restricted, no_cache_folders, contradictions, asides, no_counters, huge_pages];

fn one_cpu(machine: &Machine) -> Option<Finding> {
    let [only] = machine.measured[..] else { return None };
    let (severity, remedy) = if machine.online == 1 {
        (Severity::Note, "Nothing to do: this machine has no other CPU.")
    } else {
        (
            Severity::Warning,
            "Let this process use more CPUs (`--cpus`, taskset, the cpuset of its container or service) and run again.",
        )
    };
    Some(Finding {
        id: "one-cpu",
        severity,
        title: "Only one CPU takes part",
        evidence: format!(
            "CPU {only} of {} online. The half-life is measured all the same; who shares a cache and whether the \
             host moves vCPUs takes two, and the load to compare with runs on the probe's own CPU",
            machine.online
        ),
        remedy: remedy.into(),
    })
}

fn restricted(machine: &Machine) -> Option<Finding> {
    let restriction = machine.restriction.as_deref()?;
    let [known, barred] = machine.llcs;
    let (severity, consequence) = match barred {
        0 => (Severity::Note, "every known LLC can still be measured".to_owned()),
        n => (Severity::Warning, format!("{n} of {known} LLCs cannot be measured")),
    };
    Some(Finding {
        id: "cpus-restricted",
        severity,
        title: "This process may not use all CPUs",
        evidence: format!("{restriction}; {consequence}"),
        remedy:
            "If that is not intended, run outside of the container or with another taskset, `AllowedCPUs=` \
                 (systemd) or `--cpuset-cpus` (containers)."
                .into(),
    })
}

fn no_cache_folders(machine: &Machine) -> Option<Finding> {
    if machine.cache_folders {
        return None;
    }
    let (severity, remedy) = if machine.llcs[0] == 0 {
        (
            Severity::Warning,
            "Each CPU is measured as if it had an LLC of its own, and the usable capacity is not measured. Let the \
             hypervisor pass the host's caches on (under QEMU `-cpu host,host-cache-info=on`).",
        )
    } else {
        (Severity::Note, "Nothing to do: CPUID describes the caches well enough.")
    };
    Some(Finding {
        id: "no-cache-folders",
        severity,
        title: "The kernel does not describe the caches",
        evidence: if machine.notes.is_empty() {
            "sys/devices/system/cpu/cpu*/cache is empty".into()
        } else {
            listed(&machine.notes, "; ")
        },
        remedy: remedy.into(),
    })
}

fn contradictions(machine: &Machine) -> Option<Finding> {
    if !machine.cache_folders || machine.notes.is_empty() {
        return None;
    }
    Some(Finding {
        id: "topology-odd",
        severity: if machine.cpuid_differs { Severity::Warning } else { Severity::Note },
        title: "What the machine says of its caches is incomplete or contradicts itself",
        evidence: listed(&machine.notes, "; "),
        remedy:
            "Trust the measured placement (`quell topo`) and the usable capacity (`quell scan`) more than \
                 what is advertised. The hypervisor's CPU model is where to correct it."
                .into(),
    })
}

fn asides(machine: &Machine) -> Option<Finding> {
    (!machine.asides.is_empty()).then(|| Finding {
        id: "priority-not-raised",
        severity: Severity::Note,
        title: "The probe runs at ordinary priority",
        evidence: listed(&machine.asides, "; "),
        remedy: "Run as root or without `--priority`; the measurement does not depend on it.".into(),
    })
}

fn no_counters(machine: &Machine) -> Option<Finding> {
    let pmu = if machine.pmu { "has" } else { "does not have" };
    Some(Finding {
        id: "no-counters-needed",
        severity: Severity::Ok,
        title: "No performance counters, root or help from the hypervisor are needed",
        evidence: format!(
            "this machine {pmu} a PMU; the probe uses timed loads and the time-stamp counter alone"
        ),
        remedy: "Nothing to do. A rate of 0 or 100 % never comes from microcode or missing PMU events here."
            .into(),
    })
}

fn huge_pages(machine: &Machine) -> Option<Finding> {
    let setting = machine.huge_pages.as_deref()?;
    Some(Finding {
        id: "huge-pages-harmless",
        severity: Severity::Ok,
        title: "Transparent huge pages do not disturb",
        evidence: format!("they are set to `{setting}`; the probe asks for small pages for its own memory"),
        remedy: "Nothing to do.".into(),
    })
}

/// CPUs in words, for evidence.
pub(super) fn on_cpus(cpus: &[CpuId]) -> String {
    format!("CPU {}", format_cpu_list(cpus))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::invented::machine;

    fn severity(rule: Rule<Machine>, machine: &Machine) -> Option<Severity> {
        rule(machine).map(|finding| finding.severity)
    }

    #[test]
    fn an_ordinary_machine_is_only_praised() {
        let machine = machine();
        let findings: Vec<Finding> = RULES.iter().filter_map(|rule| rule(&machine)).collect();
        assert!(findings.iter().all(|finding| finding.severity == Severity::Ok), "{findings:#?}");
        assert!(findings.iter().any(|finding| finding.title.contains("performance counters")));
    }

    #[test]
    fn one_cpu_is_a_warning_only_where_there_are_more() {
        let mut one = Machine { measured: vec![CpuId(0)], ..machine() };
        assert_eq!(severity(one_cpu, &one), Some(Severity::Warning));
        one.online = 1;
        assert_eq!(severity(one_cpu, &one), Some(Severity::Note));
    }

    #[test]
    fn a_restriction_matters_if_it_hides_a_cache() {
        let mut barred = Machine { restriction: Some("not CPU 4-7".into()), llcs: [2, 0], ..machine() };
        assert_eq!(severity(restricted, &barred), Some(Severity::Note));
        barred.llcs = [2, 1];
        let finding = restricted(&barred).unwrap();
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.evidence.contains("1 of 2 LLCs"), "{}", finding.evidence);
    }

    #[test]
    fn without_cache_folders_the_notes_say_what_is_used_instead() {
        let mut bare = Machine { cache_folders: false, notes: vec!["from CPUID".into()], ..machine() };
        assert_eq!(severity(no_cache_folders, &bare), Some(Severity::Note));
        assert_eq!(severity(contradictions, &bare), None);
        bare.llcs = [0, 0];
        assert_eq!(severity(no_cache_folders, &bare), Some(Severity::Warning));
    }

    #[test]
    fn contradictions_are_quoted() {
        let mut odd = Machine { notes: vec!["sysfs says 32 MiB; CPUID says 16 MiB".into()], ..machine() };
        assert_eq!(severity(contradictions, &odd), Some(Severity::Note));
        odd.cpuid_differs = true;
        let finding = contradictions(&odd).unwrap();
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.evidence.contains("16 MiB"));
    }

    #[test]
    fn a_refused_priority_is_mentioned() {
        let refused = Machine { asides: vec!["Permission denied".into()], ..machine() };
        assert_eq!(severity(asides, &refused), Some(Severity::Note));
    }

    #[test]
    fn the_setting_of_huge_pages_is_the_one_in_brackets() {
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!(chosen("nonsense"), None);
        assert_eq!(severity(huge_pages, &Machine { huge_pages: None, ..machine() }), None);
    }

    #[test]
    fn facts_are_read_below_a_root() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/kernel/mm/transparent_hugepage");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("enabled"), "[always] madvise never\n").unwrap();
        fs::create_dir_all(root.path().join("sys/bus/event_source/devices/cpu")).unwrap();
        let facts = Machine::read(root.path(), &Topology::default(), vec![CpuId(3)]);
        assert_eq!((facts.huge_pages.as_deref(), facts.pmu), (Some("always"), true));
        let empty = tempfile::tempdir().unwrap();
        let facts = Machine::read(empty.path(), &Topology::default(), Vec::new());
        assert_eq!((facts.huge_pages, facts.pmu), (None, false));
    }
}
