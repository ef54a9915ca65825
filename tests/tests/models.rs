//! Several models by name: loaded on demand, unloaded when unused, and isolated from each other's faults. The same
//! file under several names counts as several models.

use corral_tests::{
    Corral, MANY_CELLS, Metrics, PATIENCE, RELIABLE_SUMS, artifacts, raw_exchange, run, scratch_dir,
};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

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
    let mut line = vec![
        "--context",
        context,
        "--kv-cells",
        cells,
        "--max-running",
        "8",
    ];
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
    let answer = corral.get_admin(&format!("/models/{model}"));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

fn sample(metrics: &Metrics, family: &str, model: &str) -> f64 {
    metrics.get_or_zero(&format!("{family}{{model=\"{model}\"}}"))
}

fn is_in(metrics: &Metrics, model: &str, state: &str) -> bool {
    let labels = format!("model=\"{model}\",state=\"{state}\"");
    metrics.get_or_zero(&format!("corral_model_state{{{labels}}}")) == 1.0
}

/// Sends a request without a body to the admin listener; returns status and body.
fn admin_request(corral: &Corral, method: &str, path: &str) -> (u16, Value) {
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let answer = raw_exchange(corral.admin(), request.as_bytes(), false, PATIENCE);
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = serde_json::from_str(body).expect(&answer);
    (status.expect(head), body)
}

#[test]
fn first_model_preloads_others_load_on_demand() {
    let corral = start(&["second", "never"], &[]);
    let stderr = corral.wait_for_stderr("loaded model tiny");
    assert!(!stderr.contains("second"), "{stderr}");
    let all = corral.get_admin("/models").json();
    let states: Vec<_> = all["models"].as_array().expect("a list").iter().collect();
    let states: Vec<_> = states.iter().map(|m| (&m["model"], &m["state"])).collect();
    let expected = [
        ("tiny", "loaded"),
        ("second", "unloaded"),
        ("never", "unloaded"),
    ];
    let expected = expected.map(|(model, state)| (json!(model), json!(state)));
    assert_eq!(
        states,
        expected.each_ref().map(|(model, state)| (model, state))
    );

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
    let admin = format!("http://{}", corral.admin());
    let top = run(["top", "--admin", &admin]);
    assert!(top.stdout.contains("\nsecond: 0 running"), "{top:?}");
    assert!(top.stdout.contains("\nnever: unloaded"), "{top:?}");

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
        let so_often = sample(&metrics, "corral_model_unloads_total", "tiny");
        assert!(so_often > unloads, "{so_often} after {unloads}");
        unloads = so_often;
        let loads = sample(&metrics, "corral_model_loads_total", "tiny");
        assert_eq!(loads, unloads);
        assert_eq!(sample(&metrics, "corral_model_memory_bytes", "tiny"), 0.0);
        // Counters continue over unloading and loading.
        let now = metrics.get("corral_engine_computed_tokens_total");
        assert!(now > decoded, "{now} after {decoded}");
        decoded = now;
        corral.wait_until_idle();
        assert_eq!(
            corral.get_admin("/readyz").status,
            200,
            "it would be answered"
        );
    }
    let stream = corral.endless("/generate");
    std::thread::sleep(Duration::from_millis(450));
    assert_eq!(status(&corral, "tiny")["leases"], 1);
    let (code, problem) = admin_request(&corral, "DELETE", "/models/tiny");
    assert_eq!(
        (code, &problem["code"]),
        (409, &json!("model-in-use")),
        "{problem}"
    );
    drop(stream);
    let gone = |metrics: &Metrics| is_in(metrics, "tiny", "unloaded");
    corral.wait_until("it is unloaded", gone);
    corral.wait_until_idle();
}

#[test]
fn admin_api_loads_and_unloads() {
    let corral = start(&["second"], &["--preload", "none"]);
    assert!(!corral.stderr().contains("loading"), "{}", corral.stderr());
    let (code, told) = admin_request(&corral, "PUT", "/models/second");
    assert_eq!((code, &told["state"]), (200, &json!("loaded")), "{told}");
    ask(&corral, "second");
    // A call holds its model slightly longer than its response takes.
    corral.wait_until("nobody uses it", |metrics| {
        metrics.get("corral_model_leases") == 0.0
    });
    let (code, told) = admin_request(&corral, "DELETE", "/models/second");
    assert_eq!(code, 202, "{told}");
    corral.wait_until("it is unloaded", |metrics| {
        is_in(metrics, "second", "unloaded")
    });
    assert_eq!(
        admin_request(&corral, "DELETE", "/models/second").0,
        202,
        "it is so already"
    );
    for method in ["GET", "PUT", "DELETE"] {
        let (code, problem) = admin_request(&corral, method, "/models/third");
        assert_eq!(
            (code, &problem["code"]),
            (404, &json!("unknown-model")),
            "{method}"
        );
    }
    assert_eq!(admin_request(&corral, "POST", "/models/second").0, 405);
    assert_eq!(admin_request(&corral, "DELETE", "/models").0, 405);
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
    assert!(
        metrics.get("corral_model_unloads_total") >= 6.0,
        "{metrics:?}"
    );
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
        let told = status(&corral, "bad");
        assert_eq!(told["state"], "failed", "{told}");
        let error = told["error"].as_str().expect("why");
        assert!(error.contains(expected), "{told}");
        corral.wait_for_stderr(error);
        let (code, problem) = admin_request(&corral, "PUT", "/models/bad");
        assert_eq!(
            (code, &problem["code"]),
            (500, &json!("model-failed")),
            "{problem}"
        );
        corral.check_alive();
        assert_eq!(corral.get_admin("/readyz").status, 200);
    }
    std::fs::write(&file, &whole).expect("the scratch directory can be written");
    ask(&corral, "bad");
    corral.wait_until_idle();
    corral.signal("TERM");
    let status = corral.wait(Duration::from_secs(10));
    assert_eq!(status.code(), Some(0), "{}", corral.stderr());
    std::fs::remove_dir_all(dir).expect("it is ours");
}

#[test]
fn oversized_model_is_refused() {
    let corral = start(&[], &["--preload", "none", "--model-memory", "1"]);
    let answer = corral.post("/generate", r#"{"prompt": "1+1="}"#);
    let detail = answer.problem(500, "failed");
    assert!(
        detail.contains("all models together may use 1 MiB"),
        "{detail}"
    );
    assert_eq!(
        corral.get("/misbehave/ok").status,
        200,
        "who needs no model is answered"
    );
}

#[test]
fn broken_preloaded_model_stops_startup() {
    let dir = scratch_dir();
    let missing = named("missing", &dir.join("missing.gguf"));
    let good = named("tiny", &artifacts::model());
    let generate = artifacts::plugin("generate");
    let generate = generate.to_str().expect("UTF-8");
    let cache = artifacts::scratch().join("compiled");
    let cache = ["--cache-dir", cache.to_str().expect("UTF-8")];
    let ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let both = ["--model", &good, "--model", &missing];
    let all = [&["serve"][..], &ports, &both, &cache, &["--preload", "all"]].concat();
    let ended = run(all);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (Some(1), ""),
        "{ended:?}"
    );
    let last = ended.stderr.lines().last().expect("it says why");
    assert!(
        last.contains("cannot read") && last.contains("missing.gguf"),
        "{ended:?}"
    );
    // A command that does not use it is unaffected.
    let line = [&["run", generate][..], &both, &cache, &["--", "1+1="]].concat();
    let ended = run(line);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (Some(0), "2\n"),
        "{ended:?}"
    );
    let asked = ["--", "--model", "missing", "1+1="];
    let line = [&["run", generate][..], &both, &cache, &asked].concat();
    let ended = run(line);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stderr.contains("model missing cannot be loaded"),
        "{ended:?}"
    );
    std::fs::remove_dir_all(dir).expect("it is ours");
}

#[test]
fn shutdown_is_quick_with_waiting_calls() {
    let arguments = ["--preload", "all", "--grace-period", "1"];
    let mut corral = start_with_cells(&["second"], ["16384", MANY_CELLS], &arguments);
    let streams = corral.hold(2);
    let started = Instant::now();
    corral.signal("TERM");
    let status = corral.wait(Duration::from_secs(20));
    assert_eq!(status.code(), Some(0), "{}", corral.stderr());
    assert!(started.elapsed() < Duration::from_secs(15), "it hung");
    // Both were still running at the end of the grace period.
    assert!(corral.stderr().contains("cut off"), "{}", corral.stderr());
    drop(streams);
}
