//! Do colors partition the LLC? A stream through pages of one color must evict lines of that color and no others.

use quell_core::memory::PAGE_BYTES;
use quell_core::stats::jackknife::mean_estimate;
use quell_core::stats::quantile;
use quell_core::{Bytes, Estimate, Line, Memory, Sample};
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use super::classify::Classification;
use crate::calibrate::Calibration;
use crate::evset::l2::octet;
use crate::layout::Layout;

/// What our own vCPU streams through between priming and probing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Nothing: the control for what priming, probing and neighbors lose.
    None,
    /// Pages of the canary's color.
    Same,
    /// As many pages of one other color.
    Other,
    /// As many pages of all colors.
    Random,
}

impl Stream {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::None, Self::Same, Self::Other, Self::Random];

    /// The name as it appears in every output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Same => "same",
            Self::Other => "other",
            Self::Random => "random",
        }
    }
}

/// What one kind of stream evicted.
#[derive(Clone, Debug, Serialize)]
pub struct Arm {
    /// The stream.
    pub stream: Stream,
    /// Percent of the canary lost, mean over the rounds.
    pub lost_pct: Estimate,
    /// Percent of the canary lost, median over the rounds: a round that something else disturbed does not move it. `None` with
    /// too few rounds.
    pub median_lost_pct: Option<f64>,
    /// Rounds in which more than half of it was lost.
    pub mostly_lost: usize,
    /// Rounds.
    pub rounds: usize,
}

/// Whether colors partition the LLC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// A stream of one color evicts that color alone.
    Partitioned,
    /// It evicts other colors as well, or its own no more than others.
    Shared,
    /// It cannot be told, for this reason.
    Unknown(String),
}

/// Outcome of the test.
#[derive(Clone, Debug)]
pub struct Partition {
    /// By stream.
    pub arms: Vec<Arm>,
    /// What follows.
    pub verdict: Verdict,
    /// Size of a stream.
    pub stream: Bytes,
    /// Lines of the canary.
    pub canary_lines: usize,
}

/// Rounds, each with all four streams in random order.
pub const ROUNDS: usize = 40;
/// Lines of one color, one a page.
const CANARY_LINES: usize = 64;
/// A stream should have this multiple of a color's share of the LLC, as far as there are pages.
const STREAM_OF_SHARE: f64 = 2.0;
/// Below this multiple it cannot be expected to evict anything.
const LEAST_OF_SHARE: f64 = 1.0;
/// Times it is read: lines read once are replaced before those that were used again, the canary among them.
const PASSES: usize = 4;
/// With fewer valid rounds of a stream nothing is said.
const LEAST_ROUNDS: usize = 8;
/// Loss in percent from which a stream evicts, and up to which it does not (beyond the control).
const EVICTS_PCT: f64 = 50.0;
const SPARES_PCT: f64 = 10.0;

/// Runs the test for an LLC of `llc` bytes.
///
/// # Errors
/// Why it cannot run here.
pub fn partition(
    memory: &mut impl Memory,
    sorted: &Classification,
    layout: &Layout,
    calibration: &Calibration,
    llc: Bytes,
    seed: u64,
) -> Result<Partition, String> {
    let limits = calibration.discriminator.clone()?;
    if sorted.colors() < 2 {
        return Err("all pages have the same color".into());
    }
    let fewest = sorted.counts().into_iter().min().unwrap_or(0);
    let share = llc.0 as f64 / f64::from(PAGE_BYTES) / sorted.colors() as f64;
    let pages = ((share * STREAM_OF_SHARE) as usize).min(fewest.saturating_sub(CANARY_LINES));
    if pages == 0 || (pages as f64) < share * LEAST_OF_SHARE {
        return Err(format!(
            "the smallest color has {fewest} pages, and a stream that fills its share of the LLC takes {:.0}; use a \
             larger pool",
            share * LEAST_OF_SHARE + CANARY_LINES as f64
        ));
    }
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut lost = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        let mut arms: Vec<usize> = (0..4).collect();
        arms.shuffle(&mut rng);
        for arm in arms {
            let (lines, stream) = draw(sorted, layout, Stream::ALL[arm], pages, &mut rng);
            let canary = calibration.canary(layout.with_canary(lines));
            canary.prime(memory);
            for _ in 0..PASSES {
                memory.load_pages(&stream);
            }
            let mut samples: Vec<Sample> = Vec::new();
            memory.time(&canary.layout().probe_order, &mut samples);
            lost[arm].extend(limits.count(&samples).miss_share());
        }
    }
    let arms: Vec<Arm> = Stream::ALL.into_iter().zip(&lost).map(|(stream, lost)| arm(stream, lost)).collect();
    let stream = Bytes(pages as u64 * u64::from(PAGE_BYTES));
    Ok(Partition { verdict: verdict(&arms), arms, stream, canary_lines: CANARY_LINES })
}

/// Sums up the shares that were lost in the rounds of one stream.
fn arm(stream: Stream, lost: &[f64]) -> Arm {
    Arm {
        stream,
        lost_pct: mean_estimate(lost).map(|share| share.clamp(0.0, 1.0) * 100.0),
        median_lost_pct: quantile(lost, 0.5)
            .filter(|_| lost.len() >= LEAST_ROUNDS)
            .map(|share| share * 100.0),
        mostly_lost: lost.iter().filter(|&&share| share > 0.5).count(),
        rounds: lost.len(),
    }
}

/// Canary lines of a random color, and the pages of a stream.
fn draw(
    sorted: &Classification,
    layout: &Layout,
    stream: Stream,
    pages: usize,
    rng: &mut Xoshiro256PlusPlus,
) -> (Vec<Line>, Vec<u32>) {
    let colors = sorted.colors() as u32;
    let color = rng.random_range(0..colors);
    let mut own: Vec<u32> = sorted.pages_of(color).collect();
    own.shuffle(rng);
    let stream_pages = own.split_off(CANARY_LINES.min(own.len()));
    let lines = own.iter().map(|&page| octet(page, layout.residue())[rng.random_range(0..8)]).collect();
    let other = (color + rng.random_range(1..colors)) % colors;
    let candidates: Vec<u32> = match stream {
        Stream::None => Vec::new(),
        Stream::Same => stream_pages,
        Stream::Other => sorted.pages_of(other).collect(),
        Stream::Random => {
            (0..colors).flat_map(|color| sorted.pages_of(color)).filter(|page| !own.contains(page)).collect()
        }
    };
    (lines, candidates.sample(rng, pages.min(candidates.len())).copied().collect())
}

fn verdict(arms: &[Arm]) -> Verdict {
    // Medians: on a busy machine some rounds lose everything to somebody else's stream.
    let lost =
        |stream: Stream| arms.iter().find(|arm| arm.stream == stream).and_then(|arm| arm.median_lost_pct);
    let (Some(none), Some(same), Some(other)) = (lost(Stream::None), lost(Stream::Same), lost(Stream::Other))
    else {
        return Verdict::Unknown("too few valid rounds".into());
    };
    if none > EVICTS_PCT {
        Verdict::Unknown(format!("{none:.0} % of the canary is lost without any stream"))
    } else if same < other + SPARES_PCT {
        // Lines of one color spread over the whole LLC: the stream fills its share of every set and evicts nothing.
        Verdict::Shared
    } else if same < none + EVICTS_PCT {
        Verdict::Unknown(format!("a stream of the canary's own color evicts {same:.0} % of it only"))
    } else if other > none + SPARES_PCT {
        Verdict::Shared
    } else {
        Verdict::Partitioned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arms whose rounds lost these shares.
    fn arms(lost: [&[f64]; 4]) -> Vec<Arm> {
        let arm = |(stream, lost): (Stream, &[f64])| arm(stream, lost);
        Stream::ALL.into_iter().zip(lost).map(arm).collect()
    }

    #[test]
    fn rounds_that_somebody_else_disturbed_do_not_decide() {
        let (none, same) = ([0.03; 40], [1.0; 40]);
        let mut other = [0.03; 40];
        other[..7].fill(0.9);
        assert_eq!(verdict(&arms([&none, &same, &other, &none])), Verdict::Partitioned);
        assert_eq!(verdict(&arms([&none, &same, &same, &same])), Verdict::Shared);
        assert_eq!(verdict(&arms([&none, &none, &none, &none])), Verdict::Shared);
        let unknown = |arms: &[Arm]| matches!(verdict(arms), Verdict::Unknown(_));
        assert!(unknown(&arms([&same, &same, &same, &same])));
        assert!(unknown(&arms([&none, &[0.3; 40], &none, &none])));
        assert!(unknown(&arms([&none, &same, &other[..5], &none])));
    }
}
