//! Turns results into something to read: aligned tables, text histograms and SVG plots.
//!
//! Everything here is a pure function of its input: nothing looks at the terminal, the locale or the clock,
//! so the same data always gives the same text. Whether to use color and how wide the terminal is are the
//! caller's decisions, passed in as [`Look`].

#![forbid(unsafe_code)]

mod error;
mod histogram;
mod look;
mod number;
pub mod svg;
mod table;

pub use error::ReportError;
pub use histogram::{Bins, Histogram};
pub use look::{Look, Tone};
pub use number::{Unit, estimate, value};
pub use table::{Cell, Column, Table};
