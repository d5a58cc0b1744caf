//! Caches and LLC domains, from sysfs and from CPUID, and where the two contradict each other.

use std::collections::{BTreeMap, BTreeSet};

use quell_core::{Bytes, CpuId, LlcId};

use crate::cpuid::{CpuidCache, CpuidFacts};
use crate::files::Files;
use crate::{Cache, CacheKind, CacheShape, Llc, Source, format_cpu_list};

const CPU_DIR: &str = "sys/devices/system/cpu";
/// More notes of one kind than this are summed up: 512 CPUs may repeat the same oddity.
const MAX_NOTES: usize = 4;

/// What identifies an instance: level, kind, and the CPUs it is said to be shared by.
type Key = (u32, CacheKind, Vec<CpuId>);

/// Reads `cpu*/cache/index*` of the online CPUs.
///
/// A CPU belongs to the instance that its own folder names, so that instances never overlap even if the
/// folders contradict each other; that is noted.
pub(crate) fn from_sysfs(files: &mut Files, online: &[CpuId]) -> Vec<Cache> {
    let mut instances: BTreeMap<Key, Cache> = BTreeMap::new();
    let notes_before = files.notes.len();
    for &cpu in online {
        let dir = format!("{CPU_DIR}/cpu{cpu}/cache");
        for index in files.numbered(&dir, "index") {
            let entry = format!("{dir}/index{index}");
            let Some(key) = identity(files, &entry, cpu, online) else { continue };
            if let Some(cache) = instances.get_mut(&key) {
                cache.cpus.push(cpu);
                continue;
            }
            let cache = Cache {
                level: key.0,
                kind: key.1,
                size: size(files, &format!("{entry}/size")),
                ways: files.number(&format!("{entry}/ways_of_associativity")).filter(|ways| *ways > 0),
                sets: files.number(&format!("{entry}/number_of_sets")).filter(|sets| *sets > 0),
                line_bytes: files.number(&format!("{entry}/coherency_line_size")).filter(|line| *line > 0),
                inclusive: None,
                cpus: vec![cpu],
                source: Source::Sysfs,
                cpuid_differs: None,
            };
            instances.insert(key, cache);
        }
    }
    for ((level, _, shared), cache) in &instances {
        if *shared != cache.cpus {
            files.notes.push(format!(
                "sysfs contradicts itself about the L{level}: it is said to be shared by CPU {}, but only CPU {} \
                 say so",
                format_cpu_list(shared),
                format_cpu_list(&cache.cpus)
            ));
        }
    }
    sum_up(&mut files.notes, notes_before);
    sorted(instances.into_values().collect())
}

fn identity(files: &mut Files, entry: &str, cpu: CpuId, online: &[CpuId]) -> Option<Key> {
    let level = files.number(&format!("{entry}/level"))?;
    let kind_file = format!("{entry}/type");
    let kind = match files.text(&kind_file)?.as_str() {
        "Data" => CacheKind::Data,
        "Instruction" => CacheKind::Instruction,
        "Unified" => CacheKind::Unified,
        other => {
            let other = crate::cpulist::shortened(other);
            files.note(&kind_file, &format!("names an unknown type of cache, \"{other}\""));
            return None;
        }
    };
    let shared_file = format!("{entry}/shared_cpu_list");
    let mut shared = files.cpus(&shared_file)?;
    shared.retain(|cpu| online.binary_search(cpu).is_ok());
    if !shared.contains(&cpu) {
        files.note(&shared_file, &format!("does not name CPU {cpu} itself, so it is taken for unshared"));
        shared = vec![cpu];
    }
    Some((level, kind, shared))
}

/// Reads a size such as `32768K`.
fn size(files: &mut Files, relative: &str) -> Option<Bytes> {
    let text = files.text(relative)?;
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text.as_str(), 0),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    if bytes.is_none() {
        files.note(relative, &format!("holds \"{}\" where a size belongs", crate::cpulist::shortened(&text)));
    }
    bytes.filter(|bytes| *bytes > 0).map(Bytes)
}

/// The caches by CPUID alone. Without APIC ids (one per CPU, in the order of `online`) the sharing is
/// unknown, unless there is but one CPU.
pub(crate) fn from_cpuid(facts: &CpuidFacts, online: &[CpuId], apic: Option<&[u32]>) -> Vec<Cache> {
    let cache = |found: &CpuidCache, cpus: Vec<CpuId>| Cache {
        level: found.level,
        kind: found.kind,
        size: Some(found.shape.size),
        ways: Some(found.shape.ways),
        sets: Some(found.shape.sets),
        line_bytes: Some(found.shape.line_bytes),
        inclusive: Some(found.inclusive),
        cpus,
        source: Source::Cpuid,
        cpuid_differs: None,
    };
    let mut caches = Vec::new();
    for found in &facts.caches {
        match (apic, online) {
            (_, [only]) => caches.push(cache(found, vec![*only])),
            (Some(apic), _) => {
                caches.extend(groups(found, online, apic).into_iter().map(|cpus| cache(found, cpus)));
            }
            (None, _) => caches.push(cache(found, Vec::new())),
        }
    }
    sorted(caches)
}

/// The CPUs that share each instance, by the APIC ids.
fn groups(found: &CpuidCache, online: &[CpuId], apic: &[u32]) -> Vec<Vec<CpuId>> {
    let mut groups: BTreeMap<u32, Vec<CpuId>> = BTreeMap::new();
    for (&cpu, id) in online.iter().zip(apic) {
        groups.entry(id.checked_shr(found.sharing_shift).unwrap_or(0)).or_default().push(cpu);
    }
    groups.into_values().collect()
}

/// Adds to caches read from sysfs what only CPUID knows, and notes where the two disagree.
pub(crate) fn compare(
    caches: &mut [Cache],
    facts: &CpuidFacts,
    online: &[CpuId],
    apic: Option<&[u32]>,
    notes: &mut Vec<String>,
) {
    let mut found_notes = BTreeSet::new();
    for cache in caches.iter_mut() {
        let Some(found) = facts.caches.iter().find(|f| f.level == cache.level && f.kind == cache.kind) else {
            continue;
        };
        cache.inclusive = Some(found.inclusive);
        let CacheShape { size, ways, sets, line_bytes } = found.shape;
        let agrees = cache.size.is_none_or(|s| s == size)
            && cache.ways.is_none_or(|w| w == ways)
            && cache.sets.is_none_or(|s| s == sets)
            && cache.line_bytes.is_none_or(|l| l == line_bytes);
        if !agrees {
            cache.cpuid_differs = Some(found.shape);
            let or_unknown = |n: Option<u32>| n.map_or_else(|| "?".into(), |n| n.to_string());
            found_notes.insert(format!(
                "L{} {}: sysfs says {}, {} ways, {} sets; CPUID says {size}, {ways} ways, {sets} sets",
                cache.level,
                kind_name(cache.kind),
                cache.size.map_or_else(|| "?".into(), |s| s.to_string()),
                or_unknown(cache.ways),
                or_unknown(cache.sets),
            ));
        }
        let Some(apic) = apic else { continue };
        let by_cpuid = groups(found, online, apic);
        if !by_cpuid.contains(&cache.cpus)
            && let Some(other) = by_cpuid.iter().find(|cpus| cpus.contains(&cache.cpus[0]))
        {
            found_notes.insert(format!(
                "L{} {}: sysfs says CPU {} share it; CPUID says CPU {}",
                cache.level,
                kind_name(cache.kind),
                format_cpu_list(&cache.cpus),
                format_cpu_list(other)
            ));
        }
    }
    let before = notes.len();
    notes.extend(found_notes);
    sum_up(notes, before);
}

/// The LLC domains: each CPU's highest cache that holds data, if it is known who shares it.
pub(crate) fn llcs(caches: &[Cache], online: &[CpuId], notes: &mut Vec<String>) -> Vec<Llc> {
    let mut chosen: Vec<(&Cache, Vec<CpuId>)> = Vec::new();
    for &cpu in online {
        let highest = caches
            .iter()
            .filter(|cache| cache.kind != CacheKind::Instruction && cache.cpus.contains(&cpu))
            .max_by_key(|cache| cache.level);
        let Some(cache) = highest else { continue };
        match chosen.iter_mut().find(|(known, _)| std::ptr::eq(*known, cache)) {
            Some((_, cpus)) => cpus.push(cpu),
            None => chosen.push((cache, vec![cpu])),
        }
    }
    if chosen.is_empty() {
        notes.push("it is not known which CPUs share a last-level cache".into());
    }
    let mut llcs = Vec::new();
    for (cache, cpus) in chosen {
        let Some(advertised) = cache.size else {
            notes.push(format!(
                "the size of the L{} of CPU {} is not known, so it is left out of the LLC domains",
                cache.level,
                format_cpu_list(&cpus)
            ));
            continue;
        };
        llcs.push(Llc {
            id: LlcId(llcs.len() as u32),
            cpus,
            advertised,
            ways: cache.ways,
            level: cache.level,
            inclusive: cache.inclusive,
            source: cache.source,
        });
    }
    llcs
}

/// `data`, `instruction` or `unified`.
pub(crate) fn kind_name(kind: CacheKind) -> &'static str {
    match kind {
        CacheKind::Data => "data",
        CacheKind::Instruction => "instruction",
        CacheKind::Unified => "unified",
    }
}

fn sorted(mut caches: Vec<Cache>) -> Vec<Cache> {
    caches.sort_by_key(|cache| (cache.level, cache.kind, cache.cpus.first().copied()));
    caches
}

/// Keeps the first notes after `from` and counts the rest.
fn sum_up(notes: &mut Vec<String>, from: usize) {
    let extra = notes.len().saturating_sub(from + MAX_NOTES);
    if extra > 0 {
        notes.truncate(from + MAX_NOTES);
        notes.push(format!("and {extra} more oddities of this kind"));
    }
}
