//! Numbers for people: a unit that suits the size, and no more digits than the interval supports.

use quell_core::Estimate;

/// What a number stands for, and so how it is scaled and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Milliseconds; printed in ns, µs, ms or s.
    Milliseconds,
    /// A share from 0 to 1; printed in percent.
    Share,
    /// Bytes; printed with a binary prefix.
    Bytes,
    /// Anything else, printed as it is with this unit after it (none if empty).
    Named(&'static str),
}

impl Unit {
    /// Factor and suffix that suit a number of this size.
    fn scale(self, value: f64) -> (f64, &'static str) {
        let size = value.abs();
        match self {
            Self::Milliseconds if size == 0.0 => (1.0, "ms"),
            Self::Milliseconds if size < 1e-3 => (1e6, "ns"),
            Self::Milliseconds if size < 1.0 => (1e3, "µs"),
            Self::Milliseconds if size < 1e3 => (1.0, "ms"),
            Self::Milliseconds => (1e-3, "s"),
            Self::Share => (100.0, "%"),
            Self::Bytes => {
                const PREFIXES: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
                let mut factor = 1.0;
                let mut prefix = 0;
                while size * factor >= 1024.0 && prefix + 1 < PREFIXES.len() {
                    factor /= 1024.0;
                    prefix += 1;
                }
                (factor, PREFIXES[prefix])
            }
            Self::Named(name) => (1.0, name),
        }
    }
}

/// An estimate as text: `3.2 ms (2.9-3.6)`, or `unknown: reason`.
///
/// The last digit shown is the first significant one of half the 95 % interval, with at most four
/// significant digits in all.
#[must_use]
pub fn estimate(estimate: &Estimate, unit: Unit) -> String {
    match estimate {
        Estimate::Unknown { reason } => format!("unknown: {reason}"),
        Estimate::Known { value, ci95: [lo, hi], .. } => {
            let (factor, suffix) = unit.scale(*value);
            let (value, lo, hi) = (value * factor, lo * factor, hi * factor);
            let decimals = decimals(value, (hi - lo) / 2.0);
            let number = |v| fixed(v, decimals);
            let separator = if lo < 0.0 { " to " } else { "-" };
            let interval = format!("({}{separator}{})", number(lo), number(hi));
            [&number(value), suffix, &interval].into_iter().filter(|part| !part.is_empty()).fold(
                String::new(),
                |text, part| if text.is_empty() { part.to_owned() } else { format!("{text} {part}") },
            )
        }
    }
}

/// A single number as text with three significant digits, or `unknown` if it is not finite.
#[must_use]
pub fn value(value: f64, unit: Unit) -> String {
    if !value.is_finite() {
        return "unknown".to_owned();
    }
    let (factor, suffix) = unit.scale(value);
    let text = significant(value * factor);
    if suffix.is_empty() { text } else { format!("{text} {suffix}") }
}

/// Three significant digits, without an exponent.
pub(crate) fn significant(value: f64) -> String {
    fixed(value, decimals(value, 0.0).saturating_sub(1))
}

/// Decimal places for a value with this half-width of its interval (0: unknown).
fn decimals(value: f64, half_width: f64) -> usize {
    const MOST_PLACES: f64 = 9.0;
    let exponent = |v: f64| v.abs().log10().floor();
    let of_four_digits = if value == 0.0 { 3.0 } else { 3.0 - exponent(value) };
    let of_interval = if half_width > 0.0 { -exponent(half_width) } else { of_four_digits };
    of_interval.min(of_four_digits).clamp(0.0, MOST_PLACES) as usize
}

/// Fixed notation; a negative number that rounds to zero loses its sign.
fn fixed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    match text.strip_prefix('-') {
        Some(digits) if digits.bytes().all(|digit| matches!(digit, b'0' | b'.')) => digits.to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn known(value: f64, lo: f64, hi: f64, unit: Unit) -> String {
        estimate(&Estimate::known(value, [lo, hi], 10), unit)
    }

    #[test]
    fn an_interval_limits_the_digits() {
        assert_eq!(known(3.2174, 2.871, 3.604, Unit::Milliseconds), "3.2 ms (2.9-3.6)");
        assert_eq!(known(3.2174, 3.2170, 3.2178, Unit::Milliseconds), "3.217 ms (3.217-3.218)");
        assert_eq!(known(3217.4, 2871.0, 3604.0, Unit::Named("ticks")), "3217 ticks (2871-3604)");
        assert_eq!(known(0.354, 0.311, 0.412, Unit::Share), "35 % (31-41)");
        assert_eq!(known(29_360_128.0, 25_165_824.0, 33_554_432.0, Unit::Bytes), "28 MiB (24-32)");
        assert_eq!(known(1.5, 1.5, 1.5, Unit::Named("")), "1.500 (1.500-1.500)");
    }

    #[test]
    fn the_value_chooses_the_unit_for_its_interval() {
        assert_eq!(known(0.9, 0.8, 1.1, Unit::Milliseconds), "900 µs (800-1100)");
        assert_eq!(known(2500.0, 2400.0, 2600.0, Unit::Milliseconds), "2.5 s (2.4-2.6)");
        assert_eq!(known(0.00008, 0.00007, 0.00009, Unit::Milliseconds), "80 ns (70-90)");
    }

    #[test]
    fn a_negative_bound_is_not_mistaken_for_a_dash() {
        assert_eq!(known(0.1, -0.2, 0.4, Unit::Named("/s")), "0.1 /s (-0.2 to 0.4)");
        assert_eq!(known(-0.01, -0.4, 0.4, Unit::Named("")), "0.0 (-0.4 to 0.4)");
    }

    #[test]
    fn unknown_shows_its_reason_and_never_a_number() {
        assert_eq!(estimate(&Estimate::unknown("too noisy"), Unit::Milliseconds), "unknown: too noisy");
        assert_eq!(value(f64::NAN, Unit::Share), "unknown");
        assert_eq!(value(f64::INFINITY, Unit::Bytes), "unknown");
    }

    #[test]
    fn single_values_have_three_digits() {
        assert_eq!(value(0.0, Unit::Milliseconds), "0.00 ms");
        assert_eq!(value(7.0, Unit::Milliseconds), "7.00 ms");
        assert_eq!(value(1234.5, Unit::Named("ticks")), "1234 ticks");
        assert_eq!(value(0.0456, Unit::Share), "4.56 %");
        assert_eq!(value(1536.0, Unit::Bytes), "1.50 KiB");
    }

    proptest! {
        #[test]
        fn any_number_prints_as_a_number_close_to_it(v in -1e12..1e12f64, width in 0.0..1e6f64) {
            let text = known(v, v - width, v + width, Unit::Named(""));
            let shown: f64 = text.split(' ').next().unwrap().parse().unwrap();
            prop_assert!((shown - v).abs() <= width.max(v.abs() * 1e-3) + 1e-9, "{} shown as {}", v, text);
        }

        #[test]
        fn extreme_numbers_do_not_panic(v: f64, lo: f64, hi: f64) {
            for unit in [Unit::Milliseconds, Unit::Share, Unit::Bytes, Unit::Named("x")] {
                prop_assert!(!known(v, lo, hi, unit).is_empty());
                prop_assert!(!value(v, unit).is_empty());
            }
        }
    }
}
