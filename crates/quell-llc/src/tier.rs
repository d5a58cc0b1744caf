//! Grades of contention.

use serde::Serialize;

/// How contended an LLC is, by the share of lines that a window of 7 ms would evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Little eviction.
    Quiet,
    /// Noticeable.
    Moderate,
    /// Most lines do not survive the window.
    Heavy,
    /// Nothing survives.
    Saturated,
}

impl Tier {
    /// All tiers, from the calmest.
    pub const ALL: [Self; 4] = [Self::Quiet, Self::Moderate, Self::Heavy, Self::Saturated];

    /// The tier's name as it appears in every output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Moderate => "moderate",
            Self::Heavy => "heavy",
            Self::Saturated => "saturated",
        }
    }
}

/// The window that tiers and the eviction rate refer to, in ms, whatever window was measured with
/// (the default window of the `CacheX` paper, arXiv 2511.09956).
pub const REFERENCE_WINDOW_MS: f64 = 7.0;

/// Upper limits of the first three tiers, in percent evicted at [`REFERENCE_WINDOW_MS`]; ascending.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierLimits(pub [f64; 3]);

impl Default for TierLimits {
    /// 40, 65 and 85 %.
    fn default() -> Self {
        Self([40.0, 65.0, 85.0])
    }
}

impl TierLimits {
    /// The tier of a share evicted at the reference window (percent).
    #[must_use]
    pub fn tier(self, evicted_pct: f64) -> Tier {
        Tier::ALL[self.0.iter().filter(|&&limit| evicted_pct >= limit).count()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_belong_to_the_upper_tier() {
        let limits = TierLimits::default();
        let tiers = [0.0, 39.9, 40.0, 64.9, 65.0, 84.9, 85.0, 100.0].map(|pct| limits.tier(pct).name());
        assert_eq!(
            tiers,
            ["quiet", "quiet", "moderate", "moderate", "heavy", "heavy", "saturated", "saturated"]
        );
    }
}
