//! Deployments serve at once and after a restart; a refused deploy says why.

use corral_tests::deployments::{deploy, digest, manifest, show, try_deploy, upload, variant};
use corral_tests::{Corral, artifacts, scratch_dir};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;

fn with_store(dir: &Path) -> Corral {
    let dir = dir.to_str().expect("ours");
    Corral::start_with(&["--store", dir])
}

fn component(name: &str) -> Vec<u8> {
    std::fs::read(artifacts::plugin(name)).expect("readable")
}

/// A manifest of `misbehave` whose `/env` returns `version`.
fn versioned(name: &str, digest: &str, version: u64) -> Value {
    let configuration = json!({"configuration": {"VERSION": version.to_string()}});
    manifest(name, digest, configuration)
}

fn version(corral: &Corral, name: &str) -> String {
    let answer = corral.get(&format!("/{name}/env"));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body
}

#[test]
fn deployment_serves_at_once_and_after_restart() {
    let dir = scratch_dir();
    let generate = component("generate");
    let misbehave = component("misbehave");
    let corral = with_store(&dir);
    corral.get("/a/env").problem(404, "no-route");

    let began = Instant::now();
    let digest = upload(&corral, &misbehave);
    assert_eq!(deploy(&corral, &versioned("a", &digest, 1)), 1);
    assert_eq!(version(&corral, "a"), "VERSION=1\n", "and nothing of ours");
    println!("deploy to first answer: {:?}", began.elapsed());
    // A new digest, so it was never compiled.
    let new = variant(&generate, u64::from(std::process::id()));
    let began = Instant::now();
    let new = upload(&corral, &new);
    deploy(&corral, &manifest("g", &new, json!({})));
    let answer = corral.generate_at("/g", &json!({"prompt": "1+1=", "max_tokens": 5}));
    println!("deploy to first token, compiled: {:?}", began.elapsed());
    assert_eq!(answer["text"], "2");

    assert_eq!(deploy(&corral, &versioned("a", &digest, 2)), 2);
    assert_eq!(version(&corral, "a"), "VERSION=2\n");
    let before = show(&corral, "a");
    let before_g = show(&corral, "g");
    drop(corral);

    let corral = with_store(&dir);
    assert_eq!(version(&corral, "a"), "VERSION=2\n");
    let same = |now: Value, before: Value| {
        assert_eq!(now["deployment"], before["deployment"]);
        assert_eq!(now["revisions"], before["revisions"]);
    };
    same(show(&corral, "a"), before);
    same(show(&corral, "g"), before_g);
    let metrics = corral.metrics();
    assert_eq!(
        metrics.get("corral_deployments"),
        6.0,
        "two, and four fixed"
    );
    let counted = "corral_deployment_requests_total{deployment=\"a\"}";
    assert_eq!(metrics.get_or_zero(counted), 1.0);
}

#[test]
fn refused_deploy_says_why() {
    let dir = scratch_dir();
    let corral = with_store(&dir);
    let refused = |bytes: &[u8], status, code: &str, expected: &str| {
        let digest = upload(&corral, bytes);
        let answer = try_deploy(&corral, &manifest("bad", &digest, json!({})));
        let detail = answer.problem(status, code);
        assert!(detail.contains(expected), "{detail}");
    };
    refused(
        b"hello",
        422,
        "not-a-component",
        "does not start with the WebAssembly header",
    );
    refused(
        b"\0asm\x01\0\0\0",
        422,
        "not-a-component",
        "core WebAssembly module",
    );
    refused(
        b"\0asm\x0d\0\x01\0rest",
        422,
        "does-not-compile",
        "cannot be compiled",
    );
    refused(
        &component("unknown-export"),
        422,
        "no-role",
        "exports no role",
    );
    let unknown_import = component("unknown-import");
    refused(
        &unknown_import,
        422,
        "unknown-import",
        "It offers: corral:inference@",
    );

    let good = upload(&corral, &component("misbehave"));
    for (more, status, code, expected) in [
        (
            json!({"routes": ["/generate"]}),
            409,
            "route-taken",
            "belongs to '/generate'",
        ),
        (
            json!({"models": ["large"]}),
            422,
            "no-model",
            "it has: tiny",
        ),
        (
            json!({"linked": {"sampling": {"a b": "c"}}}),
            422,
            "bad-manifest",
            "'linked.sampling.a b' is not a valid name",
        ),
        (
            json!({"grants": {"outbound": ["x.example"]}}),
            422,
            "bad-manifest",
            "allows no outbound requests",
        ),
        (
            json!({"limits": {"concurrent": 225}}),
            422,
            "bad-manifest",
            "at most 224 requests of one deployment at once",
        ),
        (
            json!({"routes": []}),
            422,
            "bad-manifest",
            "'routes' has 0 entries",
        ),
        (
            json!({"colour": 1}),
            400,
            "bad-json",
            "unknown field `colour`",
        ),
        (
            json!({"limits": {"memory-mib": 0}}),
            400,
            "bad-json",
            "out of range",
        ),
    ] {
        let answer = try_deploy(&corral, &manifest("bad", &good, more));
        let detail = answer.problem(status, code);
        assert!(detail.contains(expected), "{detail}");
    }
    let missing = digest(b"never uploaded");
    try_deploy(&corral, &manifest("bad", &missing, json!({}))).problem(404, "no-component");
    let answer = corral.request_admin("PUT", &format!("/components/{missing}"), "other bytes");
    answer.problem(422, "digest-mismatch");
    let large = vec![0; (64 << 20) + 1];
    let answer = corral.request_admin("PUT", &format!("/components/{}", digest(&large)), &large);
    answer.problem(413, "component-too-large");
    // Nothing is left of the refused deploys.
    corral
        .request_admin("GET", "/deployments/bad", "")
        .problem(404, "no-deployment");
    corral.get("/bad/ok").problem(404, "no-route");
    assert_eq!(corral.metrics().get("corral_plugins_loaded"), 4.0);
    corral.check_alive();
}

#[test]
fn traffic_is_split_rolled_back_and_paused() {
    let dir = scratch_dir();
    let corral = with_store(&dir);
    let digest = upload(&corral, &component("misbehave"));
    for number in 1..=3 {
        deploy(&corral, &versioned("a", &digest, number));
    }
    let put = |path: &str, body: Value| {
        corral.request_admin("PUT", &format!("/deployments/a/{path}"), body.to_string())
    };
    let split = json!({"traffic": [
        {"revision": 1, "weight": 1}, {"revision": 3, "weight": 3},
    ]});
    assert_eq!(put("traffic", split).status, 200);
    let answers: Vec<_> = (0..80).map(|_| version(&corral, "a")).collect();
    let firsts = answers.iter().filter(|body| *body == "VERSION=1\n").count();
    assert!((18..=22).contains(&firsts), "a quarter of 80: {firsts}");
    assert!(!answers.contains(&"VERSION=2\n".to_owned()));

    let back = |revision: Value| {
        let body = json!({ "revision": revision }).to_string();
        corral.request_admin("POST", "/deployments/a/rollback", body)
    };
    assert_eq!(back(json!(2)).status, 200);
    assert_eq!(version(&corral, "a"), "VERSION=2\n");
    assert_eq!(back(Value::Null).status, 200);
    assert_eq!(show(&corral, "a")["deployment"]["traffic"][1]["weight"], 3);
    back(json!(9)).problem(404, "no-revision");
    for (traffic, status, code) in [
        (json!([{"revision": 1, "weight": 0}]), 422, "bad-traffic"),
        (json!([]), 422, "bad-traffic"),
        (json!([{"revision": 7, "weight": 1}]), 404, "no-revision"),
    ] {
        put("traffic", json!({ "traffic": traffic })).problem(status, code);
    }

    // A running request continues while new ones are refused.
    let mut running = corral.post_stream("/a/drip", "");
    assert_eq!(running.line().expect("drips").as_deref(), Some("drip"));
    assert_eq!(put("paused", json!({"paused": true})).status, 200);
    let answer = corral.get("/a/env");
    answer.problem(503, "paused");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(running.line().expect("drips on").as_deref(), Some("drip"));
    drop(running);
    assert_eq!(show(&corral, "a")["deployment"]["state"], "paused");
    drop(corral);
    let corral = with_store(&dir);
    corral.get("/a/env").problem(503, "paused");
    let resume = json!({"paused": false}).to_string();
    corral.request_admin("PUT", "/deployments/a/paused", resume);
    assert_eq!(corral.get("/a/env").status, 200);

    // Traffic is not split between different routes, and a new revision may start without traffic.
    let moved = manifest("a", &digest, json!({"routes": ["/b"]}));
    let answer = corral.request_admin("POST", "/deployments/a?traffic=false", moved.to_string());
    assert_eq!(answer.json()["revision"]["number"], 4, "{answer:?}");
    corral.get("/b/env").problem(404, "no-route");
    let split = json!({"traffic": [
        {"revision": 3, "weight": 1}, {"revision": 4, "weight": 1},
    ]});
    let answer = corral.request_admin("PUT", "/deployments/a/traffic", split.to_string());
    answer.problem(409, "routes-differ");
    let body = json!({"revision": 4}).to_string();
    assert_eq!(
        corral
            .request_admin("POST", "/deployments/a/rollback", body)
            .status,
        200
    );
    assert_eq!(corral.get("/b/env").status, 200);
    corral.get("/a/env").problem(404, "no-route");

    assert_eq!(
        corral.request_admin("DELETE", "/deployments/a", "").status,
        200
    );
    corral.get("/b/env").problem(404, "no-route");
    corral
        .request_admin("DELETE", "/deployments/a", "")
        .problem(404, "no-deployment");
    corral.wait_until("the plugin is freed", |metrics| {
        metrics.get("corral_plugins_loaded") == 4.0
    });
}

#[test]
fn unloadable_revision_is_shown_while_others_serve() {
    let dir = scratch_dir();
    let corral = with_store(&dir);
    let misbehave = component("misbehave");
    let good = upload(&corral, &misbehave);
    let other = variant(&misbehave, 1);
    let doomed = upload(&corral, &other);
    deploy(&corral, &versioned("good", &good, 1));
    deploy(&corral, &versioned("bad", &doomed, 1));
    deploy(
        &corral,
        &manifest("late", &good, json!({"routes": ["/later"]})),
    );
    drop(corral);
    let hex = doomed.strip_prefix("sha256:").expect("a digest");
    let file = dir.join(format!("components/{hex}.wasm"));
    let mut bytes = std::fs::read(&file).expect("there");
    bytes[100] ^= 1;
    std::fs::write(&file, bytes).expect("ours");

    // A route of the command line takes precedence.
    let arguments = ["--store", dir.to_str().expect("ours")];
    let corral = Corral::start_with_routes(&[("/later", "hello")], &arguments);
    assert_eq!(version(&corral, "good"), "VERSION=1\n");
    corral.get("/bad/env").problem(503, "deployment-failed");
    let shown = show(&corral, "bad");
    assert_eq!(shown["deployment"]["state"], "failed");
    let part = &shown["deployment"]["traffic"][0];
    assert!(
        part["error"].as_str().expect("told").contains("damaged"),
        "{part}"
    );
    let shown = show(&corral, "late");
    let part = &shown["deployment"]["traffic"][0];
    assert!(
        part["error"]
            .as_str()
            .expect("told")
            .contains("belongs to '/later'"),
        "{part}"
    );
    assert_eq!(corral.get("/readyz").status, 200);
    // Another upload repairs it.
    let path = format!("/components/{doomed}");
    corral
        .request_admin("GET", &path, "")
        .problem(404, "no-component");
    upload(&corral, &other);
    deploy(&corral, &versioned("bad", &doomed, 2));
    assert_eq!(version(&corral, "bad"), "VERSION=2\n");
}

#[test]
fn unreadable_component_serves_once_readable() {
    let dir = scratch_dir();
    let corral = with_store(&dir);
    let digest = upload(&corral, &component("misbehave"));
    deploy(&corral, &versioned("a", &digest, 1));
    drop(corral);
    let hex = digest.strip_prefix("sha256:").expect("a digest");
    let file = dir.join(format!("components/{hex}.wasm"));
    let aside = dir.join("aside");
    std::fs::rename(&file, &aside).expect("there");
    // The file opens but cannot be read.
    std::fs::create_dir(&file).expect("ours");
    let corral = with_store(&dir);
    corral.get("/a/env").problem(503, "deployment-failed");
    let shown = show(&corral, "a");
    let told = shown["deployment"]["traffic"][0]["error"].as_str();
    let told = told.expect("told");
    assert!(
        told.contains("cannot be read") && told.contains("retried automatically"),
        "{told}"
    );
    std::fs::remove_dir(&file).expect("ours");
    std::fs::rename(&aside, &file).expect("ours");
    corral.wait_until("it is loaded", |metrics| {
        metrics.get("corral_plugins_loaded") == 5.0
    });
    while corral.get("/a/env").status == 503 {
        // It is loaded and about to serve.
        std::thread::yield_now();
    }
    assert_eq!(version(&corral, "a"), "VERSION=1\n");
    assert_eq!(show(&corral, "a")["deployment"]["state"], "serving");
}

#[test]
fn plugin_logs_can_be_read_and_followed() {
    let dir = scratch_dir();
    let corral = with_store(&dir);
    let digest = upload(&corral, &component("misbehave"));
    deploy(&corral, &versioned("a", &digest, 1));
    assert_eq!(corral.get("/a/log").status, 200);
    let mut follower = corral.stream_admin("/deployments/a/logs?follow=true");
    assert_eq!(follower.status, 200);
    let mut next = || -> Value {
        let line = follower.line().expect("it goes on").expect("it goes on");
        serde_json::from_str(&line).expect("a line is JSON")
    };
    let (one, two) = (next(), next());
    let mut streams = [one["stream"].clone(), two["stream"].clone()];
    streams.sort_by_key(Value::to_string);
    assert_eq!(streams, ["stderr", "stdout"]);
    assert_eq!((&one["number"], &two["number"]), (&json!(1), &json!(2)));
    assert_eq!(one["revision"], 1);
    assert_eq!(one["request_id"], two["request_id"]);
    deploy(&corral, &versioned("a", &digest, 2));
    let answer = corral.get("/a/log");
    let call = answer.header("x-request-id").expect("named");
    let three = next();
    assert_eq!(
        (&three["number"], &three["revision"]),
        (&json!(3), &json!(2))
    );
    assert_eq!(three["request_id"], call);
    let answer = corral.request_admin("GET", "/deployments/a/logs?after=3", "");
    assert_eq!(answer.body.lines().count(), 1, "{answer:?}");
    corral
        .request_admin("GET", "/deployments/b/logs", "")
        .problem(404, "no-deployment");
    corral
        .request_admin("GET", "/deployments/a/logs?after=x", "")
        .problem(400, "bad-query");
}

#[test]
fn store_has_one_server_and_a_token() {
    let dir = scratch_dir();
    let corral = with_store(&dir);
    let model = artifacts::model();
    let model = model.to_str().expect("ours");
    let store = dir.to_str().expect("ours");
    let serve = ["serve", "--model", model, "--listen", "127.0.0.1:0"];
    let ended =
        corral_tests::run(
            serve
                .iter()
                .chain(&["--admin", "127.0.0.1:0", "--store", store]),
        );
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stderr.contains("in use by another process"),
        "{ended:?}"
    );
    let ended = corral_tests::run(serve.iter().chain(&["--admin", "0.0.0.0:0"]));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("--admin-token-file"), "{ended:?}");
    for path in ["/deployments", "/deployments/a", "/components/x"] {
        let answer = corral.get_admin(path);
        answer.problem(401, "token-required");
        assert_eq!(
            answer.header("www-authenticate"),
            Some("Bearer realm=\"corral\"")
        );
    }
    assert_eq!(corral.get_admin("/metrics").status, 200);
    let without = Corral::start();
    without
        .get_admin("/deployments")
        .problem(401, "token-required");
}
