//! What can go wrong while a report is made.

use std::error::Error;

/// A report that could not be made from the data given.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The range of a histogram is empty, not finite, or not positive on a logarithmic scale.
    #[error("cannot divide the range from {lo} to {hi} into {count} {scale} bins")]
    Bins {
        /// Lower end of the range.
        lo: f64,
        /// Upper end of the range.
        hi: f64,
        /// Number of bins asked for.
        count: usize,
        /// `linear` or `logarithmic`.
        scale: &'static str,
    },
    /// The plotting library gave up.
    #[error("cannot draw the plot \"{title}\"")]
    Draw {
        /// Title of the plot.
        title: String,
        /// The library's reason.
        source: Box<dyn Error + Send + Sync>,
    },
}
