//! The workload on the machine that runs the tests, whatever it is.

use std::time::Duration;

use quell_migrate::{Call, Case, MigrateError, Plan, SurveyOptions, Toucher, run, survey};

/// `None`, with the reason printed, where the machine forbids the system call.
fn allowed<T>(result: Result<T, MigrateError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error @ MigrateError::Syscall { call: "move_pages", .. }) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_page_of_a_noop_move_stays_and_keeps_its_content() {
    let case = |pages, touched_by| Case { call: Call::Noop, pages, touched_by, from: None, to: None };
    let two_cpus = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
    let toucher = if two_cpus { Toucher::Other } else { Toucher::Same };
    let cases = vec![case(1, Toucher::Same), case(33, toucher)];
    let plan = Plan { samples: 20, warmup: 1, cpu: 0, cases };
    let Some(samples) = allowed(run(&plan, None)) else { return };
    assert_eq!(samples.len(), 40);
    for sample in samples {
        assert_eq!(
            (sample.arrived, sample.misplaced, sample.corrupt),
            (sample.case.pages, 0, 0),
            "{sample:?}"
        );
    }
}

#[test]
fn the_affinity_is_given_back() {
    let before = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let case = Case { call: Call::Query, pages: 2, touched_by: Toucher::Same, from: None, to: None };
    if allowed(run(&Plan { samples: 1, warmup: 0, cpu: 0, cases: vec![case] }, None)).is_none() {
        return;
    }
    let after = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let cpus = |text: &str| text.lines().find(|line| line.starts_with("Cpus_allowed:")).unwrap().to_owned();
    assert_eq!(cpus(&before), cpus(&after));
}

#[test]
fn a_survey_has_every_size_and_its_schema() {
    let options = SurveyOptions {
        pages: vec![1, 8],
        samples: 100,
        budget: Some(Duration::from_secs(3600)),
        ..SurveyOptions::default()
    };
    let Some(survey) = allowed(survey(&options)) else { return };
    assert!(survey.cases.iter().all(|summary| summary.samples == 100 && summary.corrupt_pages == 0));
    assert_eq!(survey.cases.iter().filter(|summary| summary.case.call == Call::Noop).count(), 2);
    assert_eq!(survey.recommendation.as_ref().unwrap().pages, Some(8));
    let json = serde_json::to_value(&survey).unwrap();
    assert_eq!(json["schema"], "quell.migrate/1");
    assert_eq!(json["cases"][0]["call"], "query");
}
