use rand::RngExt;

use super::*;

fn sample(pages: u32, value: f64, failed: u64) -> Measurement {
    Measurement {
        metric: String::from("move_pages"),
        dimensions: BTreeMap::from([(String::from("pages"), pages.to_string())]),
        value,
        unit: String::from("ns"),
        counts: BTreeMap::from([(String::from("failed"), failed)]),
    }
}

fn arms() -> Vec<String> {
    vec![String::from("a"), String::from("b")]
}

fn guest(arm: &str, samples: Vec<Measurement>) -> GuestSamples {
    GuestSamples { arm: arm.to_owned(), samples }
}

/// Guests whose level differs from one to the next and drifts with time, as on a shared host.
fn noisy(arm: &str, scale: f64, drift: f64, rng: &mut Xoshiro256PlusPlus) -> GuestSamples {
    let level = scale * (0.5 * (rng.random::<f64>() - 0.5) + drift).exp();
    let value = |rng: &mut Xoshiro256PlusPlus| {
        let tail = if rng.random_bool(0.02) { 20.0 } else { 1.0 };
        level * (1.0 + rng.random::<f64>()) * tail
    };
    guest(arm, (0..60).map(|_| sample(1, value(rng), 0)).collect())
}

/// A run of 4 guests in each arm, interleaved A B B A, on a host that grows slower.
fn run(ratio: f64, rng: &mut Xoshiro256PlusPlus) -> Vec<Comparison> {
    let guests: Vec<GuestSamples> = ["a", "b", "b", "a", "a", "b", "b", "a"]
        .iter()
        .enumerate()
        .map(|(i, arm)| noisy(arm, if *arm == "a" { 100.0 * ratio } else { 100.0 }, 0.05 * i as f64, rng))
        .collect();
    Table::new(&guests).comparisons(&arms())
}

#[test]
fn equal_arms_are_no_difference_in_at_least_95_of_100_comparisons() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(95);
    let verdicts: Vec<Verdict> =
        (0..60).flat_map(|_| run(1.0, &mut rng)).map(|comparison| comparison.verdict).collect();
    let same = verdicts.iter().filter(|verdict| **verdict == Verdict::NoDifference).count();
    assert!(same * 100 >= verdicts.len() * 95, "{same} of {}", verdicts.len());
}

#[test]
fn a_tenfold_difference_is_found_with_its_direction() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(10);
    for comparison in run(10.0, &mut rng) {
        assert_eq!(comparison.verdict, Verdict::Shorter, "{comparison:?}");
        let [low, high] = comparison.ci95.unwrap();
        assert!(low > 3.0 && low <= comparison.ratio && comparison.ratio <= high, "{comparison:?}");
        assert!(comparison.statistic == "p99" || high < 35.0, "{comparison:?}");
    }
    // So few samples of the tail may leave the P99 open, but never say the opposite.
    for comparison in run(0.1, &mut rng) {
        let open = comparison.statistic == "p99" && comparison.verdict == Verdict::NoDifference;
        assert!(open || comparison.verdict == Verdict::Longer, "{comparison:?}");
    }
}

#[test]
fn few_guests_give_no_interval_and_say_why() {
    let guests: Vec<GuestSamples> =
        ["a", "b", "a", "b", "a", "b"].iter().map(|arm| guest(arm, vec![sample(1, 5.0, 0)])).collect();
    let comparison = &Table::new(&guests).comparisons(&arms())[0];
    assert_eq!((comparison.ci95, comparison.verdict), (None, Verdict::Unknown));
    let json = serde_json::to_value(comparison).unwrap();
    assert_eq!(json["ci95"], serde_json::Value::Null);
    assert_eq!(json["ci95_reason"], "fewer than 4 guests in an arm");
}

#[test]
fn summaries_keep_cells_apart_and_add_the_counts() {
    let guests = [
        guest("a", vec![sample(1, 3.0, 0), sample(16, 30.0, 2)]),
        guest("a", vec![sample(1, 1.0, 0), sample(16, 10.0, 1)]),
        guest("b", vec![sample(1, 7.0, 0)]),
    ];
    let summaries = Table::new(&guests).summaries(&arms());
    let short: Vec<_> = summaries
        .iter()
        .map(|s| {
            (s.dimensions["pages"].as_str(), s.arm.as_str(), s.guests, s.median, s.max, s.counts["failed"])
        })
        .collect();
    assert_eq!(
        short,
        [("1", "a", 2, 1.0, 3.0, 0), ("1", "b", 1, 7.0, 7.0, 0), ("16", "a", 2, 10.0, 30.0, 3)]
    );
}
