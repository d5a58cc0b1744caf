//! Is the cache as large as advertised?

use quell_core::Bytes;
use quell_core::stats::survival::FitError;

use super::Cache;
use crate::capacity::Usable;
use crate::doctor::{Finding, Rule, Severity};

pub(super) const RULES: &[Rule<Cache>] = &[much_smaller, larger, unknown];

/// Less than this part of the advertised size, even at best, is far below it.
const FAR_BELOW: f64 = 0.6;
/// More than this multiple, even at worst, is above it.
const ABOVE: f64 = 1.3;

/// Advertised size, and the least and most that could be held.
fn sizes(cache: &Cache) -> Option<(f64, f64, f64)> {
    let Usable::Range { lo, hi } = cache.readings()?.usable else { return None };
    Some((cache.advertised?.0 as f64, lo as f64, hi as f64))
}

fn evidence(cache: &Cache, (advertised, lo, hi): (f64, f64, f64)) -> String {
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    format!(
        "{}: {:.1} to {:.1} MiB could be held of {} advertised ({:.0} to {:.0} %)",
        cache.name(),
        mib(lo),
        mib(hi),
        Bytes(advertised as u64),
        100.0 * lo / advertised,
        100.0 * hi / advertised
    )
}

fn much_smaller(cache: &Cache) -> Option<Finding> {
    let sizes = sizes(cache).filter(|(advertised, _, hi)| *hi < FAR_BELOW * advertised)?;
    // Even slow neighbors can fill a cache; only where next to nothing is evicted they do not.
    let calm = matches!(cache.readings()?.fit_error(), Some(FitError::Quiet(_)));
    Some(Finding {
        id: "usable-below-advertised",
        severity: Severity::Warning,
        title: "Much less of the cache can be held than is advertised",
        evidence: evidence(cache, sizes),
        remedy: if calm {
            "Next to nothing is evicted, so nobody else takes the rest: the hypervisor limits the ways (cache \
             allocation) or advertises the size of another cache. Size working sets by the usable figure."
        } else {
            "Neighbors or this VM's own work hold the rest, or the hypervisor limits the ways (cache allocation); a calmer hour tells which. \
             Size working sets by the usable figure."
        }
        .into(),
    })
}

fn larger(cache: &Cache) -> Option<Finding> {
    let sizes = sizes(cache).filter(|(advertised, lo, _)| *lo > ABOVE * advertised)?;
    Some(Finding {
        id: "usable-above-advertised",
        severity: Severity::Note,
        title: "The cache is larger than advertised",
        evidence: evidence(cache, sizes),
        remedy:
            "Nothing to do for the measurement; programs that size themselves by the advertised figure leave \
                 something unused."
                .into(),
    })
}

fn unknown(cache: &Cache) -> Option<Finding> {
    let Usable::Unknown { reason, .. } = &cache.readings()?.usable else { return None };
    Some(Finding {
        id: "usable-unknown",
        severity: Severity::Note,
        title: "How much of the cache is usable was not measured",
        evidence: format!("{}: {reason}", cache.name()),
        remedy: "The half-life does not depend on it. More free memory, or a hypervisor that tells the cache's size, \
                 makes it measurable."
            .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::invented::{cache, cut_off};

    fn with(mib: [u64; 2]) -> Cache {
        let mut cache = cache();
        cache.measured.as_mut().unwrap().usable = Usable::Range { lo: mib[0] << 20, hi: mib[1] << 20 };
        cache
    }

    fn ids(cache: &Cache) -> Vec<&'static str> {
        RULES.iter().filter_map(|rule| rule(cache)).map(|finding| finding.id).collect()
    }

    /// The invented cache advertises 32 MiB.
    #[test]
    fn only_sizes_far_from_the_advertised_one_are_mentioned() {
        assert!(ids(&with([14, 28])).is_empty());
        assert_eq!(ids(&with([4, 8])), ["usable-below-advertised"]);
        assert_eq!(ids(&with([45, 60])), ["usable-above-advertised"]);
        assert!(ids(&with([20, 60])).is_empty());
    }

    #[test]
    fn the_rest_is_the_neighbors_only_if_they_evict() {
        let mut cache = with([4, 8]);
        assert!(much_smaller(&cache).unwrap().remedy.contains("hold the rest"));
        cache.measured.as_mut().unwrap().summary.curve = cut_off(32.0, 0.01);
        assert!(much_smaller(&cache).unwrap().remedy.contains("nobody else"));
    }

    #[test]
    fn an_unknown_size_gives_the_reason_and_no_advertised_size_no_comparison() {
        let mut cache = with([4, 8]);
        cache.advertised = None;
        assert!(ids(&cache).is_empty());
        cache.measured.as_mut().unwrap().usable = Usable::unknown("too little memory");
        assert!(unknown(&cache).unwrap().evidence.contains("too little memory"));
    }
}
