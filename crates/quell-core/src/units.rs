//! Newtypes for the quantities that are easily mixed up.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A logical CPU as the guest kernel numbers it (a vCPU).
    CpuId
);
id!(
    /// A last-level cache domain, numbered from 0 in the order of its lowest CPU.
    LlcId
);
id!(
    /// A NUMA node as the guest kernel numbers it.
    NodeId
);

/// A point in time or a duration in ticks of the time-stamp counter.
///
/// Ticks are not core cycles: the counter runs at a fixed rate (see [`crate::Memory::ticks_per_ms`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ticks(pub u64);

impl Ticks {
    /// The duration since `earlier`; zero if `earlier` is not earlier (the counter may differ by a few
    /// ticks between cores).
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Ticks {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Ticks {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Ticks {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.since(other)
    }
}

/// An amount of memory in bytes. Prints with a binary prefix (`32 MiB`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// `n` KiB.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// `n` MiB.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const PREFIXES: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut prefix = 0;
        while value >= 1024.0 && prefix + 1 < PREFIXES.len() {
            value /= 1024.0;
            prefix += 1;
        }
        let text = if value.fract() == 0.0 || prefix == 0 {
            format!("{value:.0} {}", PREFIXES[prefix])
        } else {
            format!("{value:.1} {}", PREFIXES[prefix])
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_print_with_binary_prefixes() {
        assert_eq!(Bytes(0).to_string(), "0 B");
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes::kib(512).to_string(), "512 KiB");
        assert_eq!(Bytes(1536).to_string(), "1.5 KiB");
        assert_eq!(Bytes::mib(32).to_string(), "32 MiB");
        assert_eq!(Bytes(u64::MAX).to_string(), "16777216 TiB");
    }

    #[test]
    fn an_earlier_point_gives_no_negative_duration() {
        assert_eq!(Ticks(5).since(Ticks(9)), Ticks(0));
        assert_eq!(Ticks(9) - Ticks(5), Ticks(4));
    }
}
