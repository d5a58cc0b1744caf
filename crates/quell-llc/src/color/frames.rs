//! Do guest-physical addresses predict colors? If the guest's frames were the host's, a color would be a linear
//! function of frame bits, as the L2 index is: pages of one color would agree in some parity of these bits.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

/// The strongest relation found between frame bits and colors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Lowest bits of the frame number that were looked at; all their parities were.
    pub frame_bits: u32,
    /// Pairs of pages of one color.
    pub pairs: u64,
    /// Bits of the strongest parity.
    pub mask: u32,
    /// How much more often than chance pages of one color agree in it: 0 never, 1 always.
    pub bias: f64,
    /// The largest bias when colors are dealt to the pages at random, over all shuffles.
    pub bias_by_chance: f64,
    /// Whether the relation is more than chance and strong enough to mean something.
    pub predicts: bool,
}

/// Lowest frame bits that take part: more than any L2's or LLC slice's index has above the page offset.
const BITS: u32 = 12;
/// Shuffles of the colors.
const SHUFFLES: u32 = 40;
/// A weaker relation would be of no use.
const USEFUL_BIAS: f64 = 0.1;

/// Looks for the strongest relation; `None` without two pages of one color.
#[must_use]
pub fn predict(frames: &[u64], labels: &[Option<u32>], colors: usize, seed: u64) -> Option<Prediction> {
    let known = || frames.iter().zip(labels).filter_map(|(frame, label)| Some((*frame, (*label)?)));
    let frames: Vec<u64> = known().map(|(frame, _)| frame).collect();
    let mut labels: Vec<u32> = known().map(|(_, label)| label).collect();
    let pairs = pairs_of(&labels, colors);
    if pairs == 0 {
        return None;
    }
    let (mask, bias) = strongest(&frames, &labels, colors, pairs);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut bias_by_chance = 0.0_f64;
    for _ in 0..SHUFFLES {
        labels.shuffle(&mut rng);
        bias_by_chance = bias_by_chance.max(strongest(&frames, &labels, colors, pairs).1);
    }
    let predicts = bias > bias_by_chance && bias > USEFUL_BIAS;
    Some(Prediction { frame_bits: BITS, pairs, mask, bias, bias_by_chance, predicts })
}

fn pairs_of(labels: &[u32], colors: usize) -> u64 {
    let mut counts = vec![0_u64; colors];
    labels.iter().for_each(|&label| counts[label as usize] += 1);
    counts.iter().map(|n| n * n.saturating_sub(1) / 2).sum()
}

/// The parity in which pages of one color agree most beyond what all pages do, and by how much.
///
/// The Walsh-Hadamard transform of a color's histogram over the bits gives, for each mask, the difference W between
/// its pages of even and odd parity; W² − n counts its agreeing ordered pairs minus its disagreeing ones.
fn strongest(frames: &[u64], labels: &[u32], colors: usize, pairs: u64) -> (u32, f64) {
    let size = 1_usize << BITS;
    let mut histograms = vec![vec![0_i32; size]; colors];
    for (&frame, &label) in frames.iter().zip(labels) {
        histograms[label as usize][frame as usize & (size - 1)] += 1;
    }
    let mut sums = vec![0_f64; size];
    let mut all = vec![0_i32; size];
    for histogram in &mut histograms {
        let pages: i32 = histogram.iter().sum();
        transform(histogram);
        for ((sum, all), &w) in sums.iter_mut().zip(&mut all).zip(&*histogram) {
            *sum += f64::from(w) * f64::from(w) - f64::from(pages);
            *all += w;
        }
    }
    let n = frames.len() as f64;
    let excess = |mask: usize| {
        let expected = (f64::from(all[mask]).powi(2) - n) / (n * (n - 1.0));
        sums[mask] / (2.0 * pairs as f64) - expected
    };
    let best = (1..size).map(|mask| (mask as u32, excess(mask))).max_by(|a, b| a.1.total_cmp(&b.1));
    best.unwrap_or((0, 0.0))
}

/// Fast Walsh-Hadamard transform, in place.
fn transform(values: &mut [i32]) {
    let mut half = 1;
    while half < values.len() {
        for block in values.chunks_exact_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use rand::RngExt;

    use super::*;

    #[test]
    fn a_linear_color_is_found_and_a_random_one_is_not() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
        let frames: Vec<u64> = (0..2000).map(|_| rng.random_range(0..1_u64 << 30)).collect();
        let parity = |value: u64| value.count_ones() % 2;
        let linear: Vec<Option<u32>> =
            frames.iter().map(|f| Some(parity(f & 0b1001) | parity(f & 0b0110) << 1)).collect();
        let found = predict(&frames, &linear, 4, 1).unwrap();
        assert!(found.predicts && found.bias > 0.99, "{found:?}");
        let random: Vec<Option<u32>> = (0..2000).map(|_| Some(rng.random_range(0..4))).collect();
        let found = predict(&frames, &random, 4, 1).unwrap();
        assert!(!found.predicts && found.bias < 0.05, "{found:?}");
        assert_eq!(predict(&frames, &vec![None; 2000], 4, 1), None);
    }

    /// The transform against its definition.
    #[test]
    fn the_transform_counts_parities() {
        let counts = [3, 1, 4, 1, 5, 9, 2, 6];
        let mut transformed = counts;
        transform(&mut transformed);
        for (mask, &w) in transformed.iter().enumerate() {
            let sign = |value: usize| if (value & mask).count_ones().is_multiple_of(2) { 1 } else { -1 };
            assert_eq!(w, counts.iter().enumerate().map(|(value, n)| sign(value) * n).sum::<i32>());
        }
    }
}
