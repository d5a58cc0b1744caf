//! Page colors: which pages compete for the same cache sets, found out without knowing any host address.
//!
//! A page's color is the group of L2 sets that its lines use: two pages of one color push each other out of the
//! L2, two of different colors never do. Where the LLC takes the same address bits for its index, colors
//! partition the LLC too, and a stream through pages of one color leaves all others alone.
//!
//! Colors are names of one run: they say which pages belong together, not where they lie in the cache.

pub mod agreement;
pub mod canary;
pub mod classify;
pub mod frames;
pub mod partition;
pub mod permutation;
pub mod rates;
pub mod report;
pub mod tracker;

pub use agreement::Agreement;
pub use canary::{ColorCanary, ColorRound};
pub use classify::{Classification, ClassifyError, L2, Pool, classify};
pub use partition::{Partition, partition};
pub use permutation::{Permutations, permutations};
pub use rates::{ColorRate, ColorWindow};
