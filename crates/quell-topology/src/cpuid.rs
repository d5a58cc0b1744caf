//! What the CPUID instruction says, behind a trait so that tests can say something else.

use quell_core::{Bytes, CpuId};
use raw_cpuid::CpuIdReader;
use serde::Serialize;

use crate::CacheKind;
use crate::affinity;

/// The part of a [`crate::Topology`] that does not come from files.
pub trait Machine {
    /// What CPUID says on any CPU; `None` where the instruction does not exist.
    fn cpuid(&self) -> Option<CpuidFacts>;
    /// The APIC id of a CPU, for kernels whose `/proc/cpuinfo` does not tell.
    fn apic_id(&self, cpu: CpuId) -> Option<u32>;
    /// The CPUs that this process may use; `None` if that is not known.
    fn allowed(&self) -> Option<Vec<CpuId>>;
}

/// No machine: only the files count.
#[derive(Clone, Copy, Debug)]
pub struct FilesOnly;

impl Machine for FilesOnly {
    fn cpuid(&self) -> Option<CpuidFacts> {
        None
    }
    fn apic_id(&self, _cpu: CpuId) -> Option<u32> {
        None
    }
    fn allowed(&self) -> Option<Vec<CpuId>> {
        None
    }
}

/// The machine that this runs on.
#[derive(Clone, Copy, Debug)]
pub struct ThisMachine;

impl Machine for ThisMachine {
    fn cpuid(&self) -> Option<CpuidFacts> {
        #[cfg(target_arch = "x86_64")]
        return Some(CpuidFacts::read(&raw_cpuid::CpuIdReaderNative));
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    /// Pins the calling thread to the CPU for a moment and asks there.
    fn apic_id(&self, cpu: CpuId) -> Option<u32> {
        let _pinned = affinity::Pinned::to(cpu).ok()?;
        #[cfg(target_arch = "x86_64")]
        return apic_id(&raw_cpuid::CpuIdReaderNative);
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    fn allowed(&self) -> Option<Vec<CpuId>> {
        affinity::allowed().ok()
    }
}

/// What CPUID says about the CPU that it ran on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuidFacts {
    /// For example `GenuineIntel`.
    pub vendor: Option<String>,
    /// Family, extended family included.
    pub family: Option<u32>,
    /// Model, extended model included.
    pub model: Option<u32>,
    /// Stepping.
    pub stepping: Option<u32>,
    /// The marketing name.
    pub name: Option<String>,
    /// The hypervisor bit.
    pub hypervisor: bool,
    /// The signature in leaf 0x40000000, if the hypervisor bit is set.
    pub hypervisor_signature: Option<String>,
    /// The counter runs at one rate in all power states.
    pub invariant_tsc: bool,
    /// The instruction RDTSCP exists.
    pub rdtscp: bool,
    /// The caches seen from one CPU, in the order of the leaf.
    pub caches: Vec<CpuidCache>,
}

/// Size and geometry of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CacheShape {
    /// Ways × sets × line size × partitions.
    pub size: Bytes,
    /// Ways of associativity.
    pub ways: u32,
    /// Number of sets.
    pub sets: u32,
    /// Size of a line in bytes.
    pub line_bytes: u32,
}

/// A cache as CPUID describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuidCache {
    /// 1 is closest to the core.
    pub level: u32,
    /// What it holds.
    pub kind: CacheKind,
    /// Size and geometry.
    pub shape: CacheShape,
    /// Whether it holds everything that the caches below hold.
    pub inclusive: bool,
    /// CPUs with the same APIC id after shifting right by this many bits share an instance.
    pub sharing_shift: u32,
}

/// Leaf 0x80000001, ECX: the leaf 0x8000001D exists ("topology extensions").
const AMD_TOPOLOGY_EXTENSIONS: u32 = 1 << 22;
/// No CPU has more cache levels; a leaf that never ends must not hang.
const MAX_SUBLEAVES: u32 = 16;

impl CpuidFacts {
    /// Asks a CPU, or a stand-in for one.
    #[must_use]
    pub fn read<R: CpuIdReader>(reader: &R) -> Self {
        let cpu = raw_cpuid::CpuId::with_cpuid_reader(reader.clone());
        let features = cpu.get_feature_info();
        let features = features.as_ref();
        let hypervisor = features.is_some_and(raw_cpuid::FeatureInfo::has_hypervisor);
        let vendor = cpu.get_vendor_info().map(|vendor| vendor.as_str().to_owned());
        Self {
            family: features.map(|f| f.family_id().into()),
            model: features.map(|f| f.model_id().into()),
            stepping: features.map(|f| f.stepping_id().into()),
            name: cpu.get_processor_brand_string().map(|name| name.as_str().trim().to_owned()),
            hypervisor,
            hypervisor_signature: hypervisor.then(|| signature(reader)).flatten(),
            invariant_tsc: cpu.get_advanced_power_mgmt_info().is_some_and(|power| power.has_invariant_tsc()),
            rdtscp: cpu
                .get_extended_processor_and_feature_identifiers()
                .is_some_and(|features| features.has_rdtscp()),
            caches: caches(reader, vendor.as_deref()),
            vendor,
        }
    }
}

/// The twelve letters of leaf 0x40000000. A hypervisor that pretends to be Hyper-V for Windows guests gives
/// its own name at 0x40000100, and that one counts.
fn signature(reader: &impl CpuIdReader) -> Option<String> {
    let at = |leaf: u32| {
        let found = reader.cpuid1(leaf);
        let bytes: Vec<u8> =
            [found.ebx, found.ecx, found.edx].iter().flat_map(|word| word.to_le_bytes()).collect();
        let text = String::from_utf8(bytes).ok()?;
        let text = text.trim_matches(['\0', ' ']).to_owned();
        let printable = !text.is_empty() && text.chars().all(|c| c == ' ' || c.is_ascii_graphic());
        printable.then_some(text)
    };
    let first = at(0x4000_0000)?;
    match at(0x4000_0100) {
        Some(second) if first == "Microsoft Hv" && hypervisor_name(&second).is_some() => Some(second),
        _ => Some(first),
    }
}

/// The common name behind a signature.
pub(crate) fn hypervisor_name(signature: &str) -> Option<&'static str> {
    Some(match signature {
        "KVMKVMKVM" | "Linux KVM Hv" => "KVM",
        "Microsoft Hv" => "Hyper-V",
        "VMwareVMware" => "VMware",
        "XenVMMXenVMM" => "Xen",
        "TCGTCGTCGTCG" => "QEMU (TCG, emulated)",
        "bhyve bhyve" => "bhyve",
        "ACRNACRNACRN" => "ACRN",
        "QNXQVMBSQG" => "QNX",
        "prl hyperv" | "lrpepyh vr" => "Parallels",
        "VBoxVBoxVBox" => "VirtualBox",
        "SRESRESRESRE" => "Lockheed Martin LMHS",
        "UnisysSpar64" => "Unisys s-Par",
        _ => return None,
    })
}

/// Intel's leaf 4, or AMD's and Hygon's leaf 0x8000001D, which has the same layout (AMD64 Architecture
/// Programmer's Manual, volume 3, appendix E.4.15; Intel SDM volume 2A, CPUID).
fn caches(reader: &impl CpuIdReader, vendor: Option<&str>) -> Vec<CpuidCache> {
    let leaf = if matches!(vendor, Some("AuthenticAMD" | "HygonGenuine")) {
        let has_leaf = reader.cpuid1(0x8000_0000).eax >= 0x8000_001D
            && reader.cpuid1(0x8000_0001).ecx & AMD_TOPOLOGY_EXTENSIONS != 0;
        has_leaf.then_some(0x8000_001D)
    } else {
        (reader.cpuid1(0).eax >= 4).then_some(4)
    };
    let Some(leaf) = leaf else {
        return Vec::new();
    };
    (0..MAX_SUBLEAVES)
        .map(|subleaf| reader.cpuid2(leaf, subleaf))
        .take_while(|found| found.eax & 0x1f != 0)
        .filter_map(|found| {
            let kind = match found.eax & 0x1f {
                1 => CacheKind::Data,
                2 => CacheKind::Instruction,
                3 => CacheKind::Unified,
                _ => return None,
            };
            let line_bytes = (found.ebx & 0xfff) + 1;
            let partitions = (found.ebx >> 12 & 0x3ff) + 1;
            let ways = (found.ebx >> 22) + 1;
            let sets = found.ecx.checked_add(1)?;
            let size = u64::from(line_bytes) * u64::from(partitions) * u64::from(ways);
            let sharing = (found.eax >> 14 & 0xfff) + 1;
            Some(CpuidCache {
                level: found.eax >> 5 & 7,
                kind,
                shape: CacheShape { size: Bytes(size.checked_mul(u64::from(sets))?), ways, sets, line_bytes },
                inclusive: found.edx & 2 != 0,
                sharing_shift: sharing.next_power_of_two().trailing_zeros(),
            })
        })
        .collect()
}

/// The APIC id of the CPU that runs this: the long one of leaf 0xB if there is one, else the 8-bit one of leaf 1.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
fn apic_id(reader: &impl CpuIdReader) -> Option<u32> {
    let highest = reader.cpuid1(0).eax;
    if highest >= 0xB && reader.cpuid1(0xB).ebx & 0xffff != 0 {
        return Some(reader.cpuid1(0xB).edx);
    }
    (highest >= 1).then(|| reader.cpuid1(1).ebx >> 24)
}

#[cfg(test)]
mod tests {
    use super::*;
    use raw_cpuid::CpuIdResult;
    use std::collections::HashMap;

    fn words(text: &str) -> [u32; 3] {
        let mut bytes = [0; 12];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        std::array::from_fn(|i| u32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap()))
    }

    /// A reader that knows these leaves; every other is zero.
    fn cpu(leaves: &[((u32, u32), [u32; 4])]) -> impl CpuIdReader + use<> {
        let leaves: HashMap<_, _> = leaves.iter().copied().collect();
        move |eax: u32, ecx: u32| {
            let [eax, ebx, ecx, edx] = leaves.get(&(eax, ecx)).copied().unwrap_or_default();
            CpuIdResult { eax, ebx, ecx, edx }
        }
    }

    fn vendor(name: &str, highest: u32) -> ((u32, u32), [u32; 4]) {
        // Leaf 0 has the name's parts in the order EBX, EDX, ECX.
        let [b, d, c] = words(name);
        ((0, 0), [highest, b, c, d])
    }

    #[test]
    fn amd_leaf_gives_caches_and_sharing() {
        // A 32 MiB, 16-way L3 with 64-byte lines, shared by 16 threads.
        let l3 = 3 | 3 << 5 | 15 << 14;
        let facts = CpuidFacts::read(&cpu(&[
            vendor("AuthenticAMD", 0x10),
            ((1, 0), [0x00A0_0F11, 0, 1 << 31, 0]),
            ((0x8000_0000, 0), [0x8000_001F, 0, 0, 0]),
            ((0x8000_0001, 0), [0, 0, AMD_TOPOLOGY_EXTENSIONS, 1 << 27]),
            ((0x8000_0007, 0), [0, 0, 0, 1 << 8]),
            ((0x8000_001D, 0), [l3, 15 << 22 | 63, 32767, 0]),
            ((0x4000_0000, 0), {
                let [b, c, d] = words("KVMKVMKVM");
                [0x4000_0001, b, c, d]
            }),
        ]));
        assert_eq!(facts.vendor.as_deref(), Some("AuthenticAMD"));
        assert_eq!((facts.family, facts.model), (Some(25), Some(1)));
        assert!(facts.hypervisor && facts.rdtscp && facts.invariant_tsc);
        assert_eq!(facts.hypervisor_signature.as_deref(), Some("KVMKVMKVM"));
        let [cache] = facts.caches[..] else { panic!("{facts:?}") };
        assert_eq!((cache.level, cache.kind, cache.shape.size), (3, CacheKind::Unified, Bytes::mib(32)));
        assert_eq!((cache.shape.ways, cache.shape.sets, cache.sharing_shift), (16, 32768, 4));
        assert!(!cache.inclusive);
    }

    #[test]
    fn the_sharing_count_is_rounded_up_to_a_power_of_two() {
        // Ten cores of two threads: ids are sparse, the mask is five bits.
        let l3 = 3 | 3 << 5 | 19 << 14;
        let facts =
            CpuidFacts::read(&cpu(&[vendor("GenuineIntel", 0x16), ((4, 0), [l3, 10 << 22 | 63, 40959, 2])]));
        assert_eq!(facts.caches[0].sharing_shift, 5);
        assert!(facts.caches[0].inclusive);
    }

    #[test]
    fn absurd_answers_do_not_panic() {
        // Not leaf 1: raw-cpuid adds up its family fields in a byte.
        let ones = |eax: u32, _: u32| match eax {
            1 => CpuIdResult { eax: 0, ebx: 0, ecx: !0, edx: !0 },
            _ => CpuIdResult { eax: !0, ebx: !0, ecx: !0, edx: !0 },
        };
        let facts = CpuidFacts::read(&ones);
        assert!(facts.caches.is_empty() && facts.hypervisor_signature.is_none());
        let huge = cpu(&[vendor("GenuineIntel", 4), ((4, 0), [!0 << 5 | 3, !0, !0 - 1, 0])]);
        assert_eq!(CpuidFacts::read(&huge).caches.len(), 1);
        let nothing = |_: u32, _: u32| CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
        assert_eq!(CpuidFacts::read(&nothing).hypervisor_signature, None);
    }

    #[test]
    fn a_hypervisor_behind_the_hyper_v_interface_is_named() {
        let leaf = |base: u32, name: &str| {
            let [b, c, d] = words(name);
            ((base, 0), [base, b, c, d])
        };
        let both = [leaf(0x4000_0000, "Microsoft Hv"), leaf(0x4000_0100, "KVMKVMKVM")];
        assert_eq!(signature(&cpu(&both)).as_deref(), Some("KVMKVMKVM"));
        assert_eq!(signature(&cpu(&both[..1])).as_deref(), Some("Microsoft Hv"));
    }

    #[test]
    fn the_long_apic_id_is_preferred() {
        assert_eq!(
            apic_id(&cpu(&[
                ((0, 0), [0xB, 0, 0, 0]),
                ((0xB, 0), [0, 2, 0, 300]),
                ((1, 0), [0, 44 << 24, 0, 0])
            ])),
            Some(300)
        );
        assert_eq!(apic_id(&cpu(&[((0, 0), [1, 0, 0, 0]), ((1, 0), [0, 44 << 24, 0, 0])])), Some(44));
        assert_eq!(apic_id(&cpu(&[])), None);
    }
}
