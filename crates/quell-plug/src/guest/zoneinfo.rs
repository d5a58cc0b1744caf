//! `/proc/zoneinfo`.

use serde::Serialize;

/// A zone with memory; all sizes in pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Zone {
    /// NUMA node.
    pub node: u32,
    /// `DMA`, `DMA32`, `Normal`, `Movable` or `Device`.
    pub name: String,
    /// Watermark below which only the kernel's emergencies get pages.
    pub min_pages: u64,
    /// Watermark below which reclaim wakes.
    pub low_pages: u64,
    /// Watermark above which reclaim rests.
    pub high_pages: u64,
    /// From the first page to the last, holes included.
    pub spanned_pages: u64,
    /// Without holes.
    pub present_pages: u64,
    /// Those that the allocator has.
    pub managed_pages: u64,
}

/// Reads the whole file; zones that span nothing are left out.
///
/// # Errors
/// What is wrong in which line.
pub(super) fn parse(text: &str) -> Result<Vec<Zone>, String> {
    let mut zones: Vec<Zone> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let bad = || format!("line {}: {line:?}", index + 1);
        if let Some(rest) = line.strip_prefix("Node ") {
            let (node, name) = rest.split_once(", zone").ok_or_else(bad)?;
            let node = node.parse().map_err(|_| bad())?;
            zones.push(Zone { node, name: name.trim().to_owned(), ..Zone::default() });
            continue;
        }
        let Some(zone) = zones.last_mut() else { continue };
        let mut words = line.split_whitespace();
        let (Some(word), Some(value), None) = (words.next(), words.next(), words.next()) else { continue };
        let field = match word {
            "min" => &mut zone.min_pages,
            "low" => &mut zone.low_pages,
            "high" => &mut zone.high_pages,
            "spanned" => &mut zone.spanned_pages,
            "present" => &mut zone.present_pages,
            "managed" => &mut zone.managed_pages,
            _ => continue,
        };
        *field = value.parse().map_err(|_| bad())?;
    }
    zones.retain(|zone| zone.spanned_pages > 0);
    Ok(zones)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 5
  pages free     2816
        boost    0
        min      66
        low      82
        high     98
        spanned  4095
        present  3997
        managed  3840
        cma      0
        protection: (0, 2957, 3439, 3439)
  pagesets
    cpu: 0
              count:    0
              high:     6
              batch:    1
  node_unreclaimable:  0
  start_pfn:           1
Node 1, zone  Movable
  pages free     0
        min      32
        low      32
        high     32
        spanned  0
        present  0
        managed  0
";

    #[test]
    fn the_kernels_form_is_read_and_empty_zones_left_out() {
        let zones = parse(TEXT).unwrap();
        let expected = Zone {
            node: 0,
            name: String::from("DMA"),
            min_pages: 66,
            low_pages: 82,
            high_pages: 98,
            spanned_pages: 4095,
            present_pages: 3997,
            managed_pages: 3840,
        };
        assert_eq!(zones, [expected]);
    }

    proptest! {
        #[test]
        fn broken_files_are_read_or_refused(cut in 0..TEXT.len(), noise in "\\PC{0,20}") {
            let _ = parse(&TEXT[..cut]);
            let _ = parse(&format!("{}{noise}{}", &TEXT[..cut], &TEXT[cut..]));
        }
    }
}
