//! Benches of `corral-bench` with the demo model: what they count, how they end early, and their errors.
//! `bench_all` checks that every bench gives the figures of its targets.

use corral_tests::benches::{
    bench, bench_within, check_positive, measure, model, object, plugin, rows,
};
use corral_tests::{artifacts, run_command, scratch_dir};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longest build of components, and longest bench of them. Far above what they take, because machines are busy.
const TIMEOUT: Duration = Duration::from_secs(900);

/// The directory of the components.
fn plugins() -> (&'static str, PathBuf) {
    let dir = artifacts::plugin("measure");
    ("--plugins", dir.parent().expect("a directory").to_owned())
}

#[test]
fn existing_model_is_kept() {
    let file = scratch_dir().join("random.gguf");
    let model = || {
        let file = file.to_str().expect("a path in UTF-8");
        measure(&format!("model --shape tiny {file}"), &[])
    };
    let new = model();
    assert_eq!(new["model"], "random.gguf", "{new}");
    let bytes = file.metadata().expect("a model").len();
    assert_eq!(new["bytes"], bytes, "{new}");
    check_positive(&new, &["bytes", "made_in_s"]);
    let existing = model();
    assert_eq!(existing["bytes"], bytes, "{existing}");
    assert_eq!(existing["made_in_s"], Value::Null, "{existing}");
}

#[test]
fn time_limit_ends_rounds_early() {
    // No round ends within a millisecond, and one is always measured.
    let line = "prefix --prefix-tokens 100 --threads 1 --rounds 7 --within 0.001 --json";
    let ended = bench(line, &[model(), plugin("generate")]).check_success();
    let found = object(line, &ended);
    assert_eq!(found["rounds"], 1, "{ended:?}");
    let message = "out of time after 1 of 7 rounds";
    assert!(ended.stderr.contains(message), "{ended:?}");
}

#[test]
fn shared_prefix_is_computed_once() {
    let line = "prefix --prefix-tokens 100 --threads 1 --rounds 1";
    let found = measure(line, &[model(), plugin("generate")]);
    for (prefix, interface, counts) in [
        // Prompt tokens, those from the cache, and those given to llama_decode.
        ("held", "engine", [132, 100, 32]),
        ("fork", "engine", [132, 100, 32]),
        ("cached", "engine", [132, 100, 32]),
        ("cached", "HTTP", [132, 100, 32]),
        ("whole", "HTTP", [132, 0, 132]),
    ] {
        let named = |row: &&Value| row["prefix"] == prefix && row["interface"] == interface;
        let row = rows(&found).iter().find(named).expect(prefix);
        let counted = ["prompt_tokens", "cached_tokens_min", "decoded_tokens_max"];
        let found = counted.map(|key| &row[key]);
        assert_eq!(found, counts.map(Value::from).each_ref(), "{row}");
    }
    assert_eq!(found["fork"]["forks"], 1000, "{found}");
    assert_eq!(found["fork"]["tokens_decoded"], 0, "{found}");
}

#[test]
fn first_load_bench_measures_each_variant() {
    let found = measure("first-load --threads 1 --rounds 1", &[model()]);
    let files = rows(&found).iter().map(|row| &row["file"]);
    let variants = [
        "mapped, no check",
        "read, no check",
        "read, checked before",
        "read, first load",
    ];
    assert!(files.eq(variants.map(Value::from).iter()), "{found}");
    for row in rows(&found) {
        check_positive(
            row,
            &["first_token_s", "ratio_to_mapped", "ratio_to_unchecked"],
        );
    }
}

#[test]
fn isolation_bench_compiles_both_ways() {
    let line = "isolation --threads 1 --rounds 1";
    let found = measure(line, &[model(), plugin("generate")]);
    let inputs = rows(&found).iter().map(|row| &row["input"]);
    let expected = ["component", "grammar"].map(Value::from);
    assert!(inputs.eq(expected.iter()), "{found}");
    for row in rows(&found) {
        check_positive(row, &["unlimited_s", "limited_s", "ratio"]);
    }
}

#[test]
fn latency_drift_neither_caches_nor_compacts() {
    let line = "latency-drift --requests 10 --prompt-tokens 8 --low-cells 256 --threads 1";
    let found = measure(line, &[model(), plugin("generate")]);
    let series = rows(&found)
        .iter()
        .map(|row| [&row["interface"], &row["beside"]]);
    let expected = json!([
        ["engine", "nothing"],
        ["HTTP", "nothing"],
        ["engine", "a high one"],
        ["HTTP", "a high one"],
    ]);
    assert_eq!(json!(series.collect::<Vec<_>>()), expected);
    assert_eq!(found["idle_wakeups_per_second"], 0.0, "{found}");
    for member in ["cached_tokens", "compacted"] {
        assert_eq!(rows(&found)[0][member], 0, "{found}");
    }
    // A sequence is in high cells.
    let least = Some(256);
    assert!(rows(&found)[2]["n_kv_before"].as_u64() >= least, "{found}");
}

#[test]
fn busy_processes_and_requests_are_counted() {
    let line = "busy-cores --processes 1 --requests 3 --threads 1 --own-sessions";
    let found = measure(line, &[model(), plugin("generate")]);
    assert_eq!(found["own_sessions"], true);
    let counts = ["processes", "threads", "threads_at_end", "requests"];
    let rows = rows(&found)
        .iter()
        .inspect(|row| check_positive(row, &["median_s", "p99_s", "ratio_to_quiet"]));
    let found: Vec<_> = rows.map(|row| counts.map(|key| &row[key])).collect();
    let expected = json!([
        [0, "all", 1.0, 3],
        [1, "all", 1.0, 3],
        [0, "adaptive", 1.0, 3],
        [1, "adaptive", 1.0, 3],
    ]);
    assert_eq!(json!(found), expected);
}

#[test]
fn consoles_read_snapshots_beside_streams() {
    let line = "console --rounds 1 --seconds 1 --consoles 2 --concurrency 2 --output-tokens 20 --threads 1";
    let found = measure(line, &[model(), plugin("generate")]);
    let [closed, open] = rows(&found) else {
        panic!("{found}");
    };
    check_positive(closed, &["tokens_per_second"]);
    check_positive(open, &["tokens_per_second", "ratio", "snapshots"]);
    assert_eq!(open["consoles"], 2);
}

#[test]
fn draft_bench_compares_equal_answers() {
    let padded = scratch_dir().join("padded.gguf");
    let line = format!(
        "model --layers 12 --feed-forward 1024 {}",
        padded.to_str().expect("a path in UTF-8")
    );
    let written = measure(&line, &[("--pad", artifacts::draft_model())]);
    check_positive(&written, &["bytes"]);
    // A padded draft model with itself as its draft model: each draft is right.
    let files = [("--model", padded), ("--draft", artifacts::draft_model())];
    let line = "drafts --streams 1,2 --questions 6 --threads 1 --rounds 1";
    let found = measure(line, &files);
    for row in rows(&found) {
        let positive = [
            "plain_tokens_per_s",
            "draft_tokens_per_s",
            "ratio",
            "drafting_ratio",
        ];
        check_positive(row, &positive);
        assert!(row["accepted_ratio"].as_f64() > Some(0.9), "{row}");
        assert!(row["tokens_per_step"].as_f64() > Some(1.0), "{row}");
    }
    assert_eq!(rows(&found)[0]["different_answers"], 0, "{found}");
}

#[test]
fn language_bench_measures_each_form() {
    let dir = scratch_dir();
    let script = "../plugins/measure/languages.sh";
    let mut build = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join(script));
    build
        .arg(&dir)
        .env("CORRAL_BIN", artifacts::binary())
        .env("CORRAL_CLIENTS", artifacts::clients())
        .env("CORRAL_GO", artifacts::go())
        // That of `go.rs`, with what Go has compiled of its library.
        .env("GOCACHE", artifacts::scratch().join("go/go-build"));
    run_command(&mut build, TIMEOUT).check_success();
    let files = [
        model(),
        plugins(),
        ("--languages", dir),
        ("--wasmtime", artifacts::wasmtime()),
    ];
    let line = "languages --requests 2 --output-tokens 4 --rounds 1 --threads 1 --json";
    let ended = bench_within(TIMEOUT, line, &files).check_success();
    let found = object(line, &ended);
    let languages = ["Rust", "Python", "JavaScript", "C", "Go"];
    let reused = ["Python, instances reused", "JavaScript, reused"];
    let others = [
        "Rust, table",
        "Rust, table, initialized",
        "Rust, generate",
        "Rust, remote",
    ];
    let forms = languages.into_iter().chain(reused).chain(others);
    let found_forms = rows(&found).iter().map(|row| &row["form"]);
    assert!(found_forms.eq(forms), "{found}");
    for row in &rows(&found)[..languages.len()] {
        check_positive(row, &["deploy_s", "first_request_s", "component_mb"]);
    }
    for row in rows(&found) {
        if row["form"] != "Rust, remote" {
            check_positive(row, &["request_s", "request_ratio"]);
        }
    }
    for row in rows(&found) {
        assert!(row["token_s"].is_f64(), "{row}");
        assert!(row["token_ratio"].is_f64(), "{row}");
    }
}

#[test]
fn wrong_arguments_are_explained() {
    let missing = || ("--plugin", scratch_dir().join("missing.wasm"));
    let sampler = |name: &str| ("--sampler", artifacts::plugin(name));
    let drift = "latency-drift --requests 10 --threads 1 --low-cells";
    let stages = "stages --rounds 1 --threads 1 --requests 5 --concurrency 2 --prompt-tokens 8 --output-tokens 4";
    let overhead = "plugin-overhead --rounds 1 --streams 1 --output-tokens 2";
    let http = "http --requests 2 --connections 1 --rounds 1";
    let none_of_measure = vec![model(), ("--plugins", scratch_dir())];
    bench(stages, &none_of_measure).check_error(1, &["measure.wasm"]);
    let too_long = "--low-cells 5000 needs a context of 5001, and the model's has 4096";
    let files = [model(), plugin("generate")];
    bench(&format!("{drift} 5000"), &files).check_error(1, &[too_long]);
    let no_token = "the plugin returned no token; is it 'generate'?";
    let files = [model(), plugin("wasi-p2-handler")];
    bench(&format!("{drift} 256"), &files).check_error(1, &[no_token]);
    let not_done = "the plugin did not do 'generate' 2 times; is it 'measure'?";
    let no_export = "exports no corral:plugin/sampling";
    let no_file = "cannot read the plugin";
    for (plugin, sampler_name, expected) in [
        (plugin("generate"), "min-p", not_done),
        (plugin("measure"), "measure", no_export),
        (missing(), "min-p", no_file),
    ] {
        let files = [model(), plugin, sampler(sampler_name)];
        bench(overhead, &files).check_error(1, &[expected]);
    }
    let files = [model(), plugins(), ("--languages", scratch_dir())];
    let unbuilt = "measure-python.wasm; build it with";
    bench("languages --rounds 1", &files).check_error(1, &[unbuilt]);
    bench(http, &[missing()]).check_error(1, &[no_file]);
    let with_model = "is it the right server, with the right plugin?";
    bench(http, &[plugin("generate")]).check_error(1, &[with_model]);
}
