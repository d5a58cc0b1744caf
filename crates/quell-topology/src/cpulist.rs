//! The kernel's notation for sets of CPUs, such as `0,2-3`.

use std::collections::BTreeSet;

use quell_core::CpuId;

use crate::Error;

/// Largest CPU number accepted; Linux supports 8,192 CPUs at most, and a typing error must not fill memory.
const MAX_CPU: u32 = 65_535;

/// Reads a list of CPUs such as `0,2-3`: ascending, each once. An empty text is an empty list.
///
/// # Errors
/// [`Error::CpuList`] if the text is not such a list, a range runs backwards, or a number exceeds 65,535.
pub fn parse_cpu_list(text: &str) -> Result<Vec<CpuId>, Error> {
    let fail = |why: String| Error::CpuList { list: shortened(text.trim()), why };
    let mut cpus = BTreeSet::new();
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    for part in text.trim().split(',') {
        let number = |digits: &str| match digits.trim().parse::<u32>() {
            Ok(n) if n <= MAX_CPU => Ok(n),
            Ok(n) => Err(fail(format!("{n} is larger than any CPU number"))),
            Err(_) if digits.trim().is_empty() => Err(fail("a number is missing".into())),
            Err(_) => Err(fail(format!("\"{}\" is not a number", shortened(digits.trim())))),
        };
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last {
            return Err(fail(format!("the range {first}-{last} runs backwards")));
        }
        cpus.extend((first..=last).map(CpuId));
    }
    Ok(cpus.into_iter().collect())
}

/// Writes CPUs in ascending order as a list such as `0,2-3`; `none` if there are none.
#[must_use]
pub fn format_cpu_list(cpus: &[CpuId]) -> String {
    if cpus.is_empty() {
        return "none".into();
    }
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &CpuId(cpu) in cpus {
        match parts.last_mut() {
            Some((_, last)) if cpu == *last + 1 => *last = cpu,
            _ => parts.push((cpu, cpu)),
        }
    }
    let texts: Vec<String> = parts
        .iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    texts.join(",")
}

/// At most 60 characters of foreign text, for messages.
pub(crate) fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids(numbers: &[u32]) -> Vec<CpuId> {
        numbers.iter().copied().map(CpuId).collect()
    }

    #[test]
    fn reads_what_the_kernel_and_people_write() {
        assert_eq!(parse_cpu_list("0-1\n").unwrap(), ids(&[0, 1]));
        assert_eq!(parse_cpu_list("0, 2-3").unwrap(), ids(&[0, 2, 3]));
        assert_eq!(parse_cpu_list("7,1-2,2").unwrap(), ids(&[1, 2, 7]));
        assert_eq!(parse_cpu_list("\n").unwrap(), ids(&[]));
    }

    #[test]
    fn refuses_anything_else_and_says_what() {
        for bad in ["x", "1-", "-1", "3-1", "0,,2", "0-4294967295", "99999999999", "0x1", "1 2"] {
            let message = parse_cpu_list(bad).unwrap_err().to_string();
            assert!(message.contains(bad), "{message}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*") {
            let _ = parse_cpu_list(&text);
        }

        #[test]
        fn written_lists_read_back(numbers in prop::collection::btree_set(0u32..600, 1..80)) {
            let cpus: Vec<CpuId> = numbers.into_iter().map(CpuId).collect();
            prop_assert_eq!(parse_cpu_list(&format_cpu_list(&cpus)).unwrap(), cpus);
        }
    }
}
