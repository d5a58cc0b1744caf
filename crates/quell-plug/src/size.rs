//! Amounts of memory as QEMU reads them: `512M`, `1.5G`, `0x200000`, or a number of bytes.

use std::fmt;
use std::str::FromStr;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An amount of memory in bytes, written with a binary suffix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const UNITS: [(char, u32); 6] = [('E', 60), ('P', 50), ('T', 40), ('G', 30), ('M', 20), ('K', 10)];

impl FromStr for Size {
    type Err = String;

    /// As `qemu_strtosz` does: a decimal number, with a fraction where a suffix gives it a meaning, or a hexadecimal one,
    /// and then `B`, `K`, `M`, `G`, `T`, `P` or `E` in either case; bytes without.
    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("{text:?} is not an amount of memory like 512M, 1.5G or a number of bytes");
        if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            // A suffix would be ambiguous: B and E are digits.
            let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            return u64::from_str_radix(digits, 16).ok().filter(|_| plain).map(Self).ok_or_else(error);
        }
        let suffix = text.chars().last().map(|last| last.to_ascii_uppercase());
        let unit = UNITS.iter().find(|(unit, _)| suffix == Some(*unit));
        let shift = unit.map_or(0, |(_, shift)| *shift);
        let number = if unit.is_some() || suffix == Some('B') { &text[..text.len() - 1] } else { text };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || (whole.is_empty() && fraction.is_empty()) {
            return Err(error());
        }
        if shift == 0 && number.contains('.') {
            return Err(format!("{text:?} is a fraction of a byte"));
        }
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| error())? };
        let part = part(fraction, shift).ok_or_else(error)?;
        whole.checked_mul(1 << shift).and_then(|bytes| bytes.checked_add(part)).map(Self).ok_or_else(error)
    }
}

/// `0.fraction` of `1 << shift`, rounded down.
fn part(fraction: &str, shift: u32) -> Option<u64> {
    // More digits than these cannot change a byte.
    let fraction = &fraction[..fraction.len().min(18)];
    if fraction.is_empty() {
        return Some(0);
    }
    let value: u128 = fraction.parse().ok()?;
    u64::try_from((value << shift) / 10_u128.pow(fraction.len() as u32)).ok()
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
    fn sizes_are_read_as_qemu_reads_them() {
        for (text, bytes) in [
            ("512M", 512 << 20),
            ("1g", 1 << 30),
            ("77", 77),
            ("77B", 77),
            ("1.5G", 3 << 29),
            (".5k", 512),
            ("0x200000", 2 << 20),
            ("0xBE", 0xbe),
            ("1.25T", 5 << 38),
            ("0.1M", 104_857),
            ("0", 0),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in
            ["", "M", ".", "1.5", "-1", "+1", "99999999999T", "1 G", "1GiB", "0x", "0x1G", "1e3", "20E"]
        {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(bytes: u64) {
            prop_assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }

        #[test]
        fn any_text_is_read_or_refused(text: String) {
            let _ = text.parse::<Size>();
        }
    }
}
