//! Amounts of memory in experiment files: `512M`, `1G`, or a number of bytes.

use std::fmt;
use std::str::FromStr;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An amount of memory in bytes, written with a binary suffix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("{text:?} is not an amount of memory like 512M or 1G");
        let shift = UNITS.iter().find(|(unit, _)| text.ends_with([*unit, unit.to_ascii_lowercase()]));
        let (number, shift) = shift.map_or((text, 0), |(_, shift)| (&text[..text.len() - 1], *shift));
        let value: u64 = number.parse().map_err(|_| error())?;
        value.checked_mul(1 << shift).map(Self).ok_or_else(error)
    }
}

impl fmt::Display for Size {
    /// With the largest suffix that keeps the number whole, as QEMU reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS.iter().find(|(_, shift)| self.0 > 0 && self.0.trailing_zeros() >= *shift);
        match whole {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an amount of memory like \"512M\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }

            fn visit_i64<E: Error>(self, bytes: i64) -> Result<Size, E> {
                u64::try_from(bytes).map(Size).map_err(|_| E::custom("an amount of memory is not negative"))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn suffixes_are_binary_and_nonsense_is_refused() {
        assert_eq!("512M".parse(), Ok(Size(512 << 20)));
        assert_eq!("1g".parse(), Ok(Size(1 << 30)));
        assert_eq!("77".parse(), Ok(Size(77)));
        for text in ["", "M", "1.5G", "-1", "99999999999T", "1 G", "1GiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(bytes: u64) {
            prop_assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }
    }
}
