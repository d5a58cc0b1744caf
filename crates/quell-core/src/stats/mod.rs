//! Statistics that the measurements need and that must be the same everywhere.

pub mod quantile;

pub use quantile::quantile;
