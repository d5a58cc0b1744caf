//! Page colors: which pages compete for the same cache sets, found out without knowing any host address.
//!
//! A page's color is the group of L2 sets that its lines use: two pages of one color push each other out of the
//! L2, two of different colors never do. Where the LLC takes the same address bits for its index, colors
//! partition the LLC too, and a stream through pages of one color leaves all others alone.
//!
//! Colors are names of one run: they say which pages belong together, not where they lie in the cache.

pub mod agreement;
pub mod classify;

pub use agreement::Agreement;
pub use classify::{Classification, ClassifyError, L2, Pool, classify};
