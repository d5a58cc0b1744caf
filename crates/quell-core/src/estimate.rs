//! A measured value that knows how sure it is, or why it is not known.

use std::borrow::Cow;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// An estimate with its 95 % confidence interval, or `unknown` with the reason.
///
/// Serializes as `{"value": v, "ci95": [lo, hi], "n": n}`, or `{"value": null, "reason": "…"}`.
#[derive(Clone, Debug, PartialEq)]
pub enum Estimate {
    /// The measurement verified itself.
    Known {
        /// Point estimate, in the unit of the field that holds it.
        value: f64,
        /// 95 % confidence interval, `[lo, hi]`, in the same unit.
        ci95: [f64; 2],
        /// Independent observations behind it (windows or rounds, not single loads).
        n: usize,
    },
    /// It did not; never zero, never an old value.
    Unknown {
        /// Why, in words for the user.
        reason: Cow<'static, str>,
    },
}

impl Estimate {
    /// A value that could not be determined.
    pub fn unknown(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Unknown { reason: reason.into() }
    }

    /// A known value; not-a-number or infinite input becomes unknown rather than a bad number.
    #[must_use]
    pub fn known(value: f64, ci95: [f64; 2], n: usize) -> Self {
        if value.is_finite() && ci95.iter().all(|bound| bound.is_finite()) {
            Self::Known { value, ci95, n }
        } else {
            Self::unknown("the fit did not converge to a finite value")
        }
    }

    /// The point estimate, if known.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        match self {
            Self::Known { value, .. } => Some(*value),
            Self::Unknown { .. } => None,
        }
    }

    /// The confidence interval, if known.
    #[must_use]
    pub fn ci95(&self) -> Option<[f64; 2]> {
        match self {
            Self::Known { ci95, .. } => Some(*ci95),
            Self::Unknown { .. } => None,
        }
    }

    /// The reason, if unknown.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Known { .. } => None,
            Self::Unknown { reason } => Some(reason),
        }
    }

    /// Applies a monotonic function to value and interval, for example a change of unit.
    ///
    /// A decreasing function is allowed: the interval's ends are put in order again.
    #[must_use]
    pub fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        match self {
            Self::Known { value, ci95, n } => {
                let (a, b) = (f(ci95[0]), f(ci95[1]));
                Self::known(f(*value), [a.min(b), a.max(b)], *n)
            }
            unknown @ Self::Unknown { .. } => unknown.clone(),
        }
    }
}

impl Serialize for Estimate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self {
            Self::Known { value, ci95, n } => {
                map.serialize_entry("value", value)?;
                map.serialize_entry("ci95", ci95)?;
                map.serialize_entry("n", n)?;
            }
            Self::Unknown { reason } => {
                map.serialize_entry("value", &None::<f64>)?;
                map.serialize_entry("reason", reason)?;
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serializes_in_the_documented_shape() {
        let known = Estimate::known(2.5, [2.0, 3.0], 40);
        assert_eq!(serde_json::to_string(&known).unwrap(), r#"{"value":2.5,"ci95":[2.0,3.0],"n":40}"#);
        let unknown = Estimate::unknown("too noisy");
        assert_eq!(serde_json::to_string(&unknown).unwrap(), r#"{"value":null,"reason":"too noisy"}"#);
    }

    #[test]
    fn not_a_number_is_unknown() {
        assert!(Estimate::known(f64::NAN, [0.0, 1.0], 3).value().is_none());
        assert!(Estimate::known(1.0, [0.0, f64::INFINITY], 3).value().is_none());
    }

    #[test]
    fn a_decreasing_map_keeps_the_interval_in_order() {
        let inverse = Estimate::known(2.0, [1.0, 4.0], 5).map(|v| 1.0 / v);
        assert_eq!(inverse, Estimate::known(0.5, [0.25, 1.0], 5));
    }
}
