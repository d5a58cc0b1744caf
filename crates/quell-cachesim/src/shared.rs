//! An LLC with the traffic of its neighbors and of our own polluter.

use crate::config::{Config, Level, Polluter, Replacement, SnoopFilter, Traffic};
use crate::rng::{Rng, normal_quantile};
use crate::sets::{Sets, Ways};
use crate::traffic::{OUTSIDE, OWN, Path};

const STREAM_LLC: u64 = 1 << 32;
/// Replacement states that stand for "a set long after our last visit".
const POOL: u32 = 256;
/// A set without any line of ours is not replayed beyond so many insertions per way: nobody could tell.
const FORGET_PER_WAY: u32 = 2;
/// A set is taken as turned over completely after so many insertions per way, divided by the chance of an
/// insertion to age the others.
const TURNOVER_PER_WAY: f64 = 8.0;

/// Number of different set pressures: six bits of a hash.
const PRESSURES: usize = 64;
/// So few expected arrivals wait for the next visit (about 5 µs at the presets' rates): drawing them takes
/// longer than everything else at a visit.
const DEFERRED: f64 = 0.015;

/// Lines of ours that foreign insertions have evicted, by who inserted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evictions {
    /// By somebody outside our VM.
    pub outside: u64,
    /// By our own VM on another vCPU.
    pub own: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct SharedCache {
    pub sets: Sets,
    pub path: Path,
    /// Whether anything foreign can ever arrive.
    active: bool,
    their_ways: Ways,
    reuse: [f64; 2],
    /// Relative intensity by color and source; empty if it is 1 everywhere.
    weights: Vec<[f64; 2]>,
    /// Sets of one color are those whose index agrees in the bits above the page offset.
    color_mask: usize,
    /// Equally frequent values of the sets' pressure.
    pressure: [f64; PRESSURES],
    pool: Vec<u64>,
    turnover: u32,
    pub evictions: Evictions,
}

impl SharedCache {
    /// The LLC number `llc` of a machine, full of foreign lines if there is any traffic.
    pub fn new(config: &Config, seed: u64, llc: usize) -> Self {
        let (level, sets) = (config.llc.slice, config.llc_sets());
        let outside = &config.neighbors[llc];
        let polluter = config.polluter.filter(|polluter| polluter.llc == llc);
        let their_ways = Ways::new(config.llc.their_ways);
        let mut rng = Rng::new(seed, STREAM_LLC + llc as u64);
        let reuse = [outside.reuse, polluter.map_or(0.0, |p| p.reuse)];
        let active = outside.per_ms > 0.0 || polluter.is_some_and(|p| p.per_ms > 0.0);
        let path = Path::new(outside, polluter, sets, config.timing.ticks_per_ms, rng.clone());
        let mut cache = Self {
            sets: Sets::new(sets, level.ways, level.replacement),
            path,
            active,
            their_ways,
            reuse,
            weights: weights(outside, polluter, config.colors()),
            color_mask: config.colors() as usize - 1,
            pressure: pressures(config.llc.set_log_sd),
            pool: Vec::new(),
            turnover: turnover(level, reuse),
            evictions: Evictions::default(),
        };
        if active {
            cache.fill_pool(level, &mut Rng::new(rng.bits(), 0));
            for set in &mut cache.sets.state {
                // Long ago, and finite because a color's weight may be zero.
                set.seen = [-1e18, 0.0];
            }
        }
        cache
    }

    /// The snoop filter of the LLC number `llc`: an LLC of entries, under the same bursts and less pressure.
    pub fn filter(config: &Config, filter: SnoopFilter, seed: u64, llc: usize) -> Self {
        let mut config = config.clone();
        let SnoopFilter { ways, replacement, pressure } = filter;
        config.llc.slice = Level { ways, replacement, ..config.llc.slice };
        config.llc.their_ways = ((1u64 << ways) - 1) as u32;
        for neighbor in &mut config.neighbors {
            neighbor.per_ms *= pressure;
        }
        if let Some(polluter) = &mut config.polluter {
            polluter.per_ms *= pressure;
        }
        Self::new(&config, seed, llc)
    }

    fn fill_pool(&mut self, level: Level, rng: &mut Rng) {
        let mut sample = Sets::new(1, level.ways, level.replacement);
        for i in 0..2 * POOL {
            for _ in 0..4 * level.ways {
                sample.fill_foreign(0, self.their_ways, rng.unit() < self.reuse[OUTSIDE], rng);
            }
            if i >= POOL {
                self.pool.push(sample.replacement_state(0));
            }
        }
    }

    /// Applies what has arrived in `set` until `now` and returns the ways of our lines that are gone; their
    /// tags can still be read until the next fill.
    #[inline]
    pub fn settle(&mut self, set: usize, now: f64, rng: &mut Rng) -> u32 {
        if !self.active {
            return 0;
        }
        let until = self.path.at(now);
        let seen = self.sets.state[set].seen;
        // Multiplicative hashing: neighboring sets get unrelated pressures.
        let pressure = self.pressure[((set as u32).wrapping_mul(0x9e37_79b1) >> 26) as usize];
        let mut mean = [(until[0] - seen[0]) * pressure, (until[1] - seen[1]) * pressure];
        if !self.weights.is_empty() {
            let weight = self.weight(set >> 6 & self.color_mask);
            mean = [mean[0] * weight[0], mean[1] * weight[1]];
        }
        let total = mean[0] + mean[1];
        if total < DEFERRED {
            return 0;
        }
        self.sets.state[set].seen = until;
        let u = rng.unit();
        // exp(-x) ≥ 1 - x, so this never turns an arrival into none.
        if u < 1.0 - total {
            return 0;
        }
        self.arrive(set, mean, u, rng)
    }

    #[cold]
    fn arrive(&mut self, set: usize, mean: [f64; 2], u: f64, rng: &mut Rng) -> u32 {
        let total = mean[0] + mean[1];
        let n = if total > 2.0 * f64::from(self.turnover) + 40.0 {
            self.turnover
        } else {
            Rng::poisson(total, u).min(self.turnover)
        };
        if n == 0 {
            return 0;
        }
        let own_share = if mean[OWN] > 0.0 { mean[OWN] / total } else { 0.0 };
        let untouched = self.sets.state[set].own == 0 && n > FORGET_PER_WAY * self.sets.all.bits.count_ones();
        let evicted = if self.their_ways == self.sets.all && (n == self.turnover || untouched) {
            let repl = self.pool[rng.below(POOL) as usize];
            self.sets.reset_foreign(set, repl)
        } else {
            (0..n).fold(0, |gone, _| gone | self.insert(set, own_share, rng))
        };
        for _ in 0..evicted.count_ones() {
            if own_share > 0.0 && rng.unit() < own_share {
                self.evictions.own += 1;
            } else {
                self.evictions.outside += 1;
            }
        }
        evicted
    }

    /// One foreign insertion into `set`; returns the way if our line was in it.
    #[inline]
    pub fn insert(&mut self, set: usize, own_share: f64, rng: &mut Rng) -> u32 {
        let source = usize::from(own_share > 0.0 && rng.unit() < own_share);
        let protect = self.reuse[source] > 0.0 && rng.unit() < self.reuse[source];
        self.sets.fill_foreign(set, self.their_ways, protect, rng)
    }

    /// The pressure of a random set.
    pub fn any_pressure(&self, rng: &mut Rng) -> f64 {
        self.pressure[rng.below(PRESSURES as u32) as usize]
    }

    /// Relative intensity of both sources on a color.
    pub fn weight(&self, color: usize) -> [f64; 2] {
        self.weights.get(color).copied().unwrap_or([1.0; 2])
    }

    /// Puts the first set into a state long after any visit.
    pub fn renew(&mut self, rng: &mut Rng) {
        if self.active {
            let repl = self.pool[rng.below(POOL) as usize];
            self.sets.reset_foreign(0, repl);
        } else {
            self.sets.clear(0);
        }
    }
}

/// The middles of [`PRESSURES`] equally probable parts of a log-normal distribution, scaled to mean 1.
fn pressures(log_sd: f64) -> [f64; PRESSURES] {
    let raw: [f64; PRESSURES] =
        std::array::from_fn(|i| libm::exp(log_sd * normal_quantile((i as f64 + 0.5) / PRESSURES as f64)));
    let mean = raw.iter().sum::<f64>() / PRESSURES as f64;
    raw.map(|value| value / mean)
}

/// Insertions after which nothing of a set's earlier content matters.
fn turnover(level: Level, reuse: [f64; 2]) -> u32 {
    let aging = match level.replacement {
        // Lines that are not protected replace each other at the end and move nobody else there.
        Replacement::LruInsertion { .. } => reuse[OUTSIDE].max(reuse[OWN]).max(0.05),
        Replacement::Random => 0.5,
        _ => 1.0,
    };
    (TURNOVER_PER_WAY * f64::from(level.ways) / aging) as u32
}

fn weights(outside: &Traffic, polluter: Option<Polluter>, colors: u32) -> Vec<[f64; 2]> {
    let only = polluter.and_then(|p| p.color);
    if outside.by_color.is_empty() && only.is_none() {
        return Vec::new();
    }
    let sum: f64 = outside.by_color.iter().sum();
    let colors_f = f64::from(colors);
    (0..colors)
        .map(|color| {
            let theirs = outside.by_color.get(color as usize).map_or(1.0, |weight| weight * colors_f / sum);
            let own = only.map_or(1.0, |only| if only == color { colors_f } else { 0.0 });
            [theirs, own]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Burst;

    const PER_MS: f64 = 1000.0;

    fn one_set(replacement: Replacement, reuse: f64) -> Config {
        let mut config = Config::milan();
        config.llc.slice = Level { sets: 1, ways: 8, replacement };
        config.llc.slices = 1;
        config.llc.our_ways = 0xff;
        config.llc.their_ways = 0xff;
        config.neighbors = vec![Traffic { per_ms: PER_MS, burst: Burst::Constant, reuse, by_color: vec![] }];
        config
    }

    fn line_is_there(cache: &SharedCache) -> bool {
        cache.sets.find(0, 1).is_some()
    }

    /// The share of lines that survive `expected` insertions on average, when the set is settled in `visits`
    /// equal steps, or event by event if `visits` is zero.
    fn surviving(config: &Config, expected: f64, visits: u32) -> f64 {
        let (trials, mut left) = (20_000, 0);
        let mut cache = SharedCache::new(config, 1, 0);
        let mut rng = Rng::new(7, u64::from(visits));
        let ms = config.timing.ticks_per_ms;
        // Time is counted in insertions.
        cache.pressure = [1.0; PRESSURES];
        let mut now = 0.0;
        for _ in 0..trials {
            cache.renew(&mut rng);
            cache.sets.fill(0, Ways::first(8), 1, true, false, &mut rng);
            if visits == 0 {
                let mut time = rng.exponential();
                while time < expected {
                    cache.insert(0, 0.0, &mut rng);
                    time += rng.exponential();
                }
            } else {
                cache.sets.state[0].seen = cache.path.at(now);
                for _ in 0..visits {
                    now += expected / PER_MS * ms / f64::from(visits);
                    cache.path.advance(now);
                    cache.settle(0, now, &mut rng);
                }
            }
            left += i32::from(line_is_there(&cache));
        }
        f64::from(left) / f64::from(trials)
    }

    /// The law of eviction does not depend on when a set is looked at, and equals the naive simulation's.
    #[test]
    fn lazy_traffic_equals_traffic_event_by_event() {
        let policies = [
            (Replacement::Lru, 0.0),
            (Replacement::LruInsertion { depth: 3 }, 0.5),
            (Replacement::TreePlru, 0.0),
            (Replacement::Srrip, 0.3),
            (Replacement::Random, 0.0),
        ];
        for (policy, reuse) in policies {
            let config = one_set(policy, reuse);
            for expected in [2.0, 6.0, 12.0, 30.0] {
                let naive = surviving(&config, expected, 0);
                for visits in [1, 7] {
                    let lazy = surviving(&config, expected, visits);
                    // Five standard errors of a difference of two shares.
                    let error = 5.0 * (2.0 * 0.25f64 / 20_000.0).sqrt();
                    assert!((lazy - naive).abs() < error, "{policy:?} {expected}: {lazy}, naive {naive}");
                }
            }
        }
    }

    #[test]
    fn nothing_of_ours_outlives_a_long_time() {
        for policy in [Replacement::Lru, Replacement::LruInsertion { depth: 3 }, Replacement::Random] {
            assert_eq!(surviving(&one_set(policy, 0.4), 1e4, 1), 0.0, "{policy:?}");
        }
    }

    #[test]
    fn evictions_are_attributed_in_proportion_to_the_traffic() {
        let mut config = one_set(Replacement::Lru, 0.0);
        let always = Polluter {
            per_ms: 3.0 * PER_MS,
            period_ms: 1.0,
            duty: 1.0,
            start_ms: 0.0,
            llc: 0,
            color: None,
            reuse: 0.0,
        };
        config.polluter = Some(always);
        let mut cache = SharedCache::new(&config, 1, 0);
        let mut rng = Rng::new(7, 7);
        for i in 1..=8000 {
            let now = f64::from(i) * 4.0 / PER_MS * config.timing.ticks_per_ms;
            cache.sets.fill(0, Ways::first(8), 1, true, false, &mut rng);
            cache.path.advance(now);
            cache.settle(0, now, &mut rng);
        }
        let Evictions { outside, own } = cache.evictions;
        let share = own as f64 / (own + outside) as f64;
        assert!((share - 0.75).abs() < 0.03, "{share} of {}", own + outside);
    }

    #[test]
    fn pressures_have_mean_one_and_the_asked_spread() {
        let values = pressures(0.3);
        let mean = values.iter().sum::<f64>() / PRESSURES as f64;
        let logs: Vec<f64> = values.iter().map(|v| v.ln()).collect();
        let center = logs.iter().sum::<f64>() / PRESSURES as f64;
        let sd = (logs.iter().map(|v| (v - center).powi(2)).sum::<f64>() / PRESSURES as f64).sqrt();
        assert!((mean - 1.0).abs() < 1e-12 && (sd - 0.3).abs() < 0.01, "{mean} {sd}");
    }
}
