//! Every limit of a deployment trips alone: its request gets a clear refusal, exactly that limit is counted, and
//! its neighbors notice nothing.

use corral_tests::deployments::{deploy, manifest, upload};
use corral_tests::{Corral, EventStream, Response, artifacts, raw_exchange, scratch_dir};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// One limit.
struct Row {
    /// Its name in `corral.toml`, in the metric, and of the deployment.
    limit: &'static str,
    /// The plugin that reaches it.
    plugin: &'static str,
    /// The manifest's other fields.
    more: Value,
    /// Reaches the limit at a route, checks the response, and returns how often it was reached.
    meet: fn(&Corral, &str) -> u32,
}

fn rows() -> Vec<Row> {
    let row = |limit, plugin, limits: Value, meet| Row {
        limit,
        plugin,
        more: json!({ "limits": limits }),
        meet,
    };
    vec![
        row("memory-mib", "misbehave", json!({"memory-mib": 16}), memory),
        row(
            "cpu-seconds",
            "misbehave",
            json!({"cpu-seconds": 0.25}),
            cpu,
        ),
        row(
            "time-seconds",
            "misbehave",
            json!({"time-seconds": 2.5}),
            time,
        ),
        row(
            "request-kib",
            "misbehave",
            json!({"request-kib": 3}),
            request,
        ),
        row(
            "response-kib",
            "misbehave",
            json!({"response-kib": 100}),
            response,
        ),
        row(
            "concurrent",
            "misbehave",
            json!({"concurrent": 2, "queue": 0}),
            concurrent,
        ),
        row(
            "queue",
            "misbehave",
            json!({"concurrent": 1, "queue": 1}),
            queue,
        ),
        Row {
            limit: "queue-seconds",
            plugin: "generate",
            // Its model has one sequence id, and no other test uses it.
            more: json!({"limits": {"queue-seconds": 0.2}, "models": ["second"]}),
            meet: queue_time,
        },
        row(
            "cells-percent",
            "generate",
            json!({"cells-percent": 1}),
            cells,
        ),
        row(
            "requests-per-minute",
            "misbehave",
            json!({"requests-per-minute": 3}),
            requests_per_minute,
        ),
        row(
            "tokens-per-request",
            "generate",
            json!({"tokens-per-request": 40}),
            tokens_per_request,
        ),
        row(
            "tokens-per-minute",
            "generate",
            json!({"tokens-per-minute": 40}),
            tokens_per_minute,
        ),
        row(
            "tokens-per-day",
            "generate",
            json!({"tokens-per-day": 40}),
            tokens_per_minute,
        ),
    ]
}

#[test]
fn every_limit_trips_and_counts_alone() {
    let dir = scratch_dir();
    let store = dir.to_str().expect("ours");
    let model = artifacts::long_model();
    let second = format!("second={}", model.to_str().expect("ours"));
    let arguments = ["--store", store, "--model", &second, "--max-running", "1"];
    let corral = Corral::start_with(&arguments);
    let component = |name| std::fs::read(artifacts::plugin(name)).expect("readable");
    let digests = ["misbehave", "generate"].map(|name| (name, upload(&corral, &component(name))));
    let digests = BTreeMap::from(digests);
    // Occupies the sequence id of the second model.
    let holder = manifest(
        "holder",
        &digests["generate"],
        json!({"models": ["second"]}),
    );
    deploy(&corral, &holder);
    let mut expected = BTreeMap::new();
    let asked = corral.with_neighbors(|| {
        for Row {
            limit,
            plugin,
            more,
            meet,
        } in rows()
        {
            deploy(&corral, &manifest(limit, &digests[plugin], more));
            let route = format!("/{limit}");
            let met = meet(&corral, &route);
            let labels = format!("deployment=\"{limit}\",limit=\"{limit}\"");
            expected.insert(labels, f64::from(met));
            // All samples of all deployments, so that no other limit was counted.
            let counted = corral.metrics().samples("corral_deployment_limit_total");
            assert_eq!(counted, expected, "{limit}");
        }
    });
    println!("1+1 was answered {asked} times meanwhile");
    assert!(asked >= 10, "{asked}");
    corral.wait_until_idle();
}

/// Asserts a refusal with `Retry-After`.
fn assert_retry_after(answer: &Response, status: u16, code: &str) {
    answer.problem(status, code);
    let wait = answer
        .header("retry-after")
        .and_then(|wait| wait.parse().ok());
    assert!(wait.is_some_and(|wait: u32| wait >= 1), "{answer:?}");
}

/// Asserts a response whose body is cut off after its head.
fn cut(mut stream: EventStream) {
    assert_eq!(stream.status, 200);
    stream
        .bytes(1 << 30)
        .expect_err("a broken body is not a whole one");
}

/// Starts a response that continues until dropped.
fn hold(corral: &Corral, route: &str) -> EventStream {
    let mut stream = corral.post_stream(&format!("{route}/drip"), "");
    assert_eq!(stream.line().expect("drips").as_deref(), Some("drip"));
    stream
}

fn gauge(name: &str, route: &str) -> String {
    let deployment = route.trim_start_matches('/');
    format!("corral_deployment_{name}{{deployment=\"{deployment}\"}}")
}

fn few(tokens: u32) -> String {
    json!({"prompt": "1+1=", "max_tokens": tokens}).to_string()
}

fn memory(corral: &Corral, route: &str) -> u32 {
    for _ in 0..2 {
        let detail = corral.get(&format!("{route}/hog")).problem(500, "memory");
        assert!(detail.contains("16 MiB"), "{detail}");
    }
    assert_eq!(corral.get(&format!("{route}/ok")).status, 200);
    2
}

fn cpu(corral: &Corral, route: &str) -> u32 {
    let detail = corral
        .get(&format!("{route}/spin"))
        .problem(504, "cpu-time");
    assert!(detail.contains("0.25 s"), "{detail}");
    // After the head there is no other response, but it counts.
    cut(corral.post_stream(&format!("{route}/midspin"), ""));
    2
}

fn time(corral: &Corral, route: &str) -> u32 {
    let detail = corral
        .get(&format!("{route}/sleeper"))
        .problem(504, "deadline");
    assert!(detail.contains("2.5 s"), "{detail}");
    cut(hold(corral, route));
    2
}

fn request(corral: &Corral, route: &str) -> u32 {
    let path = format!("{route}/echo");
    assert_eq!(corral.post(&path, vec![b'x'; 3 << 10]).status, 200);
    let announced = corral.post(&path, vec![b'x'; (3 << 10) + 1]);
    announced.problem(413, "request-too-large");
    // A response without a length, which has begun already.
    let body = "x".repeat(4 << 10);
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
         {length:x}\r\n{body}\r\n0\r\n\r\n"
    );
    let silence = Duration::from_secs(60);
    let answer = raw_exchange(corral.public(), request.as_bytes(), false, silence);
    let text = String::from_utf8_lossy(&answer);
    assert!(!text.contains(&body), "not all of it: {text}");
    2
}

fn response(corral: &Corral, route: &str) -> u32 {
    // Repeated, because a response that failed at once used to lose its head now and then.
    for _ in 0..30 {
        cut(corral.post_stream(&format!("{route}/flood"), ""));
    }
    30
}

fn concurrent(corral: &Corral, route: &str) -> u32 {
    let held = [hold(corral, route), hold(corral, route)];
    assert_eq!(
        corral.metrics().get_or_zero(&gauge("calls_running", route)),
        2.0
    );
    for _ in 0..3 {
        assert_retry_after(&corral.get(&format!("{route}/ok")), 503, "busy");
    }
    drop(held);
    corral.wait_until("the places are free", |metrics| {
        metrics.get_or_zero(&gauge("calls_running", route)) == 0.0
    });
    assert_eq!(corral.get(&format!("{route}/ok")).status, 200);
    3
}

fn queue(corral: &Corral, route: &str) -> u32 {
    let path = format!("{route}/ok");
    let held = hold(corral, route);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| corral.get(&path));
        corral.wait_until("one waits", |metrics| {
            metrics.get_or_zero(&gauge("calls_waiting", route)) == 1.0
        });
        for _ in 0..2 {
            assert_retry_after(&corral.get(&path), 503, "busy");
        }
        drop(held);
        let waited = waiting.join().expect("answered");
        assert_eq!(waited.status, 200, "{waited:?}");
    });
    2
}

fn queue_time(corral: &Corral, route: &str) -> u32 {
    let held = corral.endless("/holder");
    assert_retry_after(&corral.post(route, few(5)), 429, "refused");
    drop(held);
    corral.wait_until("the place is free", |metrics| {
        metrics.get_or_zero("corral_engine_sequence_ids_used{model=\"second\"}") == 0.0
    });
    assert_eq!(corral.post(route, few(5)).json()["text"], "2");
    1
}

/// One percent of the cells: 164 of 16,384.
fn cells(corral: &Corral, route: &str) -> u32 {
    let long = json!({"prompt": "1 ".repeat(200), "max_tokens": 1}).to_string();
    let refused = corral.post(route, &long);
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(refused.body.contains("164"), "{refused:?}");
    assert_eq!(corral.post("/generate", &long).status, 200);
    assert_eq!(corral.post(route, few(5)).json()["text"], "2");
    1
}

fn requests_per_minute(corral: &Corral, route: &str) -> u32 {
    let ask = || corral.get(&format!("{route}/ok"));
    for _ in 0..3 {
        assert_eq!(ask().status, 200);
    }
    for _ in 0..2 {
        assert_retry_after(&ask(), 429, "request-rate-exceeded");
    }
    2
}

fn tokens_per_request(corral: &Corral, route: &str) -> u32 {
    let limit = route.trim_start_matches('/');
    assert_eq!(corral.post(route, few(5)).json()["text"], "2");
    let detail = corral.post(route, few(400)).problem(403, "not-granted");
    assert!(detail.contains(limit), "{detail}");
    1
}

/// More than the limit is refused for good, more than what is left for a while.
fn tokens_per_minute(corral: &Corral, route: &str) -> u32 {
    let never = tokens_per_request(corral, route);
    // Each asks for more than 30 of 40 tokens, and needs at least the 4 of its prompt.
    let refused = (0..10).find_map(|_| {
        let answer = corral.post(route, few(30));
        (answer.status != 200).then_some(answer)
    });
    assert_retry_after(&refused.expect("40 tokens come to an end"), 429, "refused");
    never + 1
}

#[test]
fn full_instance_pool_is_counted() {
    let dir = scratch_dir();
    let corral = Corral::start_with(&["--store", dir.to_str().expect("ours")]);
    let component = std::fs::read(artifacts::plugin("misbehave")).expect("readable");
    let digest = upload(&corral, &component);
    // One deployment uses as many instances as it may; a second one uses the rest of the pool.
    let most = 224;
    let many = json!({"limits": {"concurrent": most, "queue": 0}});
    for name in ["many", "more", "other"] {
        deploy(&corral, &manifest(name, &digest, many.clone()));
    }
    let mut held = Vec::new();
    let refused = loop {
        let route = if held.len() < most {
            "/many/drip"
        } else {
            "/more/drip"
        };
        let mut stream = corral.post_stream(route, "");
        match stream.status {
            200 => assert_eq!(stream.line().expect("drips").as_deref(), Some("drip")),
            status => break status,
        }
        held.push(stream);
        assert!(held.len() < 1000, "the pool has an end");
    };
    assert_eq!(refused, 503);
    let instances = held.len() as f64;
    assert!(held.len() > most, "one deployment has not all of it");
    assert_retry_after(&corral.get("/other/ok"), 503, "busy");
    let metrics = corral.metrics();
    let running = |name| metrics.get_or_zero(&gauge("calls_running", name));
    assert_eq!(running("/many"), most as f64);
    assert_eq!(running("/many") + running("/more"), instances);
    assert_eq!(metrics.get("corral_plugin_instances"), instances);
    // A request that may wait gets an instance.
    std::thread::scope(|scope| {
        let sum = scope.spawn(|| corral.check_alive());
        let waiting = "corral_deployment_calls_waiting{deployment=\"/generate\"}";
        corral.wait_until("it waits", |metrics| metrics.get_or_zero(waiting) == 1.0);
        held.pop();
        sum.join().expect("the right answer");
    });
    let counted = corral.metrics().samples("corral_deployment_limit_total");
    let expected = ["more", "other"].map(|name| {
        let labels = format!("deployment=\"{name}\",limit=\"pool\"");
        (labels, 1.0)
    });
    assert_eq!(counted, BTreeMap::from(expected));
    drop(held);
    corral.wait_until_idle();
}
