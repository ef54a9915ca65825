//! `corral bench` with the demo model, small and in one round: what it tells programs.

use corral_tests::{Ended, artefacts, run, scratch_folder};
use serde_json::Value;
use std::ffi::OsString;

/// What a bench finds in one round, with the plugin where it takes one.
fn bench(arguments: &str) -> Value {
    let mut line = vec![OsString::from("bench")];
    line.extend(arguments.split(' ').map(OsString::from));
    line.extend(["--rounds", "1", "--json", "--model"].map(OsString::from));
    line.push(artefacts::model().into());
    if !["gap", "step"]
        .iter()
        .any(|name| arguments.starts_with(name))
    {
        line.extend(["--plugin".into(), artefacts::plugin("generate").into()]);
    }
    let ended = run(line);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let found: Value = serde_json::from_str(&ended.stdout).expect("JSON on stdout");
    let name = found["bench"].as_str().expect("its name");
    assert!(arguments.starts_with(name), "{found}");
    found
}

fn rows(found: &Value) -> &[Value] {
    found["rows"].as_array().expect("rows")
}

#[test]
fn benches_print_one_json_object() {
    let gap = bench("gap --streams 1 --prompts 2 --length 33 --threads 1");
    let names: Vec<_> = rows(&gap).iter().map(|row| &row["prefill"]).collect();
    assert_eq!(names, ["budgeted", "slot order"]);
    let threads = bench("threads --streams 1 --generate 2");
    let threads = rows(&threads);
    // What `corral serve` takes by itself is always there, both ways.
    for read_from in ["engine", "HTTP"] {
        let default =
            |row: &&Value| row["read_from"] == read_from && row["ratio_to_default"] == 1.0;
        assert!(threads.iter().any(|row| default(&row)), "{threads:?}");
    }
}

#[test]
fn each_step_is_measured_beside_its_rows_alone() {
    let found = bench("step --rows 1,2 --prompt 0,4 --cells 8 --threads 1");
    assert_eq!(found["cells"], 8, "{found}");
    assert_eq!(found["rounds"], 1, "{found}");
    let model = artefacts::model();
    let name = model.file_name().and_then(|name| name.to_str());
    assert_eq!(found["model"].as_str(), name, "{found}");
    let count = |row: &Value, key: &str| row[key].as_u64().expect("a number");
    let steps: Vec<_> = rows(&found)
        .iter()
        .map(|row| (count(row, "prompt"), count(row, "rows")))
        .collect();
    assert_eq!(steps, [(0, 1), (0, 2), (4, 1), (4, 2)]);
    for row in rows(&found) {
        for key in ["median_s", "least_s", "ratio_to_alone"] {
            assert!(row[key].as_f64() > Some(0.0), "{key} in {row}");
        }
        if row["prompt"] == 0 {
            assert_eq!(row["ratio_to_alone"], 1.0, "{row}");
        }
    }
}

#[test]
fn a_step_of_more_tokens_than_one_may_have_is_refused() {
    let mut line = ["bench", "step", "--rows", "8", "--prompt", "511"]
        .map(OsString::from)
        .to_vec();
    line.extend(["--model".into(), artefacts::model().into()]);
    let ended = run(line);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let expected = "a step of 519 tokens, and one has at most 512";
    assert!(ended.stderr.contains(expected), "{ended:?}");
}

/// `corral bench stages` with the demo model, small and in one round.
fn stages(arguments: &[OsString]) -> Ended {
    let mut line: Vec<_> = ["bench", "stages", "--rounds", "1", "--threads", "1"]
        .map(OsString::from)
        .into();
    line.extend(["--requests", "5", "--concurrency", "2"].map(OsString::from));
    line.extend(["--prompt", "8", "--generate", "4", "--model"].map(OsString::from));
    line.push(artefacts::model().into());
    line.extend_from_slice(arguments);
    run(line)
}

#[test]
fn every_stage_answers_all_requests_and_is_measured_beside_a_raw_loop() {
    let openai = artefacts::plugin("openai");
    let folder = openai.parent().expect("a folder of plugins");
    let scratch = scratch_folder();
    let chart = scratch.join("stages.svg");
    let ended = stages(&[
        "--json".into(),
        "--plugins".into(),
        folder.into(),
        "--chart".into(),
        chart.clone().into(),
    ]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let found: Value = serde_json::from_str(&ended.stdout).expect("JSON on stdout");
    assert_eq!(found["bench"], "stages", "{found}");
    assert_eq!(found["requests"], 5, "{found}");
    let stages = found["stages"].as_array().expect("stages");
    let numbers: Vec<_> = stages.iter().map(|one| one["stage"].as_u64()).collect();
    assert_eq!(numbers, (0..10).map(Some).collect::<Vec<_>>());
    assert_eq!(stages[0]["ratio"], 1.0, "{found}");
    for stage in stages {
        for key in [
            "tok_s",
            "ratio",
            "ratio_min",
            "ratio_max",
            "tok_step",
            "raw_tok_step",
        ] {
            assert!(stage[key].as_f64() > Some(0.0), "{key} in {stage}");
        }
        assert!(stage.get("cpu_us_per_token").is_some(), "{stage}");
    }
    let chart = std::fs::read_to_string(chart).expect("a chart");
    assert!(chart.contains("SSE over TCP"), "{chart}");
}

#[test]
fn stages_that_need_plugins_say_so_and_the_others_do_without() {
    let ended = stages(&["--stages".into(), "0,3".into()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("scheduler, out of step"), "{ended:?}");
    let ended = stages(&["--stages".into(), "7".into()]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("give --plugins"), "{ended:?}");
    let empty = scratch_folder();
    let ended = stages(&["--plugins".into(), empty.into()]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("measure.wasm"), "{ended:?}");
}

#[test]
fn deploys_are_measured_to_their_first_answer() {
    let found = bench("deploy");
    assert!(found["component_bytes"].as_u64() > Some(100_000), "{found}");
    let components: Vec<_> = rows(&found).iter().map(|row| &row["component"]).collect();
    assert_eq!(components, ["new", "kept, compiled", "uploaded, compiled"]);
    for row in rows(&found) {
        assert_eq!(row["deploys"], 1, "{row}");
        for key in ["first_answer_s", "deploy_s", "compile_s", "answer_s"] {
            assert!(row[key].as_f64().expect(key) > 0.0, "{key} in {row}");
        }
    }
}

#[test]
fn a_shared_prefix_is_computed_once() {
    let found = bench("prefix --length 100 --threads 1");
    for (beginning, asked_over, counts) in [
        // Prompt tokens, those in the cache, and those given to llama_decode.
        ("tail alone", "engine", (32, 0, 32)),
        ("tail alone", "HTTP", (32, 0, 32)),
        ("held", "engine", (132, 100, 32)),
        ("fork", "engine", (132, 100, 32)),
        ("cached", "engine", (132, 100, 32)),
        ("cached", "HTTP", (132, 100, 32)),
        ("whole", "HTTP", (132, 0, 132)),
    ] {
        let named = |row: &&Value| row["beginning"] == beginning && row["asked_over"] == asked_over;
        let row = rows(&found).iter().find(named).expect(beginning);
        let count = |key: &str| row[key].as_u64().expect(key);
        let counted = (
            count("prompt_tokens"),
            count("least_cached_tokens"),
            count("most_tokens_decoded"),
        );
        assert_eq!(counted, counts, "{row}");
        for key in [
            "first_token_s",
            "compute_s",
            "ratio_to_held",
            "ratio_to_tail",
        ] {
            assert!(row[key].as_f64().expect(key) > 0.0, "{key} in {row}");
        }
    }
    assert_eq!(found["fork"]["forks"], 1000, "{found}");
    assert_eq!(found["fork"]["tokens_decoded"], 0, "{found}");
    assert!(found["fork"]["p99_s"].as_f64() > Some(0.0), "{found}");
}
