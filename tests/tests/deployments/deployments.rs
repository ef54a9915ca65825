//! Deployments serve at once and after a restart; a refused deploy says why.

use corral_tests::artifacts::{component, unknown_export, unknown_import};
use corral_tests::deployments::{deploy, digest, manifest, show, try_deploy, upload, variant};
use corral_tests::{Corral, Response, scratch_dir, serve, wait_until};
use serde_json::{Value, json};

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
    let corral = Corral::start_in(&dir, &[]);
    corral.get("/a/env").problem(404, "no-route");
    let digest = upload(&corral, &component("misbehave"));
    assert_eq!(deploy(&corral, &versioned("a", &digest, 1)), 1);
    // The plugin sees no variable of the server.
    assert_eq!(version(&corral, "a"), "VERSION=1\n");
    // A new digest: the cache has the components of earlier runs.
    let new = variant(&component("generate"), rand::random());
    let new = upload(&corral, &new);
    deploy(&corral, &manifest("g", &new, json!({})));
    let answer = corral.generate_at("/g", &json!({"prompt": "1+1=", "max_tokens": 5}));
    assert_eq!(answer["text"], "2");
    assert_eq!(deploy(&corral, &versioned("a", &digest, 2)), 2);
    assert_eq!(version(&corral, "a"), "VERSION=2\n");
    let before = [show(&corral, "a"), show(&corral, "g")];
    drop(corral);

    let corral = Corral::start_in(&dir, &[]);
    assert_eq!(version(&corral, "a"), "VERSION=2\n");
    for (before, after) in before.iter().zip([show(&corral, "a"), show(&corral, "g")]) {
        assert_eq!(after["deployment"], before["deployment"]);
        assert_eq!(after["revisions"], before["revisions"]);
    }
    let metrics = corral.metrics();
    // Two, and the four of the command line.
    assert_eq!(metrics.get("corral_deployments"), 6.0);
    let counted = "corral_deployment_requests_total{deployment=\"a\"}";
    assert_eq!(metrics.get_or_zero(counted), 1.0);
}

/// A command, which answers no HTTP requests.
fn command() -> Vec<u8> {
    let text = r#"(component
        (core module $main (func (export "run") (result i32) (i32.const 0)))
        (core instance $main (instantiate $main))
        (func $run (result (result)) (canon lift (core func $main "run")))
        (instance $command (export "run" (func $run)))
        (export "wasi:cli/run@0.2.0" (instance $command)))"#;
    wat::parse_str(text).expect("a component")
}

/// Status and code of a refused deploy, what its manifest has, and the error. The unit tests of manifests have all mistakes.
const WRONG_MANIFESTS: &str = r#"
409 route-taken {"routes": ["/generate"]} => belongs to '/generate'
422 no-model {"models": ["large"]} => it has: tiny
400 invalid-json {"grants": {"outbound": ["x.example"]}} => 'x.example' is not the target of a grant
422 invalid-manifest {"limits": {"concurrent-requests": 225}} => at most 224 requests of one deployment at once
422 invalid-manifest {"routes": []} => 'routes' has 0 entries
400 invalid-json {"color": 1} => unknown field `color`
"#;

#[test]
fn refused_deploy_says_why() {
    let corral = Corral::start_with_store(&[]);
    let check = |digest: &str, more: Value, status, code, expected: &str| {
        let answer = try_deploy(&corral, &manifest("bad", digest, more));
        let detail = answer.problem(status, code);
        assert!(detail.contains(expected), "{detail}");
    };
    let header = "does not start with the WebAssembly header";
    for (bytes, code, expected) in [
        (b"hello".to_vec(), "not-a-component", header),
        (
            b"\0asm\x01\0\0\0".to_vec(),
            "not-a-component",
            "core WebAssembly module",
        ),
        (
            b"\0asm\x0d\0\x01\0rest".to_vec(),
            "does-not-compile",
            "cannot be compiled",
        ),
        (
            unknown_export(),
            "missing-export",
            "exports nothing that Corral can call",
        ),
        (command(), "no-handler-export", "answers no HTTP requests"),
        (
            unknown_import(),
            "unknown-import",
            "It offers: corral:inference@",
        ),
    ] {
        check(&upload(&corral, &bytes), json!({}), 422, code, expected);
    }
    let good = upload(&corral, &component("misbehave"));
    for line in WRONG_MANIFESTS.trim().lines() {
        let words: Vec<_> = line.splitn(3, ' ').collect();
        let (more, expected) = words[2].split_once(" => ").expect("an error");
        let more = serde_json::from_str(more).expect("JSON");
        let status = words[0].parse().expect("a number");
        check(&good, more, status, words[1], expected);
    }
    let missing = digest(b"never uploaded");
    try_deploy(&corral, &manifest("bad", &missing, json!({}))).problem(404, "no-component");
    let answer = corral.request_admin("PUT", &format!("/components/{missing}"), "other bytes");
    answer.problem(422, "digest-mismatch");
    let large = vec![0; (64 << 20) + 1];
    let answer = corral.request_admin("PUT", &format!("/components/{}", digest(&large)), &large);
    answer.problem(413, "component-too-large");
    // Nothing is left of the refused deploys.
    let answer = corral.request_admin("GET", "/deployments/bad", "");
    answer.problem(404, "no-deployment");
    corral.get("/bad/ok").problem(404, "no-route");
    assert_eq!(corral.metrics().get("corral_plugins_loaded"), 4.0);
    corral.check_alive();
}

/// Sends JSON to a path of the deployment `a`.
fn change(corral: &Corral, method: &str, path: &str, body: Value) -> Response {
    let path = format!("/deployments/a{path}");
    corral.request_admin(method, &path, body.to_string())
}

#[test]
fn traffic_is_split_and_rolled_back() {
    let corral = Corral::start_with_store(&[]);
    let digest = upload(&corral, &component("misbehave"));
    for number in 1..=3 {
        deploy(&corral, &versioned("a", &digest, number));
    }
    let split = |traffic: Value| change(&corral, "PUT", "/traffic", json!({"traffic": traffic}));
    let roll_back =
        |revision: Value| change(&corral, "POST", "/rollback", json!({"revision": revision}));
    let traffic = json!([{"revision": 1, "weight": 1}, {"revision": 3, "weight": 3}]);
    assert_eq!(split(traffic).status, 200);
    let answers: Vec<_> = (0..80).map(|_| version(&corral, "a")).collect();
    let firsts = answers.iter().filter(|body| *body == "VERSION=1\n").count();
    assert!((18..=22).contains(&firsts), "{firsts} of 80 are a quarter");
    assert!(!answers.contains(&"VERSION=2\n".to_owned()));

    assert_eq!(roll_back(json!(2)).status, 200);
    assert_eq!(version(&corral, "a"), "VERSION=2\n");
    assert_eq!(roll_back(Value::Null).status, 200);
    assert_eq!(show(&corral, "a")["deployment"]["traffic"][1]["weight"], 3);
    roll_back(json!(9)).problem(404, "no-revision");
    split(json!([{"revision": 1, "weight": 0}])).problem(422, "invalid-traffic");
    split(json!([])).problem(422, "invalid-traffic");
    split(json!([{"revision": 7, "weight": 1}])).problem(404, "no-revision");

    // Traffic is not split between different routes, and a new revision may start without traffic.
    let moved = manifest("a", &digest, json!({"routes": ["/b"]}));
    let answer = change(&corral, "POST", "?traffic=false", moved);
    assert_eq!(answer.json()["revision"]["number"], 4, "{answer:?}");
    corral.get("/b/env").problem(404, "no-route");
    let traffic = json!([{"revision": 3, "weight": 1}, {"revision": 4, "weight": 1}]);
    split(traffic).problem(409, "routes-differ");
    assert_eq!(roll_back(json!(4)).status, 200);
    assert_eq!(corral.get("/b/env").status, 200);
    corral.get("/a/env").problem(404, "no-route");

    assert_eq!(change(&corral, "DELETE", "", json!(null)).status, 200);
    corral.get("/b/env").problem(404, "no-route");
    change(&corral, "DELETE", "", json!(null)).problem(404, "no-deployment");
    corral.wait_until("the plugin is freed", |metrics| {
        metrics.get("corral_plugins_loaded") == 4.0
    });
}

#[test]
fn paused_deployment_finishes_running_requests() {
    let dir = scratch_dir();
    let corral = Corral::start_in(&dir, &[]);
    let digest = upload(&corral, &component("misbehave"));
    deploy(&corral, &versioned("a", &digest, 1));
    let mut running = corral.drip("/a");
    let pause = |corral: &Corral, paused: bool| {
        let answer = change(corral, "PUT", "/paused", json!({"paused": paused}));
        assert_eq!(answer.status, 200);
    };
    pause(&corral, true);
    let refused = corral.get("/a/env");
    refused.problem(503, "paused");
    refused.retry_after();
    running.next_drip();
    drop(running);
    assert_eq!(show(&corral, "a")["deployment"]["state"], "paused");
    drop(corral);
    let corral = Corral::start_in(&dir, &[]);
    corral.get("/a/env").problem(503, "paused");
    pause(&corral, false);
    assert_eq!(corral.get("/a/env").status, 200);
}

/// Why the revision of a deployment cannot serve.
fn load_error(corral: &Corral, name: &str) -> String {
    let shown = show(corral, name);
    let error = shown["deployment"]["traffic"][0]["error"].as_str();
    error
        .unwrap_or_else(|| panic!("no error in {shown}"))
        .to_owned()
}

#[test]
fn unloadable_revision_is_shown_while_others_serve() {
    let dir = scratch_dir();
    let corral = Corral::start_in(&dir, &[]);
    let misbehave = component("misbehave");
    let good = upload(&corral, &misbehave);
    let other = variant(&misbehave, 1);
    let damaged = upload(&corral, &other);
    deploy(&corral, &versioned("good", &good, 1));
    deploy(&corral, &versioned("bad", &damaged, 1));
    deploy(
        &corral,
        &manifest("late", &good, json!({"routes": ["/later"]})),
    );
    let file = corral.component_file(&damaged);
    drop(corral);
    let mut bytes = std::fs::read(&file).expect("the component is stored");
    bytes[100] ^= 1;
    std::fs::write(&file, bytes).expect("written");

    // A route of the command line takes precedence.
    let hello = format!(
        "/later={}",
        corral_tests::artifacts::plugin("hello").display()
    );
    let corral = Corral::start_in(&dir, &["--plugin", &hello]);
    assert_eq!(version(&corral, "good"), "VERSION=1\n");
    corral.get("/bad/env").problem(503, "deployment-failed");
    assert_eq!(show(&corral, "bad")["deployment"]["state"], "failed");
    for (name, expected) in [("bad", "damaged"), ("late", "belongs to '/later'")] {
        let error = load_error(&corral, name);
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(corral.get("/readyz").status, 200);
    // Another upload repairs it.
    let path = format!("/components/{damaged}");
    let answer = corral.request_admin("GET", &path, "");
    answer.problem(404, "no-component");
    upload(&corral, &other);
    deploy(&corral, &versioned("bad", &damaged, 2));
    assert_eq!(version(&corral, "bad"), "VERSION=2\n");
}

#[test]
fn unreadable_component_serves_once_readable() {
    let dir = scratch_dir();
    let corral = Corral::start_in(&dir, &[]);
    let digest = upload(&corral, &component("misbehave"));
    deploy(&corral, &versioned("a", &digest, 1));
    let file = corral.component_file(&digest);
    drop(corral);
    let backup = dir.join("backup");
    std::fs::rename(&file, &backup).expect("the component is stored");
    // The file opens but cannot be read.
    std::fs::create_dir(&file).expect("created");
    let corral = Corral::start_in(&dir, &[]);
    corral.get("/a/env").problem(503, "deployment-failed");
    let error = load_error(&corral, "a");
    assert!(error.contains("cannot be read"), "{error}");
    assert!(error.contains("retried automatically"), "{error}");
    std::fs::remove_dir(&file).expect("removed");
    std::fs::rename(&backup, &file).expect("renamed");
    wait_until("the deployment to serve", || {
        corral.get("/a/env").status == 200
    });
    assert_eq!(version(&corral, "a"), "VERSION=1\n");
    assert_eq!(show(&corral, "a")["deployment"]["state"], "serving");
}

#[test]
fn plugin_logs_can_be_read_and_followed() {
    let corral = Corral::start_with_store(&[]);
    let digest = upload(&corral, &component("misbehave"));
    deploy(&corral, &versioned("a", &digest, 1));
    assert_eq!(corral.get("/a/log").status, 200);
    let mut follower = corral.stream_admin("/deployments/a/logs?follow=true");
    assert_eq!(follower.status, 200);
    let mut next = || -> Value {
        let line = follower.line().expect("not cut off").expect("a line");
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
    assert_eq!(three["number"], 3);
    assert_eq!(three["revision"], 2);
    assert_eq!(three["request_id"], call);
    let answer = corral.request_admin("GET", "/deployments/a/logs?after=3", "");
    assert_eq!(answer.body.lines().count(), 1, "{answer:?}");
    let answer = corral.request_admin("GET", "/deployments/b/logs", "");
    answer.problem(404, "no-deployment");
    let answer = corral.request_admin("GET", "/deployments/a/logs?after=x", "");
    answer.problem(400, "invalid-query");
}

#[test]
fn store_has_one_server_and_a_token() {
    let corral = Corral::start_with_store(&[]);
    let store = corral.store().to_str().expect("a path in UTF-8");
    serve(&["--store", store]).check_error(1, &["in use by another process"]);
    serve(&["--admin", "0.0.0.0:0"]).check_error(1, &["--admin-token-file"]);
    for path in ["/deployments", "/deployments/a", "/components/x"] {
        let answer = corral.get_admin(path);
        answer.problem(401, "token-required");
        let challenge = answer.header("www-authenticate");
        assert_eq!(challenge, Some("Bearer realm=\"corral\""));
    }
    assert_eq!(corral.get_admin("/metrics").status, 200);
    let without_store = Corral::start();
    let answer = without_store.get_admin("/deployments");
    answer.problem(503, "no-store");
}
