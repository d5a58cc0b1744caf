//! The plots must be well-formed, deterministic, and say nothing that is not in the data.

use proptest::prelude::*;
use quell_report::svg::{
    Fit, Level, Line, SurvivalPlot, SurvivalPoint, TimeSeries, latency_histogram, survival, time_series,
};
use quell_report::{Bins, Histogram};
use roxmltree::Document;

fn latencies(bins: Bins) -> Histogram {
    let mut histogram = Histogram::new(bins);
    let spread = |center: f64| (0..200).map(move |i| center * (1.0 + 0.001 * f64::from(i % 41)));
    histogram
        .add("L2 hit", spread(40.0))
        .add("LLC hit", spread(90.0))
        .add("DRAM", spread(320.0).chain([5000.0]))
        .mark("L2 | LLC", 63.0)
        .mark("LLC | DRAM", 200.0);
    histogram
}

fn decay() -> SurvivalPlot {
    let half_life = 3.2;
    let share = |wait: f64| 0.5f64.powf(wait / half_life);
    let point = |wait_ms: f64| {
        let share = share(wait_ms);
        SurvivalPoint { wait_ms, share, ci95: Some([share - 0.05, share + 0.05]) }
    };
    SurvivalPlot {
        title: "Survival on LLC 0".to_owned(),
        points: [0.5, 1.0, 2.0, 4.0, 7.0].map(point).to_vec(),
        fit: Some(Fit {
            label: "half-life 3.2 ms (2.9-3.6)".to_owned(),
            curve: (0..=70).map(|i| f64::from(i) / 10.0).map(|wait| (wait, share(wait))).collect(),
        }),
    }
}

fn watch(values: Vec<Option<f64>>) -> TimeSeries {
    let points = values.into_iter().enumerate().map(|(second, value)| (second as f64, value)).collect();
    TimeSeries {
        title: "Evicted at 7 ms".to_owned(),
        y_label: "evicted, %".to_owned(),
        lines: vec![Line { label: "LLC 0".to_owned(), points }],
        levels: vec![Level { label: "heavy".to_owned(), at: 65.0 }],
    }
}

fn texts(svg: &str) -> Vec<String> {
    let document = Document::parse(svg).expect("well-formed XML");
    assert_eq!(document.root_element().tag_name().name(), "svg");
    let texts = document.descendants().filter(|node| node.has_tag_name("text"));
    texts.filter_map(|node| Some(node.text()?.trim().to_owned())).collect()
}

fn count(svg: &str, tag: &str) -> usize {
    Document::parse(svg).unwrap().descendants().filter(|node| node.has_tag_name(tag)).count()
}

#[test]
fn a_histogram_names_its_classes_thresholds_and_outliers() {
    for bins in [Bins::log(30.0, 1000.0, 40).unwrap(), Bins::linear(0.0, 1000.0, 40).unwrap()] {
        let svg = latency_histogram("Load latency", "ticks", &latencies(bins)).unwrap();
        let texts = texts(&svg);
        for expected in
            ["Load latency", "ticks", "L2 hit (n=200)", "DRAM (n=201, 1 outside)", "LLC | DRAM 200"]
        {
            assert!(texts.iter().any(|text| text == expected), "no \"{expected}\" in {texts:?}");
        }
    }
}

#[test]
fn a_survival_plot_without_a_fit_shows_the_points_alone() {
    let with_fit = survival(&decay()).unwrap();
    let without = survival(&SurvivalPlot { fit: None, ..decay() }).unwrap();
    assert!(texts(&with_fit).contains(&"half-life 3.2 ms (2.9-3.6)".to_owned()));
    assert!(!texts(&without).iter().any(|text| text.contains("half-life")));
    // Five points and the one in the legend.
    assert_eq!((count(&with_fit, "circle"), count(&without, "circle")), (6, 6));
}

#[test]
fn unknown_seconds_are_gaps_in_a_time_series() {
    let whole = time_series(&watch(vec![Some(30.0), Some(70.0), Some(40.0), Some(50.0)])).unwrap();
    let gap = time_series(&watch(vec![Some(30.0), Some(70.0), None, Some(50.0)])).unwrap();
    assert_eq!(count(&whole, "circle"), 4);
    assert_eq!(count(&gap, "circle"), 3);
    assert!(texts(&gap).contains(&"heavy".to_owned()));
}

#[test]
fn the_same_data_gives_the_same_document() {
    let draw = || {
        let bins = Bins::log(30.0, 1000.0, 40).unwrap();
        [
            latency_histogram("a", "ticks", &latencies(bins)).unwrap(),
            survival(&decay()).unwrap(),
            time_series(&watch(vec![Some(1.0), None])).unwrap(),
        ]
    };
    assert_eq!(draw(), draw());
}

#[test]
fn no_data_still_gives_a_document() {
    let empty = Histogram::new(Bins::linear(0.0, 1.0, 2).unwrap());
    texts(&latency_histogram("", "", &empty).unwrap());
    texts(&survival(&SurvivalPlot::default()).unwrap());
    texts(&time_series(&TimeSeries::default()).unwrap());
}

#[test]
fn labels_cannot_break_out_of_the_document() {
    let label = "</text><script>alert('\"&\u{0}\u{1b}\u{ffff}')</script>";
    let mut plot = watch(vec![Some(1.0), Some(2.0)]);
    plot.title = label.to_owned();
    plot.levels[0].label = label.to_owned();
    plot.lines.push(Line { label: label.to_owned(), points: vec![(0.0, Some(1.0))] });
    let svg = time_series(&plot).unwrap();
    assert_eq!(count(&svg, "script"), 0);
    assert!(texts(&svg).iter().any(|text| text.starts_with("</text><script>")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_time_series_draws(values: Vec<(f64, Option<f64>)>, at: f64, title: String) {
        let mut plot = watch(Vec::new());
        plot.title = title;
        plot.lines[0].points = values;
        plot.levels[0].at = at;
        texts(&time_series(&plot).unwrap());
    }

    #[test]
    fn any_survival_draws(waits: Vec<f64>, share: f64, ci95: Option<[f64; 2]>, curve: Vec<(f64, f64)>) {
        let points = waits.into_iter().map(|wait_ms| SurvivalPoint { wait_ms, share, ci95 }).collect();
        let fit = Some(Fit { label: "fit".to_owned(), curve });
        texts(&survival(&SurvivalPlot { title: String::new(), points, fit }).unwrap());
    }

    #[test]
    fn any_histogram_draws(
        lo in -1e9..1e9f64,
        width in 1e-2..1e9f64,
        bins in 1..60usize,
        values: Vec<f64>,
        at: f64,
    ) {
        for bins in [Bins::linear(lo, lo + width, bins), Bins::log(lo, lo + width, bins)].into_iter().flatten() {
            let mut histogram = Histogram::new(bins);
            histogram.add("class", values.iter().copied()).mark("threshold", at);
            texts(&latency_histogram("t", "u", &histogram).unwrap());
        }
    }
}
