//! Statistics that the measurements need and that must be the same everywhere.

pub mod clustered;
pub mod jackknife;
pub mod quantile;
pub mod rank;
pub mod smoothing;
pub mod survival;

pub use jackknife::jackknife;
pub use quantile::{quantile, quantile_floor};
pub use rank::{auc, spearman};
pub use smoothing::{Ewma, Hysteresis};
pub use survival::{FitError, Survival, Window};

/// Arithmetic mean; `None` for no data.
#[must_use]
pub fn mean(data: &[f64]) -> Option<f64> {
    (!data.is_empty()).then(|| data.iter().sum::<f64>() / data.len() as f64)
}
