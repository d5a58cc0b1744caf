//! Whether a set is what it claims to be, by trials that took no part in finding it.

use quell_core::{Line, Memory};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::build::EvictionSet;
use super::test::LlcTest;
use crate::evset::test::{Outcome, Rule};

/// What a set failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Unverified {
    /// It does not evict its own target.
    #[error("the set does not evict its target reliably")]
    SparesTarget,
    /// With one line less it still does.
    #[error("the set evicts its target even with a line less")]
    NotMinimal,
    /// It evicts what belongs to another set.
    #[error("the set evicts a line of another set")]
    EvictsForeign,
}

/// Checks a set in both directions, in a new order: it evicts its target; without one of its lines it does not;
/// and it does not evict `foreign`, the target of another set at the same page offset. `seed` draws the order.
///
/// # Errors
/// The first check that fails.
pub fn verify(
    memory: &mut impl Memory,
    test: &mut LlcTest,
    set: &EvictionSet,
    foreign: Option<Line>,
    seed: u64,
) -> Result<(), Unverified> {
    let mut lines = set.lines.clone();
    lines.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(seed));
    if test.evicts(memory, set.target, &lines, Rule::CAREFUL) != Outcome::Evicts {
        return Err(Unverified::SparesTarget);
    }
    let Some((left_out, fewer)) = lines.split_last() else { return Err(Unverified::SparesTarget) };
    memory.flush(&[*left_out]);
    if test.evicts(memory, set.target, fewer, Rule::CAREFUL) != Outcome::Spares {
        return Err(Unverified::NotMinimal);
    }
    match foreign {
        Some(foreign) if test.evicts(memory, foreign, &lines, Rule::CAREFUL) != Outcome::Spares => {
            Err(Unverified::EvictsForeign)
        }
        _ => Ok(()),
    }
}
