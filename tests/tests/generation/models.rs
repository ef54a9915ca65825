//! Several models by name: loaded on demand, unloaded when unused, and isolated from each other's faults. The same
//! file under several names counts as several models.

use corral_tests::{
    Corral, MANY_CELLS, Metrics, RELIABLE_SUMS, artifacts, run_plugin, scratch_dir, serve, words,
};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// `NAME=FILE` for a file.
fn named(name: &str, file: &Path) -> String {
    format!("{name}={}", file.to_str().expect("a path in UTF-8"))
}

/// Starts a server with the demo model under these names, each with few cells.
fn start(names: &[&str], arguments: &[&str]) -> Corral {
    start_with_cells(names, ["512", "512"], arguments)
}

/// [`start`] with another context and number of cells.
fn start_with_cells(names: &[&str], [context, cells]: [&str; 2], arguments: &[&str]) -> Corral {
    let models: Vec<_> = names
        .iter()
        .map(|name| named(name, &artifacts::long_model()))
        .collect();
    let sizes = format!("--context {context} --kv-cells {cells} --max-running 8");
    let mut line = words(&sizes);
    for model in &models {
        line.extend(["--model", model]);
    }
    line.extend(arguments);
    Corral::start_with(&line)
}

/// Asks a model some sums.
fn ask(corral: &Corral, model: &str) {
    for sum in RELIABLE_SUMS {
        let request = json!({"model": model, "prompt": sum.question(), "max_tokens": 10});
        let answer = corral.generate(&request);
        assert_eq!(answer["text"], sum.answer(), "{answer}");
        assert_eq!(answer["model"], model);
    }
}

/// The admin listener's status of a model.
fn status(corral: &Corral, model: &str) -> Value {
    corral.get_admin(&format!("/models/{model}")).ok_json()
}

fn sample(metrics: &Metrics, family: &str, model: &str) -> f64 {
    metrics.get_or_zero(&format!("{family}{{model=\"{model}\"}}"))
}

fn is_in(metrics: &Metrics, model: &str, state: &str) -> bool {
    let labels = format!("model=\"{model}\",state=\"{state}\"");
    metrics.get_or_zero(&format!("corral_model_state{{{labels}}}")) == 1.0
}

#[test]
fn first_model_preloads_others_load_on_demand() {
    let corral = start(&["second", "never"], &[]);
    let stderr = corral.wait_for_stderr("loaded model tiny");
    assert!(!stderr.contains("second"), "{stderr}");
    let all = corral.get_admin("/models").json();
    let all = all["models"].as_array().expect("a list").iter();
    let states = all.map(|model| [&model["model"], &model["state"]]);
    let expected = json!([
        ["tiny", "loaded"],
        ["second", "unloaded"],
        ["never", "unloaded"]
    ]);
    assert_eq!(json!(states.collect::<Vec<_>>()), expected);

    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| ask(&corral, "second"));
        }
    });
    ask(&corral, "tiny");
    let metrics = corral.wait_until_idle();
    let finished = "corral_engine_requests_finished_total";
    for (model, loads, answers) in [
        ("tiny", 1.0, 1.0),
        ("second", 1.0, 20.0),
        ("never", 0.0, 0.0),
    ] {
        assert_eq!(sample(&metrics, "corral_model_loads_total", model), loads);
        let all = answers * RELIABLE_SUMS.len() as f64;
        assert_eq!(sample(&metrics, finished, model), all, "{model}");
    }
    assert_eq!(metrics.get("corral_model_leases"), 0.0);
    assert!(status(&corral, "second")["memory_bytes"].as_u64() > Some(1 << 20));
    assert_eq!(status(&corral, "never")["memory_bytes"], 0);

    // Every listing shows all of them.
    let seen = corral.get_admin("/requests").json();
    assert_eq!(seen["models"][1]["state"], "loaded");
    assert_eq!(seen["models"][1]["cells"]["total"], 512);
    assert_eq!(seen["models"][2]["state"], "unloaded");
    let top = corral.cli_output(&["top"]);
    assert!(top.contains("\nsecond: - tokens/s, 0 running"), "{top}");
    assert!(top.contains("\nnever: unloaded"), "{top}");

    let unknown = corral.post("/generate", r#"{"model": "other", "prompt": "1+1="}"#);
    let detail = unknown.problem(404, "unknown-model");
    assert!(detail.contains("never"), "{detail}");
}

#[test]
fn idle_models_unload_busy_ones_stay() {
    let corral = Corral::start_with(&["--model-idle-timeout", "0.3"]);
    let (mut decoded, mut unloads) = (0.0, 0.0);
    for _ in 0..3 {
        ask(&corral, "tiny");
        let metrics = corral.wait_until("it is unloaded", |metrics| {
            is_in(metrics, "tiny", "unloaded")
        });
        // A test thread that is delayed between two sums finds the model unloaded, too.
        let now = sample(&metrics, "corral_model_unloads_total", "tiny");
        assert!(now > unloads, "{now} after {unloads}");
        unloads = now;
        let loads = sample(&metrics, "corral_model_loads_total", "tiny");
        assert_eq!(loads, unloads);
        assert_eq!(sample(&metrics, "corral_model_memory_bytes", "tiny"), 0.0);
        // Counters continue over unloading and loading.
        let now = metrics.get("corral_engine_computed_tokens_total");
        assert!(now > decoded, "{now} after {decoded}");
        decoded = now;
        corral.wait_until_idle();
        // A request would load it again.
        assert_eq!(corral.get_admin("/readyz").status, 200);
    }
    let stream = corral.endless("/generate");
    std::thread::sleep(Duration::from_millis(450));
    assert_eq!(status(&corral, "tiny")["leases"], 1);
    let refused = corral.request_admin("DELETE", "/models/tiny", "");
    refused.problem(409, "model-in-use");
    drop(stream);
    corral.wait_until("the model to be unloaded", |metrics| {
        is_in(metrics, "tiny", "unloaded")
    });
    corral.wait_until_idle();
}

#[test]
fn admin_api_loads_and_unloads() {
    let corral = start(&["second"], &["--preload", "none"]);
    assert!(!corral.stderr().contains("loading"), "{}", corral.stderr());
    let send = |method: &str, path: &str| corral.request_admin(method, path, "");
    let loaded = send("PUT", "/models/second");
    assert_eq!(loaded.ok_json()["state"], "loaded");
    ask(&corral, "second");
    // A call holds its model slightly longer than its response takes.
    corral.wait_until("the model is unused", |metrics| {
        metrics.get("corral_model_leases") == 0.0
    });
    assert_eq!(send("DELETE", "/models/second").status, 202);
    corral.wait_until("the model is unloaded", |metrics| {
        is_in(metrics, "second", "unloaded")
    });
    // An unloaded model may be unloaded again.
    assert_eq!(send("DELETE", "/models/second").status, 202);
    for method in ["GET", "PUT", "DELETE"] {
        send(method, "/models/third").problem(404, "unknown-model");
    }
    assert_eq!(send("POST", "/models/second").status, 405);
    // Names are percent-encoded in UTF-8.
    assert_eq!(send("GET", "/models/%73econd").status, 200);
    send("GET", "/models/%ff").problem(404, "no-route");
    assert_eq!(send("DELETE", "/models").status, 405);
    corral.get_admin("/modelsx").problem(404, "no-route");
    assert!(corral.get_admin("/").body.contains("/models"));
    ask(&corral, "tiny");
    ask(&corral, "second");
}

#[test]
fn three_models_alternate_in_memory_for_two() {
    let one = start(&[], &[]);
    let size = status(&one, "tiny")["memory_bytes"]
        .as_u64()
        .expect("its size");
    drop(one);
    // The estimate before loading is slightly above the real size.
    let memory = (size * 5 / 2).div_ceil(1 << 20).to_string();
    let corral = start(&["second", "third"], &["--model-memory", &memory]);
    for _ in 0..3 {
        for model in ["tiny", "second", "third"] {
            ask(&corral, model);
            let held = corral.metrics().get("corral_model_memory_bytes");
            assert!(held <= size as f64 * 2.5 + 1e6, "{held} of {memory} MiB");
        }
    }
    std::thread::scope(|scope| {
        for model in ["tiny", "second", "third"].repeat(2) {
            let corral = &corral;
            scope.spawn(move || ask(corral, model));
        }
    });
    let metrics = corral.wait_until_idle();
    let found = metrics.get("corral_model_unloads_total");
    assert!(found >= 6.0, "{metrics:?}");
    assert_eq!(metrics.get("corral_model_load_failures_total"), 0.0);
}

#[test]
fn broken_model_fails_until_file_is_replaced() {
    let dir = scratch_dir();
    let file = dir.join("broken.gguf");
    let bad = named("bad", &file);
    let mut corral = start(&[], &["--model", &bad]);
    corral.wait_for_stderr("model bad is unusable");
    let whole = std::fs::read(artifacts::model()).expect("the model can be read");
    let request = r#"{"model": "bad", "prompt": "1+1="}"#;
    for (bytes, expected) in [
        (None, "cannot read"),
        (Some(&b"once upon a time"[..]), "not a GGUF model"),
        (Some(&whole[..whole.len() / 2]), "cannot be loaded"),
    ] {
        if let Some(bytes) = bytes {
            std::fs::write(&file, bytes).expect("the scratch directory can be written");
        }
        for _ in 0..3 {
            let detail = corral.post("/generate", request).problem(500, "failed");
            assert!(detail.contains("model bad cannot be loaded"), "{detail}");
            assert!(detail.contains(expected), "{detail}");
            assert!(!detail.contains(dir.to_str().expect("UTF-8")), "{detail}");
        }
        let status = status(&corral, "bad");
        assert_eq!(status["state"], "failed", "{status}");
        let error = status["error"].as_str().expect("the cause");
        assert!(error.contains(expected), "{status}");
        corral.wait_for_stderr(error);
        let answer = corral.request_admin("PUT", "/models/bad", "");
        answer.problem(500, "model-failed");
        corral.check_alive();
        assert_eq!(corral.get_admin("/readyz").status, 200);
    }
    std::fs::write(&file, &whole).expect("the scratch directory can be written");
    ask(&corral, "bad");
    corral.wait_until_idle();
    corral.shut_down();
}

#[test]
fn oversized_model_is_refused() {
    let corral = start(&[], &["--preload", "none", "--model-memory", "1"]);
    let answer = corral.post("/generate", r#"{"prompt": "1+1="}"#);
    let detail = answer.problem(500, "failed");
    let expected = "all models together may use 1 MiB";
    assert!(detail.contains(expected), "{detail}");
    // A plugin that needs no model is served.
    assert_eq!(corral.get("/misbehave/ok").status, 200);
}

#[test]
fn broken_preloaded_model_stops_startup() {
    let missing = named("missing", &scratch_dir().join("missing.gguf"));
    let good = named("tiny", &artifacts::model());
    let ended = serve(&["--model", &good, "--model", &missing, "--preload", "all"]);
    ended.check_error(1, &["cannot read", "missing.gguf"]);
    // A command that does not use the model is unaffected.
    let generate = artifacts::plugin("generate");
    let options = ["--model", &*missing];
    let ended = run_plugin(&generate, &options, &["1+1="]);
    assert_eq!((ended.code, &*ended.stdout), (Some(0), "2\n"), "{ended:?}");
    let ended = run_plugin(&generate, &options, &["--model", "missing", "1+1="]);
    assert_eq!((ended.code, &*ended.stdout), (Some(1), ""), "{ended:?}");
    let error = "generate: the model missing cannot be loaded: ";
    assert!(ended.stderr.starts_with(error), "{ended:?}");
}

#[test]
fn grace_period_ends_with_waiting_calls() {
    let arguments = ["--preload", "all", "--grace-period", "1"];
    let mut corral = start_with_cells(&["second"], ["16384", MANY_CELLS], &arguments);
    let streams = corral.hold(2);
    corral.shut_down();
    // Both were still running at the end of the grace period.
    assert!(corral.stderr().contains("cut off"), "{}", corral.stderr());
    drop(streams);
}
