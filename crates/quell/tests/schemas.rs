//! The JSON that the real binary prints: names, types, and the rules that docs/json.md promises.

mod common;

use std::collections::BTreeSet;

use common::{json, measured, quell, run};
use quell_topology::affinity::allowed;
use serde_json::{Map, Value};

/// Fields that may be `null`, apart from the value of an estimate.
const NULLABLE: [&str; 53] = [
    "advertised_bytes",
    "agreeing",
    "agreeing_pct",
    "auc100",
    "auc50",
    "baseline_accesses",
    "broken_sets",
    "canary_pct",
    "colors",
    "compared",
    "control_pct",
    "coverage_pct",
    "cpu",
    "cpu_ms_per_s",
    "ewma_rate_pct_per_ms",
    "excess_pct",
    "fallback",
    "false_hits_pct",
    "footprint_bytes",
    "footprint_pct",
    "guest_frames",
    "guest_frames_reason",
    "hazard_per_ms",
    "hypervisor",
    "interrupted_above_ticks",
    "llc",
    "llc_reason",
    "llc_sets_per_color",
    "lost_at_once_pct",
    "median_lost_pct",
    "misfit",
    "miss_above_ticks",
    "near_max_ns",
    "probe_ms_max",
    "probe_ms_p50",
    "probe_ms_p99",
    "ratio",
    "reason",
    "rounds_to_detect",
    "rtt_ns",
    "second_pass",
    "second_pass_reason",
    "single_ticks_p10",
    "single_ticks_p50",
    "single_ticks_p90",
    "slices_pct",
    "spearman",
    "tier",
    "tier_reason",
    "valid_pct",
    "way_limited",
    "ways",
    "window_ms",
];

/// Numbers that may be negative.
const SIGNED: [&str; 4] = ["bias", "control_pct", "excess_pct", "spearman"];

/// Walks a whole answer: estimates are well-formed, numbers are possible, only what may be unknown is `null`.
fn check(name: &str, value: &Value) {
    match value {
        Value::Object(fields) => {
            if fields.contains_key("value") {
                check_estimate(name, fields);
            }
            if name == "excess_pct" {
                return; // a difference, so it may be negative
            }
            for (name, field) in fields {
                check(name, field);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| check(name, item)),
        Value::Number(number) => {
            let number = number.as_f64().unwrap();
            assert!(number >= 0.0 || SIGNED.contains(&name), "{name} is {number}");
            let of_a_whole = name.ends_with("_pct") && name != "footprint_pct" && name != "canary_pct";
            assert!(!of_a_whole || number <= 100.0, "{name} is {number} %");
        }
        // Not-a-number becomes `null` in JSON, so a `null` in any other place hides one.
        Value::Null => {
            assert!(name == "value" || NULLABLE.contains(&name), "{name} is null");
        }
        Value::String(_) | Value::Bool(_) => {}
    }
}

fn check_estimate(name: &str, fields: &Map<String, Value>) {
    let keys: Vec<&str> = fields.keys().map(String::as_str).collect();
    if fields["value"].is_null() {
        assert_eq!(keys, ["reason", "value"], "{name}");
        assert!(fields["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{name}");
        return;
    }
    assert_eq!(keys, ["ci95", "n", "value"], "{name}");
    let value = fields["value"].as_f64().unwrap_or_else(|| panic!("{name}: {fields:?}"));
    let bounds: Vec<f64> = fields["ci95"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    let slack = 1e-9 * (1.0 + value.abs());
    assert!(
        bounds.len() == 2 && bounds[0] <= value + slack && value <= bounds[1] + slack,
        "{name}: {fields:?}"
    );
    assert!(fields["n"].is_u64(), "{name}: {fields:?}");
}

/// Every field has an entry in docs/json.md.
fn check_documented(answer: &Value) {
    fn keys(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.keys().cloned());
                fields.values().for_each(|field| keys(field, found));
            }
            Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
            _ => {}
        }
    }
    let document = include_str!("../../../docs/json.md");
    let mut found = BTreeSet::new();
    keys(answer, &mut found);
    for estimate in ["value", "ci95", "n"] {
        found.remove(estimate);
    }
    let known =
        |key: &String| [format!("`{key}`"), format!("`{key}[]`")].iter().any(|name| document.contains(name));
    let missing: Vec<&String> = found.iter().filter(|key| !known(key)).collect();
    assert!(missing.is_empty(), "docs/json.md does not mention {missing:?}");
}

fn check_answer(answer: &Value, schema: &str) {
    assert_eq!(answer["schema"], schema);
    check("", answer);
    check_documented(answer);
}

/// The fields exist and are estimates.
fn estimates(of: &Value, names: &[&str]) {
    for name in names {
        assert!(of[name].as_object().is_some_and(|fields| fields.contains_key("value")), "{name} in {of}");
    }
}

/// The fields exist and are numbers, or `null` as far as [`check`] lets them.
fn numbers(of: &Value, names: &[&str]) {
    let fields = of.as_object().unwrap_or_else(|| panic!("{of} is not an object"));
    for name in names {
        let field = fields.get(*name).unwrap_or_else(|| panic!("{name} is missing in {of}"));
        assert!(field.is_number() || field.is_null(), "{name} is {field}");
    }
}

fn one_of(of: &Value, name: &str, choices: &[&str]) {
    assert!(of[name].as_str().is_some_and(|text| choices.contains(&text)), "{name} is {}", of[name]);
}

/// What one LLC's entry in a scan and a line of a watch have in common.
fn check_llc(llc: &Value) {
    assert!(llc["cpus"].as_array().is_some_and(|cpus| !cpus.is_empty()), "{llc}");
    estimates(llc, &["half_life_ms", "hazard_per_ms", "rate_pct_per_ms"]);
    numbers(llc, &["window_ms", "windows"]);
    one_of(llc, "source", &["outside", "own", "mixed", "unknown"]);
    assert!(llc["source_grounds"].is_string());
    if llc["tier"].is_null() {
        assert!(llc["tier_reason"].is_string(), "{llc}");
    } else {
        one_of(llc, "tier", &["quiet", "moderate", "heavy", "saturated"]);
        assert!(llc["tier_reason"].is_null(), "{llc}");
    }
    numbers(&llc["discarded_windows"], &["placement", "tsc_gap", "preempted"]);
    numbers(&llc["cost"], &["cpu_ms_per_s", "footprint_bytes", "footprint_pct", "canary_pct"]);
}

#[test]
fn scan() {
    let Some(text) = measured(&run(quell("scan --json --duration 2s"))) else { return };
    let answer = json(&text);
    check_answer(&answer, "quell.scan/1");
    let llcs = answer["llcs"].as_array().unwrap();
    assert!(!llcs.is_empty());
    for llc in llcs {
        check_llc(llc);
        estimates(llc, &["shape"]);
        numbers(llc, &["id", "advertised_bytes", "misfit", "lost_at_once_pct", "false_hits_pct"]);
        assert_eq!(llc["engine"], "canary");
        for point in llc["survival"].as_array().unwrap() {
            assert!(point["exposure_ms"].is_number() && point["evicted_pct"].is_number());
        }
        let usable = llc["usable_bytes"].as_object().unwrap();
        match (usable.get("lo"), usable.get("hi"), usable.get("reason")) {
            (Some(lo), Some(hi), None) => assert!(lo.as_u64().unwrap() <= hi.as_u64().unwrap()),
            (None, None, Some(reason)) => assert!(usable["value"].is_null() && reason.is_string()),
            _ => panic!("{usable:?}"),
        }
    }
    estimates(&answer["placement"], &["near_pct", "switches_per_s"]);
    for pair in answer["placement"]["pairs"].as_array().unwrap() {
        assert_eq!(pair["cpus"].as_array().unwrap().len(), 2);
        estimates(pair, &["near_pct", "switches_per_s", "near_dwell_ms", "far_dwell_ms"]);
        one_of(pair, "verdict", &["near", "far", "floating", "unknown"]);
    }
    numbers(&answer["cost"], &["cpu_ms_per_s", "footprint_bytes", "footprint_pct", "canary_pct"]);
    numbers(&answer["discarded_windows"], &["placement", "tsc_gap", "preempted"]);
    assert!(answer["verdict"].as_array().is_some_and(|sentences| !sentences.is_empty()));
    assert!(answer["notes"].is_array() && answer["duration_s"].is_number());
    assert_eq!(answer["quell_version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn watch() {
    let Some(text) = measured(&run(quell("watch --json --duration 2s"))) else { return };
    let records: Vec<Value> = text.lines().map(json).collect();
    assert!(!records.is_empty());
    for record in &records {
        check_answer(record, "quell.watch/1");
        check_llc(record);
        numbers(record, &["time_s", "llc", "period", "ewma_rate_pct_per_ms"]);
        estimates(&record["placement"], &["near_pct", "switches_per_s"]);
        numbers(&record["latency"], &["probe_ms_p50", "probe_ms_p99", "probe_ms_max"]);
        check_colors(record);
        let of_this_llc = records.iter().filter(|other| other["llc"] == record["llc"]);
        assert_eq!(of_this_llc.count(), 2, "two periods of a second");
    }
}

/// Colors are there if and only if the engine goes by them.
fn check_colors(record: &Value) {
    let colors = record["colors"].as_array().unwrap();
    one_of(record, "engine", &["canary", "color"]);
    assert_eq!(colors.is_empty(), record["engine"] == "canary");
    for color in colors {
        estimates(color, &["lost_pct", "excess_pct", "rate_pct_per_ms"]);
        numbers(color, &["color", "ewma_rate_pct_per_ms"]);
        assert_eq!(color["tier"].is_null(), color["tier_reason"].is_string(), "{color}");
    }
}

#[test]
fn watch_without_colors() {
    let Some(text) = measured(&run(quell("watch --json --engine canary --duration 1s"))) else { return };
    for record in text.lines().map(json) {
        assert_eq!(record["engine"], "canary");
        check_colors(&record);
    }
}

#[test]
fn colors() {
    let Some(text) = measured(&run(quell("colors --json --seed 3"))) else { return };
    let answer = json(&text);
    check_answer(&answer, "quell.colors/1");
    let colors = answer["colors"].as_array().unwrap();
    let labelled: u64 = colors.iter().map(|color| color["pages"].as_u64().unwrap()).sum();
    assert_eq!(labelled + answer["unknown_pages"].as_u64().unwrap(), answer["pool_pages"].as_u64().unwrap());
    assert_eq!(answer["second_pass"].is_null(), answer["second_pass_reason"].is_string());
    assert_eq!(answer["permutation_pages"].as_array().unwrap().len(), 8);
    assert!(answer["llc"].is_null() && answer["llc_reason"].is_null(), "not asked for");
}

#[test]
fn colors_check() {
    let Some(text) = measured(&run(quell("colors check --after 50ms --json"))) else { return };
    let answer = json(&text);
    check_answer(&answer, "quell.colors-check/1");
    numbers(&answer["again"], &["colors", "unknown_pages", "compared", "agreeing", "agreeing_pct"]);
}

/// Whether or not there are sets on this machine, the answer says so in one of two ways.
#[test]
fn evsets() {
    let output = run(quell("evsets --json --offsets 1 --per-color 1"));
    let complaint = common::complaint(&output);
    if output.stdout.is_empty() {
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        println!("skipped: {complaint}");
        return;
    }
    let answer = json(std::str::from_utf8(&output.stdout).unwrap());
    check_answer(&answer, "quell.evsets/1");
    let usable = answer["reason"].is_null();
    assert_eq!(output.status.code(), Some(if usable { 0 } else { 2 }), "{complaint}");
    assert!(!usable || answer["ways"].as_u64() > Some(0), "{answer}");
    assert!(answer["sets"].as_u64() <= answer["wanted"].as_u64());
    numbers(&answer["duration_ms"], &["coloring", "filtering", "building"]);
}

#[test]
fn bench_build() {
    let output = run(quell("bench build --preset milan --offsets 1 --json"));
    assert_eq!(output.status.code(), Some(0), "{}", common::complaint(&output));
    let answer = json(std::str::from_utf8(&output.stdout).unwrap());
    check_answer(&answer, "quell.build/1");
    let [milan] = &answer["presets"].as_array().unwrap()[..] else { panic!("{answer}") };
    numbers(milan, &["valid_pct", "coverage_pct", "accesses", "baseline_accesses", "sim_seconds"]);
    assert_eq!(milan["sets"], 0, "a victim cache has no minimal sets");
    assert!(milan["fallback"].as_str().unwrap().contains("did not push"), "{milan}");
}

/// Either it measures, or it says why not and ends with exit code 2.
#[test]
fn watch_with_eviction_sets() {
    let output = run(quell("watch --json --engine evset --duration 1s"));
    let complaint = common::complaint(&output);
    if output.status.code() == Some(2) {
        assert!(output.stdout.is_empty() && !complaint.is_empty(), "{complaint}");
        println!("skipped: {complaint}");
        return;
    }
    let text = measured(&output).unwrap();
    for record in text.lines().map(json) {
        assert_eq!(record["engine"], "evset");
        assert!(record["coverage_pct"].is_number() && record["broken_sets"].is_u64(), "{record}");
    }
}

#[test]
fn calibrate() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("latency.svg");
    let mut command = quell("calibrate --json --period 200ms --svg");
    command.arg(&picture);
    let output = run(command);
    common::complaint(&output);
    let answer = json(std::str::from_utf8(&output.stdout).unwrap());
    check_answer(&answer, "quell.calibrate/1");
    let failed = answer["miss_above_ticks"].is_null();
    assert_eq!(output.status.code(), Some(if failed { 2 } else { 0 }));
    assert_eq!(answer["reason"].is_string(), failed);
    let classes: Vec<&str> =
        answer["classes"].as_array().unwrap().iter().map(|class| class["name"].as_str().unwrap()).collect();
    assert_eq!(classes, ["L1/L2", "LLC", "memory"]);
    for class in answer["classes"].as_array().unwrap() {
        numbers(
            class,
            &["n", "single_ticks_p10", "single_ticks_p50", "single_ticks_p90", "chain_ticks", "chain_ns"],
        );
    }
    estimates(&answer["advice"], &["half_life_ms"]);
    numbers(&answer["advice"], &["window_ms", "configured_ms"]);
    assert!(std::fs::read_to_string(picture).unwrap().starts_with("<svg"));
}

#[test]
fn bench_detect() {
    let [polluter, probe, ..] = allowed().unwrap()[..] else {
        println!("skipped: this needs two CPUs");
        return;
    };
    let command = quell(&format!("bench detect --cpus {probe},{polluter} --rounds 10 --json"));
    let Some(text) = measured(&run(command)) else { return };
    let answer = json(&text);
    check_answer(&answer, "quell.detect/1");
    assert_eq!(answer["cpus"], serde_json::json!([probe, polluter]), "in the order given");
    for group in ["all", "near", "far"] {
        numbers(&answer[group], &["n", "spearman", "auc50", "auc100", "rounds_to_detect"]);
        assert!(answer[group]["n"].is_u64());
    }
    let samples = answer["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 10);
    for sample in samples {
        numbers(sample, &["duty_pct", "hazard_per_ms", "windows", "rtt_ns", "polluter_gb_per_s", "at_ms"]);
        one_of(sample, "placement", &["near", "far", "unknown"]);
    }
}

#[test]
fn bench_detect_color() {
    let [probe, polluter, ..] = allowed().unwrap()[..] else {
        println!("skipped: this needs two CPUs");
        return;
    };
    let command = quell(&format!("bench detect --color --cpus {probe},{polluter} --rounds 10 --json"));
    let Some(text) = measured(&run(command)) else { return };
    let answer = json(&text);
    check_answer(&answer, "quell.detect-color/1");
    for group in ["all", "near", "far", "near_control"] {
        numbers(&answer[group], &["n", "spearman", "auc50", "auc100", "rounds_to_detect"]);
    }
    assert_eq!(answer["samples"].as_array().unwrap().len(), 10);
}

#[test]
fn topo() {
    let output = run(quell("topo --json --no-probe"));
    assert_eq!(output.status.code(), Some(0), "{}", common::complaint(&output));
    let answer = json(std::str::from_utf8(&output.stdout).unwrap());
    assert_eq!(answer["schema"], "quell.topo/1");
    check_documented(&answer);
    assert!(answer["placement"].is_null() && answer["not_probed"].is_string());
}

#[test]
fn trace() {
    let golden = std::fs::File::open("../quell-trace/tests/golden/global.txt").unwrap();
    let mut command = quell("trace analyze - --json");
    command.stdin(golden);
    let output = run(command);
    assert_eq!(output.status.code(), Some(0), "{}", common::complaint(&output));
    let answer = json(std::str::from_utf8(&output.stdout).unwrap());
    assert_eq!(answer["schema"], "quell.trace/1");
    check_documented(&answer);
    let groups = answer["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 4, "three labels, and the calls without one");
    for breakdown in groups.iter().flat_map(|group| [&group["breakdown"], &group["median"]]) {
        let parts = breakdown["classes"].as_array().unwrap().iter().map(|part| &part["total_ns"]);
        let parts = parts.chain([&breakdown["unaccounted_ns"]]).map(|part| part.as_u64().unwrap());
        assert_eq!(parts.sum::<u64>(), breakdown["duration_ns"].as_u64().unwrap());
    }
}
