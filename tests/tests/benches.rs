//! The JSON objects of `corral-bench` with the demo model, small and in one round.

use corral_tests::benches::{
    WithFile, bench, check_members, check_positive, check_refused, check_rising, count, measure,
    model, number, object, plugin, rows, text,
};
use corral_tests::{Ended, artifacts, scratch_dir};
use serde_json::{Value, json};

/// The result of one round, with the plugin if the bench takes one.
fn one_round(words: &str) -> Value {
    let mut files = vec![model()];
    if !["gap", "step"].iter().any(|name| words.starts_with(name)) {
        files.push(plugin("generate"));
    }
    measure(&format!("{words} --rounds 1"), &files)
}

#[test]
fn benches_print_one_json_object() {
    let gap = one_round("gap --streams 1 --prompts 2 --prompt-tokens 33 --threads 1");
    let names: Vec<_> = rows(&gap).iter().map(|row| &row["prefill"]).collect();
    assert_eq!(names, ["budgeted", "slot order"]);
    for row in rows(&gap) {
        check_positive(row, &["first_token_s", "short_first_token_s"]);
        check_rising(row, &["p99_ratio_min", "p99_ratio", "p99_ratio_max"]);
        check_rising(row, &["p50_s", "p99_s", "max_s"]);
        check_rising(
            row,
            &["first_token_s", "first_token_p99_s", "first_token_max_s"],
        );
    }
    let threads = one_round("threads --streams 1 --output-tokens 2");
    let threads = rows(&threads);
    // The default of `corral serve` is always measured, over both interfaces.
    for interface in ["engine", "HTTP"] {
        let default =
            |row: &&Value| row["interface"] == interface && row["ratio_to_default"] == 1.0;
        assert!(threads.iter().any(|row| default(&row)), "{threads:?}");
    }
}

#[test]
fn existing_model_is_kept() {
    let file = scratch_dir().join("random.gguf");
    let model = || {
        let file = file.to_str().expect("a path in UTF-8");
        measure(&format!("model --shape tiny {file}"), &[])
    };
    let made = model();
    assert_eq!(made["model"], "random.gguf", "{made}");
    let bytes = file.metadata().expect("a model").len();
    assert_eq!(made["bytes"], bytes, "{made}");
    check_positive(&made, &["bytes", "made_in_s"]);
    let again = model();
    assert_eq!(again["bytes"], bytes, "{again}");
    assert_eq!(again["made_in_s"], Value::Null, "{again}");
}

#[test]
fn steps_are_compared_with_rows_alone() {
    let found = one_round("step --rows 1,2 --prompt-tokens 0,4 --depth 8 --threads 1");
    assert_eq!(found["depth"], 8, "{found}");
    assert_eq!(found["rounds"], 1, "{found}");
    let model = artifacts::model();
    let name = model.file_name().and_then(|name| name.to_str());
    assert_eq!(found["model"].as_str(), name, "{found}");
    let steps: Vec<_> = rows(&found)
        .iter()
        .map(|row| (count(row, "prompt_tokens"), count(row, "rows")))
        .collect();
    assert_eq!(steps, [(0, 1), (0, 2), (4, 1), (4, 2)]);
    for row in rows(&found) {
        check_positive(row, &["median_s", "min_s", "ratio_to_alone"]);
        if row["prompt_tokens"] == 0 {
            assert_eq!(row["ratio_to_alone"], 1.0, "{row}");
        }
    }
}

#[test]
fn time_limit_ends_rounds_early() {
    // No round ends within a millisecond, and one is always measured.
    let line = "step --rows 1 --prompt-tokens 0,4 --depth 1000 --threads 1 --rounds 7 --within 0.001 --json";
    let ended = bench(line, &[model()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(object(line, &ended)["rounds"], 1, "{ended:?}");
    let message = "out of time after 1 of 7 rounds";
    assert!(ended.stderr.contains(message), "{ended:?}");
    let refused = bench(&line.replace("0.001", "soon"), &[model()]);
    check_refused(&refused, 2, &["--within", "write seconds"]);
}

#[test]
fn too_large_step_is_refused() {
    let ended = bench("step --rows 8 --prompt-tokens 511", &[model()]);
    let expected = "a step of 519 tokens, and it can have 512";
    check_refused(&ended, 2, &[expected]);
}

/// Runs `stages` with the demo model, small and in one round.
fn stages(words: &str, files: &[WithFile<'_>]) -> Ended {
    let small =
        "--rounds 1 --threads 1 --requests 5 --concurrency 2 --prompt-tokens 8 --output-tokens 4";
    let files = [&[model()], files].concat();
    bench(&format!("stages {small} {words}"), &files)
}

#[test]
fn every_stage_has_a_raw_loop() {
    let openai = artifacts::plugin("openai");
    let dir = openai.parent().expect("a directory of plugins");
    let ended = stages("--json", &[("--plugins", dir.into())]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let found = object("stages", &ended);
    assert_eq!(found["requests"], 5, "{found}");
    let stages = rows(&found);
    let numbers: Vec<_> = stages.iter().map(|one| one["stage"].as_u64()).collect();
    assert_eq!(numbers, (0..10).map(Some).collect::<Vec<_>>());
    assert_eq!(stages[0]["ratio"], 1.0, "{found}");
    for stage in stages {
        for key in [
            "tokens_per_second",
            "raw_tokens_per_second",
            "ratio",
            "ratio_min",
            "ratio_max",
            "tokens_per_step",
            "raw_tokens_per_step",
        ] {
            assert!(stage[key].as_f64() > Some(0.0), "{key} in {stage}");
        }
        assert!(stage.get("cpu_us_per_token").is_some(), "{stage}");
    }
}

#[test]
fn stages_from_4_need_plugins() {
    let ended = stages("--stages 0,3", &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("scheduler, out of step"), "{ended:?}");
    let ended = stages("--stages 7", &[]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("give --plugins"), "{ended:?}");
    let empty = scratch_dir();
    let ended = stages("", &[("--plugins", empty)]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("measure.wasm"), "{ended:?}");
}

#[test]
fn deploys_are_timed_to_first_response() {
    let found = one_round("deploy");
    assert!(found["component_bytes"].as_u64() > Some(100_000), "{found}");
    let components: Vec<_> = rows(&found).iter().map(|row| &row["component"]).collect();
    assert_eq!(
        components,
        ["new", "stored, compiled", "uploaded, compiled"]
    );
    for row in rows(&found) {
        assert_eq!(row["deploys"], 1, "{row}");
        for key in ["first_response_s", "deploy_s", "compile_s", "request_s"] {
            assert!(row[key].as_f64().expect(key) > 0.0, "{key} in {row}");
        }
    }
}

#[test]
fn shared_prefix_is_computed_once() {
    let found = one_round("prefix --prefix-tokens 100 --threads 1");
    for (prefix, interface, counts) in [
        // Prompt tokens, those from the cache, and those given to llama_decode.
        ("held", "engine", (132, 100, 32)),
        ("fork", "engine", (132, 100, 32)),
        ("cached", "engine", (132, 100, 32)),
        ("cached", "HTTP", (132, 100, 32)),
        ("whole", "HTTP", (132, 0, 132)),
    ] {
        let named = |row: &&Value| row["prefix"] == prefix && row["interface"] == interface;
        let row = rows(&found).iter().find(named).expect(prefix);
        let count = |key: &str| row[key].as_u64().expect(key);
        let counted = (
            count("prompt_tokens"),
            count("cached_tokens_min"),
            count("decoded_tokens_max"),
        );
        assert_eq!(counted, counts, "{row}");
        for key in ["first_token_s", "compute_s", "ratio_to_held"] {
            assert!(row[key].as_f64().expect(key) > 0.0, "{key} in {row}");
        }
    }
    assert_eq!(found["fork"]["forks"], 1000, "{found}");
    assert_eq!(found["fork"]["tokens_decoded"], 0, "{found}");
    assert!(found["fork"]["p99_s"].as_f64() > Some(0.0), "{found}");
}

#[test]
fn flat_measures_engine_and_http() {
    let files = [model(), plugin("generate")];
    let found = measure(
        "flat --requests 20 --prompt-tokens 8 --low-cells 256 --threads 1",
        &files,
    );
    check_members(
        &found,
        &json!({"requests": 20, "prompt_tokens": 8, "low_cells": 256}),
    );
    assert_eq!(number(&found, "idle_wakeups_per_second"), 0.0, "{found}");
    let series: Vec<_> = rows(&found)
        .iter()
        .map(|row| (text(row, "interface"), text(row, "beside")))
        .collect();
    let expected = [
        ("engine", "nothing"),
        ("HTTP", "nothing"),
        ("engine", "a high one"),
        ("HTTP", "a high one"),
    ];
    assert_eq!(series, expected);
    for row in rows(&found) {
        assert_eq!(row["requests"], 20, "{row}");
        check_positive(row, &["service_s"]);
        check_rising(row, &["service_s", "total_s"]);
        assert!(number(row, "queue_s") >= 0.0, "{row}");
        // Slopes may be negative.
        for slope in ["growth", "growth_of_block_min"] {
            number(row, slope);
        }
        for counted in ["cached_tokens", "n_kv_before", "n_kv_after", "compacted"] {
            count(row, counted);
        }
    }
    // The cache keeps no prompts this short, and no sequence is in high cells.
    let alone = json!({"cached_tokens": 0, "compacted": 0});
    check_members(&rows(&found)[0], &alone);
    assert!(count(&rows(&found)[2], "n_kv_before") >= 256, "{found}");
}

#[test]
fn flat_checks_context_and_plugin() {
    let files = [model(), plugin("generate")];
    let found = measure("flat --requests 10 --low-cells 256 --threads 1", &files);
    // Ten requests are one block, which has no slope.
    let growths = rows(&found).iter().map(|row| &row["growth_of_block_min"]);
    assert!(growths.into_iter().all(|growth| *growth == 0.0), "{found}");

    let ended = bench("flat --requests 10 --low-cells 5000 --threads 1", &files);
    let expected = [
        "--low-cells 5000 needs a context of 5001, and the model's has 4096",
        "give --low-cells 4095 or less",
    ];
    check_refused(&ended, 1, &expected);
    let other = [model(), plugin("classic")];
    let ended = bench("flat --requests 10 --low-cells 256 --threads 1", &other);
    check_refused(
        &ended,
        1,
        &["the plugin returned no token; is it 'generate'?"],
    );
    let ended = bench("flat --requests 9", &files);
    check_refused(&ended, 2, &["--requests", "9 is not in 10..=4000"]);
}

fn sampler(name: &str) -> WithFile<'static> {
    ("--sampler", artifacts::plugin(name))
}

#[test]
fn boundary_compares_loops_with_generate() {
    let files = [model(), plugin("measure"), sampler("min-p")];
    let found = measure("boundary --rounds 1 --streams 2 --output-tokens 2", &files);
    let setup = json!({"output_tokens": 2, "rounds": 1, "vocabulary": 264});
    check_members(&found, &setup);
    const GENERATE: &str = "generate: the host's loop";
    const TOP: &str = "next: the 64 likeliest";
    let names = [
        GENERATE,
        "generate with a sampling plugin",
        TOP,
        "next: whole rows of logits",
    ];
    let variants = rows(&found)
        .iter()
        .map(|row| (count(row, "streams"), text(row, "variant")));
    let expected = [1_u64, 2].map(|streams| names.map(|name| (streams, name)));
    assert_eq!(variants.collect::<Vec<_>>(), expected.concat());
    for row in rows(&found) {
        check_positive(row, &["tokens_per_second", "ratio"]);
        // There is one round.
        assert_eq!(row["ratio_min"], row["ratio"], "{row}");
        assert_eq!(row["ratio_max"], row["ratio"], "{row}");
        number(row, "over_next_s");
        match text(row, "variant") {
            GENERATE => assert_eq!(row["ratio"], 1.0, "{row}"),
            TOP => assert_eq!(row["over_next_s"], 0.0, "{row}"),
            _ => {}
        }
    }
    let times = &found["times"];
    check_positive(times, &["call_s", "instance_p50_s"]);
    // An instance starts within its request.
    check_rising(times, &["instance_p50_s", "request_p50_s", "request_p99_s"]);
    check_rising(
        times,
        &["instance_p50_s", "instance_p99_s", "request_p99_s"],
    );
}

#[test]
fn boundary_names_the_plugin_it_needs() {
    let words = "boundary --rounds 1 --streams 1 --output-tokens 2";
    let other = [model(), plugin("generate"), sampler("min-p")];
    let expected = "the plugin did not do 'generate' 2 times; is it 'measure'?";
    check_refused(&bench(words, &other), 1, &[expected]);
    let other = [model(), plugin("measure"), sampler("measure")];
    let expected = ["link sampling.sampler", "exports no corral:plugin/sampling"];
    check_refused(&bench(words, &other), 1, &expected);
    let missing = ("--plugin", scratch_dir().join("missing.wasm"));
    let other = [model(), missing, sampler("min-p")];
    let expected = ["cannot read the plugin", "missing.wasm"];
    check_refused(&bench(words, &other), 1, &expected);
    let without = [model(), plugin("measure")];
    check_refused(&bench(words, &without), 2, &["--sampler <FILE>"]);
}
