//! Prints the tables of `docs/simulator.md`: what a measurement on the simulated Milan gives.
//!
//! `cargo run --release -p quell-cachesim --example fidelity`

use std::time::Instant;

use quell_cachesim::{Config, Place, Polluter, Sim, SimMemory, truth};
use quell_core::{Line, Memory, Sample, Ticks};

/// Pages 0 to 4,095 hold canary lines, the rest the spill area.
const PAGES: u32 = 8192;
const SPILL_PAGE: u32 = 4096;
/// Between the LLC and memory, in ticks.
const LLC_LIMIT: u32 = 200;
/// Between L2 and the LLC, in ticks.
const L2_LIMIT: u32 = 95;

fn canary(lines: u32, round: u32) -> Vec<Line> {
    (0..lines)
        .map(|i| Line::new((i + round * 1024) % SPILL_PAGE, (i * 37 + round * 11 + i / 64) % 64))
        .collect()
}

fn spill(lines: u32) -> Vec<Line> {
    (0..lines).map(|i| Line::new(SPILL_PAGE + i / 64, i % 64)).collect()
}

/// Share of lines that are timed above `limit`, probed backwards.
fn above(memory: &mut SimMemory, lines: &[Line], limit: u32) -> f64 {
    let backwards: Vec<Line> = lines.iter().rev().copied().collect();
    let mut samples: Vec<Sample> = Vec::new();
    memory.time(&backwards, &mut samples);
    samples.iter().filter(|sample| sample.ticks > limit).count() as f64 / samples.len() as f64
}

fn wait(memory: &mut SimMemory, ms: f64) {
    let deadline = memory.now() + Ticks((ms * memory.ticks_per_ms()) as u64);
    memory.sleep_until(deadline);
}

fn spin(memory: &mut SimMemory, ms: f64) -> f64 {
    let deadline = memory.now() + Ticks((ms * memory.ticks_per_ms()) as u64);
    memory.spin_until(deadline).0 as f64 / memory.ticks_per_ms()
}

fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * q) as usize]
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The canary's placement must not change under the tables that are not about it.
fn still() -> Config {
    Config { placement: None, ..Config::milan() }
}

/// A sequential 16 MiB polluter, as far as it evicts lines.
fn polluter() -> Polluter {
    Polluter {
        per_ms: 100_000.0,
        period_ms: 10.0,
        duty: 1.0,
        start_ms: 0.0,
        llc: 0,
        color: None,
        reuse: 0.75,
    }
}

fn priming() {
    println!("\nLoss at zero wait, 1,024 lines, mean (median) %");
    let variants: [(&str, u32, u32, bool); 6] = [
        ("touch, spill", 1, 1, true),
        ("touch 3x, spill", 3, 1, true),
        ("2 x (touch, spill)", 1, 2, true),
        ("3 x", 1, 3, true),
        ("4 x", 1, 4, true),
        ("already primed, 4 x", 1, 4, false),
    ];
    for polluted in [false, true] {
        let config = Config { polluter: polluted.then(polluter), ..still() };
        let mut sim = Sim::new(config, 1).unwrap();
        let mut memory = sim.memory(PAGES).unwrap();
        let mut losses = vec![Vec::new(); variants.len()];
        let area = spill(12_288);
        for round in 0..80 {
            for (i, &(_, touches, passes, flushed)) in variants.iter().enumerate() {
                let lines = canary(1024, round);
                if flushed {
                    memory.flush(&lines);
                }
                for _ in 0..passes {
                    (0..touches).for_each(|_| memory.load(&lines));
                    memory.load(&area);
                }
                losses[i].push(100.0 * above(&mut memory, &lines, LLC_LIMIT));
                wait(&mut memory, 5.0);
            }
        }
        println!("  polluter: {polluted}");
        for (variant, values) in variants.iter().zip(&mut losses) {
            println!("    {:20} {:5.1} ({:.1})", variant.0, mean(values), quantile(values, 0.5));
        }
    }
}

fn spilling() {
    println!("\nStill in L1/L2 after touch and one sequential spill, 1,024 lines, % (q10, median, q90)");
    let mut sim = Sim::new(still(), 2).unwrap();
    let mut memory = sim.memory(PAGES).unwrap();
    for size in [0, 8192, 12_288, 16_384] {
        let area = spill(size);
        let mut held = Vec::new();
        let mut exact = Vec::new();
        for round in 0..60 {
            let lines = canary(1024, round);
            memory.load(&lines);
            memory.load(&area);
            let inside = |memory: &mut SimMemory| {
                lines.iter().filter(|&&l| matches!(memory.place(l), Place::L1 | Place::L2)).count()
            };
            exact.push(100.0 * inside(&mut memory) as f64 / 1024.0);
            held.push(100.0 - 100.0 * above(&mut memory, &lines, L2_LIMIT));
            wait(&mut memory, 20.0);
        }
        let q = |values: &mut [f64]| [0.1, 0.5, 0.9].map(|q| quantile(values, q));
        println!("    {size:6} lines: timed {:5.1?}, exact {:5.1?}", q(&mut held), q(&mut exact));
    }
}

fn prime(memory: &mut SimMemory, lines: &[Line], area: &[Line]) {
    for _ in 0..4 {
        memory.load(lines);
        memory.load(area);
    }
}

fn survival() {
    for (name, config) in [("idle", still()), ("polluter", Config { polluter: Some(polluter()), ..still() })]
    {
        println!("\nSurvival, {name}: window ms, evicted % mean (q10, median, q90) asleep, truth %");
        let mut sim = Sim::new(config.clone(), 3).unwrap();
        let mut memory = sim.memory(PAGES).unwrap();
        let area = spill(12_288);
        let windows = [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0];
        let mut shares = vec![Vec::new(); windows.len()];
        let start = memory.now_ms();
        for round in 0..60 {
            for (i, &window) in windows.iter().enumerate() {
                let lines = canary(512, round);
                prime(&mut memory, &lines, &area);
                if window > 0.0 {
                    wait(&mut memory, window);
                }
                shares[i].push(100.0 * above(&mut memory, &lines, LLC_LIMIT));
                wait(&mut memory, 50.0);
            }
        }
        let question =
            truth::Question { llc: 0, start_ms: start..memory.now_ms(), color: None, lines: 40_000 };
        let truth = truth::survival(&config, 3, &question).unwrap();
        for (&window, values) in windows.iter().zip(&mut shares) {
            let q = [0.1, 0.5, 0.9].map(|q| quantile(values, q));
            println!("    {window:4} {:5.1} {q:5.1?}  {:5.1}", mean(values), 100.0 * truth.evicted(window));
        }
        println!("    truth: half-life {:.2} ms, 95 % {:.2?}", truth.median_ms, truth.ci95_ms);
        let shape = weibull_shape(&truth.survival_ms);
        println!("    Weibull shape of the truth {shape:.2}");
    }
}

/// Maximum-likelihood shape of a Weibull distribution, by bisection of its score equation.
fn weibull_shape(times: &[f64]) -> f64 {
    let times: Vec<f64> = times.iter().copied().filter(|t| t.is_finite() && *t > 0.0).collect();
    let mean_log = mean(&times.iter().map(|t| t.ln()).collect::<Vec<_>>());
    let score = |k: f64| {
        let weights: f64 = times.iter().map(|t| t.powf(k)).sum();
        times.iter().map(|t| t.powf(k) * t.ln()).sum::<f64>() / weights - 1.0 / k - mean_log
    };
    let (mut low, mut high) = (0.1, 20.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if score(middle) > 0.0 { high = middle } else { low = middle }
    }
    low
}

fn noise() {
    println!("\nWindows of 2 ms, ~10 ms apart: log of the constant hazard");
    for asleep in [false, true] {
        let mut sim = Sim::new(Config::milan(), 4).unwrap();
        let mut memory = sim.memory(PAGES).unwrap();
        let area = spill(12_288);
        let (mut logs, mut shares, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..1500 {
            let lines = canary(1024, round);
            prime(&mut memory, &lines, &area);
            if asleep {
                wait(&mut memory, 2.0);
            } else {
                gaps.push(spin(&mut memory, 2.0));
            }
            let share = above(&mut memory, &lines, LLC_LIMIT);
            shares.push(100.0 * share);
            logs.push((-(1.0 - share.clamp(0.5 / 1024.0, 0.999)).ln() / 2.0).ln());
            wait(&mut memory, 7.0);
        }
        let center = mean(&logs);
        let cov = |lag: usize| {
            mean(
                &(lag..logs.len()).map(|i| (logs[i] - center) * (logs[i - lag] - center)).collect::<Vec<_>>(),
            )
        };
        let acf: Vec<f64> = [1, 5, 10, 50].map(|lag| cov(lag) / cov(0)).to_vec();
        let total = shares.iter().filter(|s| **s > 97.0).count();
        let q = [0.1, 0.5, 0.9].map(|q| quantile(&mut shares, q));
        println!(
            "    asleep {asleep}: sd {:.2}, acf 10/50/100/500 ms {acf:.2?}, share {q:.1?}, > 97 %: {total} of 1500",
            cov(0).sqrt()
        );
        if !asleep {
            let q = [0.5, 0.77, 0.98, 0.99, 1.0].map(|q| quantile(&mut gaps, q));
            println!("    largest gap, ms: q50 q77 q98 q99 max {q:.2?}");
        }
    }
}

fn controls() {
    let mut sim = Sim::new(still(), 5).unwrap();
    let mut memory = sim.memory(PAGES).unwrap();
    let lines = canary(2048, 0);
    memory.flush(&lines);
    println!(
        "\nFlush control: one line a page {:.2} % false hits",
        100.0 - 100.0 * above(&mut memory, &lines, LLC_LIMIT)
    );
    let mut whole: Vec<Line> = Vec::new();
    for page in 0..32 {
        // A fixed scrambled order within the page.
        whole.extend((0..64u32).map(|i| Line::new(page, (i * 29 + 13 * (i / 8) + 7 * page) % 64)));
    }
    memory.flush(&whole);
    let seed = 12345u64;
    let mut order = whole.clone();
    order.sort_by_key(|line| {
        (line.page(), (u64::from(line.slot()) * 0x9e37_79b9 + u64::from(line.page()) * seed) % 97)
    });
    println!(
        "  whole pages, scrambled {:.1} % false hits",
        100.0 - 100.0 * above(&mut memory, &order, LLC_LIMIT)
    );
    println!("\nPriming and probing 1,024 lines");
    let area = spill(12_288);
    let lines = canary(1024, 3);
    for name in ["cold", "warm"] {
        let start = memory.now_ms();
        prime(&mut memory, &lines, &area);
        let primed = memory.now_ms();
        above(&mut memory, &lines, LLC_LIMIT);
        println!("    {name}: prime {:.2} ms, probe {:.2} ms", primed - start, memory.now_ms() - primed);
    }
}

fn capacity() {
    println!("\nResident share of N MiB after p passes (medians of 9), %");
    let pages = 8 * 1024;
    let mut sim = Sim::new(still(), 6).unwrap();
    let mut memory = sim.memory(pages).unwrap();
    for mib in [2u32, 8, 16, 24] {
        print!("    {mib:2} MiB:");
        for passes in 1..=3 {
            let mut shares = Vec::new();
            for round in 0..9u32 {
                let count = mib * 256;
                let area: Vec<Line> = (0..count)
                    .map(|i| (i * 1237 + round * 517) % count)
                    .flat_map(|page| (0..64).map(move |slot| Line::new(page, slot)))
                    .collect();
                memory.flush(&area);
                (0..passes).for_each(|_| memory.load(&area));
                spin(&mut memory, 0.02);
                let sample: Vec<Line> =
                    (0..400u32).map(|i| Line::new((i * 7919 + round) % count, (i * 37) % 64)).collect();
                shares.push(100.0 - 100.0 * above(&mut memory, &sample, LLC_LIMIT));
                wait(&mut memory, 50.0);
            }
            print!(" {:5.0}", quantile(&mut shares, 0.5));
        }
        println!();
    }
}

fn speed() {
    let mut sim = Sim::new(Config::milan(), 7).unwrap();
    let mut memory = sim.memory(PAGES).unwrap();
    let area = spill(12_288);
    let begin = Instant::now();
    let mut loads = 0u64;
    for round in 0..80 {
        let lines = canary(512, round);
        prime(&mut memory, &lines, &area);
        wait(&mut memory, [0.5, 1.0, 2.0, 4.0, 8.0][round as usize % 5]);
        above(&mut memory, &lines, LLC_LIMIT);
        loads += 4 * (512 + 12_288) + 2 * 512;
        wait(&mut memory, 120.0);
    }
    let ns = begin.elapsed().as_nanos() as f64 / loads as f64;
    let whole = begin.elapsed();
    println!("\nSpeed: {ns:.1} ns a load; {:.0} simulated s in {whole:.2?}", memory.now_ms() / 1000.0);
    let begin = Instant::now();
    let _ = truth::half_life_ms(&Config::milan(), 7, 20_000).unwrap();
    println!("       truth from 20,000 lines in {:.2?}", begin.elapsed());
}

fn main() {
    if std::env::args().nth(1).is_some_and(|arg| arg == "speed") {
        return speed();
    }
    priming();
    spilling();
    survival();
    noise();
    controls();
    capacity();
    speed();
}
