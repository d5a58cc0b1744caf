//! Contention by color on simulated machines, whose true rates are known.

use quell_cachesim::truth::{Question, survival};
use quell_cachesim::{Config, Sim, SimMemory};
use quell_core::Bytes;
use quell_llc::calibrate;
use quell_llc::color::{ColorCanary, ColorRate, L2, Pool, classify};
use quell_llc::layout::Layout;

const MILAN: L2 = L2 { size: Bytes::kib(512), ways: 8 };
/// Windows of one round, in ms: around the half-life of the preset.
const WINDOWS: [f64; 4] = [4.0, 7.0, 5.0, 6.0];

/// A Milan whose neighbors evict `factor` times as fast from one color, and that stays in one LLC.
fn polluted(color: usize, factor: f64) -> Config {
    let mut config = Config { placement: None, ..Config::milan() };
    config.neighbors.truncate(1);
    // Weights are relative; the mean over the colors shall not change for the others.
    config.neighbors[0].per_ms *= (15.0 + factor) / 16.0;
    config.neighbors[0].by_color = vec![1.0; 16];
    config.neighbors[0].by_color[color] = factor;
    config
}

/// A round: its rates, its beginning and its end in ms.
type Round = (Vec<ColorRate>, [f64; 2]);

/// The rounds of one machine, and for each color found the true one.
fn rounds(config: &Config, seed: u64, count: usize) -> (Vec<Round>, Vec<u32>) {
    let mut sim = Sim::new(config.clone(), seed).unwrap();
    let first = Layout::pages(MILAN.size);
    let mut memory = sim.memory(first + 2048).unwrap();
    let layout = Layout::new(MILAN.size, seed);
    let calibration = calibrate(&mut memory, MILAN.size, &layout);
    let sorted = classify(&mut memory, MILAN, Pool { first, count: 2048 }, seed).unwrap();
    let mut canary = ColorCanary::new(&sorted, &layout, &calibration, seed).unwrap();
    let true_color = |memory: &SimMemory, color| memory.color(sorted.pages_of(color).next().unwrap());
    let names = (0..canary.colors()).map(|color| true_color(&memory, color)).collect();
    let rounds = (0..count)
        .map(|_| {
            let start = memory.now_ms();
            let round = canary.round(&mut memory, &WINDOWS, 2.0, None);
            (round.colors.unwrap(), [start, memory.now_ms()])
        })
        .collect();
    (rounds, names)
}

#[test]
fn the_polluted_color_ranks_first() {
    let (rounds, names) = rounds(&polluted(11, 2.5), 4, 100);
    let first = |colors: &[ColorRate]| {
        let excess = |rate: &&ColorRate| rate.excess_pct.value().unwrap_or(f64::NEG_INFINITY);
        colors.iter().max_by(|a, b| excess(a).total_cmp(&excess(b))).map(|rate| names[rate.color as usize])
    };
    let right = rounds.iter().filter(|(colors, _)| first(colors) == Some(11)).count();
    assert!(right >= 99, "{right} of {}", rounds.len());
}

#[test]
fn intervals_hold_the_truth_of_the_other_colors() {
    let config = polluted(3, 2.5);
    let (rounds, names) = rounds(&config, 9, 24);
    let (mut covered, mut known, mut width) = (0, 0, 0.0);
    for (colors, span) in &rounds {
        for rate in colors.iter().filter(|rate| names[rate.color as usize] != 3).step_by(3) {
            let Some([lo, hi]) = rate.rate_pct_per_ms.ci95() else { continue };
            let question = Question {
                llc: 0,
                start_ms: span[0]..span[1],
                color: Some(names[rate.color as usize]),
                lines: 1500,
            };
            let truth = survival(&config, 9, &question).unwrap().evicted(7.0) * 100.0 / 7.0;
            known += 1;
            covered += usize::from((lo..=hi).contains(&truth));
            width += (hi - lo) / truth;
        }
    }
    println!("{covered} of {known} width {}", width / f64::from(known));
    assert!(known >= 100 && covered as i32 * 100 >= known * 93, "{covered} of {known}");
}
