//! `grants.clocks` and `grants.random`: granted unless a manifest denies them, to a handler and its linked components.

use corral_tests::deployments::{deploy_plugin, show, upload};
use corral_tests::{Corral, Response, artifacts, wait_until};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What a plugin saw of its clocks.
struct Seen {
    /// Nanoseconds by which each clock moved while it computed.
    computing: Vec<u128>,
    /// And while it waited for 40 ms.
    waiting: Vec<u128>,
    /// Its time of day, in milliseconds.
    time: u128,
}

/// Lets the plugin `misbehave` read its clocks.
fn clocks(corral: &Corral, name: &str) -> Seen {
    let answer = corral.get(&format!("/{name}/clocks"));
    assert_eq!(answer.status, 200, "{answer:?}");
    let mut lines = answer.body.lines().map(|line| {
        let words = line.split(' ');
        Vec::from_iter(words.map(|word| word.parse::<u128>().expect(line)))
    });
    let mut line = || lines.next().expect("three lines");
    let (computing, waiting, time) = (line(), line(), line());
    assert_eq!((computing.len(), waiting.len()), (5, 5));
    Seen {
        computing,
        waiting,
        time: time[0],
    }
}

/// The time of day in milliseconds.
fn now() -> u128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("after 1970").as_millis()
}

fn text(corral: &Corral, path: &str) -> String {
    let answer = corral.get(path);
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    answer.body
}

/// Asserts that a request ended because the plugin has no random numbers.
fn check_random_denied(answer: &Response) {
    let detail = answer.problem(500, "trapped");
    assert!(detail.contains("'grants.random'"), "{detail}");
}

#[test]
fn clocks_stand_still_without_their_grant() {
    let corral = Corral::start_with_store(&[]);
    deploy_plugin(&corral, "granted", "misbehave", json!({}));
    let denied = json!({"grants": {"clocks": false}});
    deploy_plugin(&corral, "denied", "misbehave", denied);
    let seen = clocks(&corral, "granted");
    assert!(seen.computing.iter().all(|moved| *moved > 0));
    assert!(seen.waiting.iter().all(|moved| *moved >= 39_000_000));
    let start = now();
    let seen = clocks(&corral, "denied");
    let end = now();
    assert_eq!(seen.computing, [0; 5]);
    // Only its timers move them: 20 ms each.
    assert_eq!(seen.waiting, [40_000_000; 5]);
    // They began with the request.
    assert!((start..=end).contains(&(seen.time - 40)), "{}", seen.time);
    assert!(text(&corral, "/denied/random").parse::<u64>().is_ok());
    // Outcomes have no times either.
    let more = json!({"grants": {"clocks": false}});
    deploy_plugin(&corral, "timeless", "generate", more);
    let prefill = |route: &str| {
        let answer = corral.post(route, json!({"prompt": "12+7="}).to_string());
        answer.ok_json()["prefill_ms"].as_f64().expect("a number")
    };
    assert!(prefill("/generate") > 0.0);
    assert_eq!(prefill("/timeless"), 0.0);
    let page = corral.cli_output(&["show", "denied"]);
    let expected = "revision 1 has no running clocks\n";
    assert!(page.contains(expected), "{page}");
    let page = corral.cli_output(&["show", "granted"]);
    assert!(!page.contains("clocks"), "{page}");
    let grants = &show(&corral, "denied")["revisions"][0]["manifest"]["grants"];
    assert_eq!(grants["clocks"], json!(false));
    assert_eq!(grants["random"], Value::Null);
    corral.check_alive();
}

#[test]
fn stopped_clocks_begin_with_each_request() {
    let corral = Corral::start_with_store(&[]);
    let more = json!({"grants": {"clocks": false}, "reuse": {}});
    deploy_plugin(&corral, "a", "misbehave", more);
    let first = clocks(&corral, "a");
    let reused = "corral_deployment_instances_waiting{deployment=\"a\"}";
    wait_until("an idle instance", || corral.metrics().get(reused) == 1.0);
    std::thread::sleep(Duration::from_millis(200));
    let second = clocks(&corral, "a");
    assert_eq!(second.computing, [0; 5]);
    let least = first.time + 200;
    assert!(second.time >= least, "{} {}", first.time, second.time);
    let count = "corral_deployment_instances_reused_total{deployment=\"a\"}";
    assert_eq!(corral.metrics().get(count), 1.0);
}

#[test]
fn denied_random_numbers_end_the_request() {
    let corral = Corral::start_with_store(&[]);
    deploy_plugin(&corral, "granted", "misbehave", json!({}));
    let denied = json!({"grants": {"random": false}});
    deploy_plugin(&corral, "denied", "misbehave", denied);
    // WASI 0.3, and 0.2.
    for behavior in ["random", "keys"] {
        let granted = || text(&corral, &format!("/granted/{behavior}"));
        assert_ne!(granted(), granted());
        check_random_denied(&corral.get(&format!("/denied/{behavior}")));
    }
    let log = corral.cli_output(&["logs", "denied"]);
    let expected = "error: the plugin was stopped: it called 'wasi:random/random'";
    assert!(log.contains(expected), "{log}");
    // Insecure numbers are the same in each instance.
    let insecure = |name: &str| text(&corral, &format!("/{name}/insecure"));
    assert_ne!(insecure("granted"), insecure("granted"));
    assert_eq!(insecure("denied"), insecure("denied"));
    assert_eq!(text(&corral, "/denied/ok"), "ok");
    assert!(clocks(&corral, "denied").computing[0] > 0);
    let page = corral.cli_output(&["show", "denied"]);
    let expected = "revision 1 has no random numbers\n";
    assert!(page.contains(expected), "{page}");
    corral.check_alive();
}

#[test]
fn linked_components_are_denied_what_their_handler_is() {
    let corral = Corral::start_with_store(&[]);
    let middleware = upload(&corral, &artifacts::component("middleware"));
    let denied = json!({"clocks": false, "random": false});
    for (name, grants, inherit) in [
        ("granted", json!({}), false),
        ("denied", denied.clone(), false),
        ("inheriting", denied, true),
    ] {
        let middleware = json!([{"component": middleware, "inherit": inherit}]);
        let more = json!({"grants": grants, "linked": {"middleware": middleware}});
        deploy_plugin(&corral, name, "misbehave", more);
    }
    let ask = |name: &str, word: &str| {
        let path = format!("/{name}/ok");
        corral.request("POST", &path, &[("x-middleware", word)], "")
    };
    assert_ne!(ask("granted", "keys").body, ask("granted", "keys").body);
    assert_ne!(ask("granted", "clock").body, "0");
    for name in ["denied", "inheriting"] {
        assert_eq!(ask(name, "pass").body, "ok");
        assert_eq!(ask(name, "clock").body, "0");
        check_random_denied(&ask(name, "keys"));
    }
    corral.check_alive();
}
