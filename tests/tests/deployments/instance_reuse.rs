//! Deployments whose calls reuse an instance.

use corral_tests::deployments::deploy_plugin;
use corral_tests::{Corral, concurrently, new_key, scratch_dir, wait_until};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// Deploys the plugin that counts the calls of its instance.
fn deploy(corral: &Corral, name: &str, reuse: Value) {
    deploy_plugin(corral, name, "misbehave", json!({"reuse": reuse}));
}

/// The text of a call, which must succeed.
fn call(corral: &Corral, path: &str) -> String {
    corral.post_ok(path, "").body
}

fn metric(corral: &Corral, name: &str, deployment: &str) -> f64 {
    let name = format!("corral_deployment_{name}{{deployment=\"{deployment}\"}}");
    corral.metrics().get(&name)
}

fn reused(corral: &Corral, deployment: &str) -> f64 {
    metric(corral, "instances_reused_total", deployment)
}

fn waiting(corral: &Corral, deployment: &str) -> f64 {
    metric(corral, "instances_waiting", deployment)
}

/// Waits until this many instances wait: a call's response may end a little before the call does.
fn wait_for_waiting(corral: &Corral, deployment: &str, count: f64) {
    wait_until("waiting instances", || waiting(corral, deployment) == count);
}

#[test]
fn calls_use_instance_in_turn() {
    let corral = Corral::start_with_store(&[]);
    deploy(&corral, "turns", json!({"requests": 3}));
    deploy_plugin(&corral, "fresh", "misbehave", json!({}));
    for expected in ["1", "2", "3", "1", "2"] {
        assert_eq!(call(&corral, "/turns/state"), expected);
        let left = if expected == "3" { 0.0 } else { 1.0 };
        wait_for_waiting(&corral, "turns", left);
        assert_eq!(call(&corral, "/fresh/state"), "1");
    }
    assert_eq!(reused(&corral, "turns"), 3.0);
    assert_eq!(reused(&corral, "fresh"), 0.0);
    assert_eq!(waiting(&corral, "fresh"), 0.0);
    // A new revision has instances of its own, and those of the old one end with it.
    deploy(&corral, "turns", json!({}));
    assert_eq!(call(&corral, "/turns/state"), "1");
    wait_for_waiting(&corral, "turns", 1.0);
}

#[test]
fn tenants_share_no_instance() {
    let file = scratch_dir().join("keys.toml");
    let file = file.to_str().expect("a path in UTF-8");
    let key = |tenant: &str| format!("Bearer {}", new_key(file, &["--tenant", tenant]));
    let (alice, bob) = (key("alice"), key("bob"));
    let corral = Corral::start_with_store(&["--keys", file]);
    deploy(&corral, "turns", json!({}));
    let call = |key: &str| {
        let headers = [("authorization", key)];
        corral.request("POST", "/turns/state", &headers, "").body
    };
    assert_eq!(call(&alice), "1");
    wait_for_waiting(&corral, "turns", 1.0);
    assert_eq!(call(&bob), "1");
    wait_for_waiting(&corral, "turns", 2.0);
    assert_eq!((call(&bob).as_str(), call(&alice).as_str()), ("2", "2"));
}

#[test]
fn old_instance_serves_no_call() {
    let corral = Corral::start_with_store(&[]);
    deploy(&corral, "turns", json!({"age-seconds": 0.3}));
    assert_eq!(call(&corral, "/turns/state"), "1");
    // None waits before the call ends, either: so this waits for the age first.
    std::thread::sleep(Duration::from_millis(400));
    wait_for_waiting(&corral, "turns", 0.0);
    assert_eq!(call(&corral, "/turns/state"), "1");
}

#[test]
fn failed_call_ends_instance() {
    let corral = Corral::start_with_store(&[]);
    deploy(&corral, "turns", json!({}));
    for segment in ["trap", "midtrap"] {
        assert_eq!(call(&corral, "/turns/state"), "1", "{segment}");
        wait_for_waiting(&corral, "turns", 1.0);
        // Its response may be cut.
        let _response = corral.begin_post(&format!("/turns/{segment}"), "");
        wait_for_waiting(&corral, "turns", 0.0);
    }
    // An error that the plugin returns says nothing against its instance.
    assert_eq!(call(&corral, "/turns/state"), "1");
    wait_for_waiting(&corral, "turns", 1.0);
    corral.post("/turns/refuse", "");
    wait_for_waiting(&corral, "turns", 1.0);
    assert_eq!(call(&corral, "/turns/state"), "3");
}

#[test]
fn held_handles_and_memory_end_instance() {
    let corral = Corral::start_with_store(&[]);
    let limits = json!({"reuse": {}, "limits": {"memory-mib": 16}});
    deploy_plugin(&corral, "turns", "misbehave", limits);
    for segment in ["keep", "fields"] {
        corral.post(&format!("/turns/{segment}"), "");
        wait_until("the end of the call", || {
            metric(&corral, "calls_running", "turns") == 0.0
        });
        assert_eq!(waiting(&corral, "turns"), 0.0, "{segment}");
    }
    assert_eq!(metric(&corral, "sequence_tokens", "turns"), 0.0);
    // A dropped generation leaves nothing behind.
    for _ in 0..3 {
        assert_eq!(call(&corral, "/turns/abandon"), "ok");
        wait_for_waiting(&corral, "turns", 1.0);
    }
    assert_eq!(reused(&corral, "turns"), 2.0);
}

/// What earlier calls left in the host still counts as the instance's memory.
#[test]
fn held_headers_end_instance_at_its_memory() {
    let corral = Corral::start_with_store(&[]);
    let limits = json!({"reuse": {}, "limits": {"memory-mib": 16}});
    deploy_plugin(&corral, "turns", "misbehave", limits);
    let calls = (0..12).map(|_| {
        let calls = call(&corral, "/turns/hoard");
        wait_until("the end of the call", || {
            metric(&corral, "calls_running", "turns") == 0.0
        });
        calls.parse::<u32>().expect("a number")
    });
    let most = calls.max().expect("calls");
    assert!((2..=8).contains(&most), "{most} calls with 1 MB each");
}

#[test]
fn calls_at_once_have_instances_of_their_own() {
    let corral = Corral::start_with_store(&[]);
    deploy(&corral, "turns", json!({"instances": 2}));
    let held: Vec<_> = (0..4).map(|_| corral.drip("/turns")).collect();
    wait_until("four calls", || {
        metric(&corral, "calls_running", "turns") == 4.0
    });
    assert_eq!(reused(&corral, "turns"), 0.0);
    drop(held);
    concurrently(8, &[(); 40], |()| {
        assert_eq!(call(&corral, "/turns/ok"), "ok")
    });
    wait_until("the end of all calls", || {
        metric(&corral, "calls_running", "turns") == 0.0
    });
    assert!(waiting(&corral, "turns") <= 2.0);
}

#[test]
fn each_call_logs_its_own_request() {
    let corral = Corral::start_with_store(&["--log-format", "json"]);
    deploy(&corral, "turns", json!({}));
    for _ in 0..2 {
        corral.post("/turns/log", "");
        wait_for_waiting(&corral, "turns", 1.0);
    }
    let lines = corral.cli_output(&["logs", "turns", "--json"]);
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let calls: Vec<_> = lines.map(|line| line["request_id"].to_string()).collect();
    let distinct: BTreeSet<_> = calls.iter().collect();
    assert_eq!((calls.len(), distinct.len()), (4, 2), "{calls:?}");
}
