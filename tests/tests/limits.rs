//! Every limit of a deployment trips alone: its request gets a clear refusal, exactly that limit is counted, and
//! its neighbors notice nothing.

use corral_tests::artifacts::{component, long_model};
use corral_tests::deployments::{deploy, deploy_plugin, manifest, upload};
use corral_tests::{Corral, Response, TIMEOUT, raw_exchange, wait_until};
use serde_json::{Value, json};
use std::cell::Cell;
use std::collections::BTreeMap;

/// One limit.
struct Row {
    /// Its name in `corral.toml`, in the metric, and of the deployment.
    limit: &'static str,
    /// The plugin that reaches it.
    plugin: &'static str,
    /// The limits in the manifest.
    limits: Value,
    /// Reaches the limit at a route, checks the response, and returns how often it was reached.
    trip: fn(&Corral, &str) -> u32,
}

fn rows() -> Vec<Row> {
    let row = |plugin, limit, limits, trip| Row {
        limit,
        plugin,
        limits,
        trip,
    };
    let misbehave = |limit, limits, trip| row("misbehave", limit, limits, trip);
    let generate = |limit, limits, trip| row("generate", limit, limits, trip);
    vec![
        misbehave("memory-mib", json!({"memory-mib": 16}), memory),
        misbehave("cpu-seconds", json!({"cpu-seconds": 0.25}), cpu),
        misbehave("time-seconds", json!({"time-seconds": 2.5}), time),
        misbehave("request-kib", json!({"request-kib": 3}), request),
        misbehave("response-kib", json!({"response-kib": 100}), response),
        misbehave(
            "concurrent-requests",
            json!({"concurrent-requests": 2, "queued-requests": 0}),
            concurrent,
        ),
        misbehave(
            "queued-requests",
            json!({"concurrent-requests": 1, "queued-requests": 1}),
            queue,
        ),
        generate(
            "queue-time-seconds",
            json!({"queue-time-seconds": 0.2}),
            queue_time,
        ),
        generate("kv-cells-percent", json!({"kv-cells-percent": 1}), cells),
        misbehave(
            "requests-per-minute",
            json!({"requests-per-minute": 3}),
            requests_per_minute,
        ),
        generate(
            "tokens-per-request",
            json!({"tokens-per-request": 40}),
            tokens_per_request,
        ),
        generate(
            "tokens-per-minute",
            json!({"tokens-per-minute": 40}),
            tokens_per_minute,
        ),
        generate(
            "tokens-per-day",
            json!({"tokens-per-day": 40}),
            tokens_per_minute,
        ),
    ]
}

#[test]
fn every_limit_trips_and_counts_alone() {
    let second = format!("second={}", long_model().display());
    let corral = Corral::start_with_store(&["--model", &second, "--max-running", "1"]);
    let second = json!({"models": ["second"]});
    // Occupies the sequence id of the second model.
    deploy_plugin(&corral, "holder", "generate", second.clone());
    let mut expected = BTreeMap::new();
    let asked = corral.with_neighbors(|| {
        for row in rows() {
            let limit = row.limit;
            let mut more = json!({"limits": row.limits});
            if limit == "queue-time-seconds" {
                // No other row uses this model.
                more["models"] = second["models"].clone();
            }
            deploy_plugin(&corral, limit, row.plugin, more);
            let tripped = (row.trip)(&corral, &format!("/{limit}"));
            let labels = format!("deployment=\"{limit}\",limit=\"{limit}\"");
            expected.insert(labels, f64::from(tripped));
            // All samples of all deployments, so that no other limit was counted.
            let counted = corral
                .metrics()
                .samples("corral_deployment_limit_hits_total");
            assert_eq!(counted, expected, "{limit}");
        }
    });
    println!("1+1 was answered {asked} times meanwhile");
    assert!(asked >= 10, "{asked}");
    corral.wait_until_idle();
}

/// Asserts a refusal with `Retry-After`.
fn check_retry_after(answer: &Response, status: u16, code: &str) {
    answer.problem(status, code);
    answer.retry_after();
}

/// Requests of the deployment at a route that were refused with this code.
fn refused(corral: &Corral, route: &str, code: &str) -> f64 {
    let deployment = route.trim_start_matches('/');
    let labels = format!("deployment=\"{deployment}\",code=\"{code}\"");
    let sample = format!("corral_deployment_requests_refused_total{{{labels}}}");
    corral.metrics().get_or_zero(&sample)
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
    assert_eq!(refused(corral, route, "memory"), 2.0);
    let failed = "corral_plugin_calls_failed_total{code=\"memory\"}";
    corral.wait_until("both failures are counted", |metrics| {
        metrics.get_or_zero(failed) == 2.0
    });
    2
}

fn cpu(corral: &Corral, route: &str) -> u32 {
    let answer = corral.get(&format!("{route}/spin"));
    let detail = answer.problem(504, "cpu-time");
    assert!(detail.contains("0.25 s"), "{detail}");
    assert_eq!(refused(corral, route, "cpu-time"), 1.0);
    // After the head there is no other response, but it counts.
    corral
        .post_stream(&format!("{route}/midspin"), "")
        .check_cut_off();
    2
}

fn time(corral: &Corral, route: &str) -> u32 {
    let answer = corral.get(&format!("{route}/sleeper"));
    let detail = answer.problem(504, "deadline");
    assert!(detail.contains("2.5 s"), "{detail}");
    assert_eq!(refused(corral, route, "deadline"), 1.0);
    corral.drip(route).check_cut_off();
    2
}

fn request(corral: &Corral, route: &str) -> u32 {
    let path = format!("{route}/echo");
    let largest = corral.post(&path, vec![b'x'; 3 << 10]);
    assert_eq!((largest.status, largest.body.len()), (200, 3 << 10));
    let announced = corral.post(&path, vec![b'x'; (3 << 10) + 1]);
    announced.problem(413, "request-too-large");
    assert_eq!(refused(corral, route, "request-too-large"), 1.0);
    // A response without a length, which has begun already.
    let body = "x".repeat(4 << 10);
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
         {length:x}\r\n{body}\r\n0\r\n\r\n"
    );
    let answer = raw_exchange(corral.public(), request.as_bytes(), false, TIMEOUT);
    let text = String::from_utf8_lossy(&answer);
    assert!(!text.contains(&body), "the whole body came back: {text}");
    2
}

fn response(corral: &Corral, route: &str) -> u32 {
    // Repeated, because a response that failed at once used to lose its head now and then.
    for _ in 0..30 {
        corral
            .post_stream(&format!("{route}/flood"), "")
            .check_cut_off();
    }
    let failed = "corral_plugin_calls_failed_total{code=\"response-too-large\"}";
    corral.wait_until("all failures are counted", |metrics| {
        metrics.get_or_zero(failed) == 30.0
    });
    30
}

fn concurrent(corral: &Corral, route: &str) -> u32 {
    let held = [corral.drip(route), corral.drip(route)];
    let found = corral.metrics().get_or_zero(&gauge("calls_running", route));
    assert_eq!(found, 2.0);
    for _ in 0..3 {
        check_retry_after(&corral.get(&format!("{route}/ok")), 503, "busy");
    }
    drop(held);
    corral.wait_until("the permits are free", |metrics| {
        metrics.get_or_zero(&gauge("calls_running", route)) == 0.0
    });
    assert_eq!(corral.get(&format!("{route}/ok")).status, 200);
    3
}

fn queue(corral: &Corral, route: &str) -> u32 {
    let path = format!("{route}/ok");
    let held = corral.drip(route);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| corral.get(&path));
        corral.wait_until("one waits", |metrics| {
            metrics.get_or_zero(&gauge("calls_waiting", route)) == 1.0
        });
        for _ in 0..2 {
            check_retry_after(&corral.get(&path), 503, "busy");
        }
        drop(held);
        let waited = waiting.join().expect("a response");
        assert_eq!(waited.status, 200, "{waited:?}");
    });
    2
}

fn queue_time(corral: &Corral, route: &str) -> u32 {
    let held = corral.endless("/holder");
    check_retry_after(&corral.post(route, few(5)), 429, "refused");
    drop(held);
    corral.wait_until("the sequence id is free", |metrics| {
        metrics.get_or_zero("corral_engine_sequence_ids_used{model=\"second\"}") == 0.0
    });
    assert_eq!(corral.post(route, few(5)).json()["text"], "2");
    1
}

/// One percent of the cells: 164 of 16,384.
fn cells(corral: &Corral, route: &str) -> u32 {
    let long = json!({"prompt": "1 ".repeat(200), "max_tokens": 1}).to_string();
    let refused = corral.post(route, &long);
    refused.check_refused(400, "164");
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
        check_retry_after(&ask(), 429, "request-rate-exceeded");
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
    check_retry_after(&refused.expect("40 tokens come to an end"), 429, "refused");
    never + 1
}

#[test]
fn full_instance_pool_is_counted() {
    let corral = Corral::start_with_store(&[]);
    let digest = upload(&corral, &component("misbehave"));
    // One deployment uses as many instances as it may; a second one uses the rest of the pool.
    let most = 224;
    let many = json!({"limits": {"concurrent-requests": most, "queued-requests": 0}});
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
            200 => stream.next_drip(),
            status => break status,
        }
        held.push(stream);
        assert!(held.len() < 1000, "the pool has an end");
    };
    assert_eq!(refused, 503);
    let instances = held.len() as f64;
    assert!(held.len() > most, "one deployment has not all of it");
    check_retry_after(&corral.get("/other/ok"), 503, "busy");
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
    let counted = corral
        .metrics()
        .samples("corral_deployment_limit_hits_total");
    let expected = ["more", "other"].map(|name| {
        let labels = format!("deployment=\"{name}\",limit=\"pool\"");
        (labels, 1.0)
    });
    assert_eq!(counted, BTreeMap::from(expected));
    drop(held);
    corral.wait_until_idle();
}

#[test]
fn long_prompts_are_tokenized_in_turn() {
    const CLIENTS: usize = 24;
    // Beside the memory that the calls may use: 100 bytes for each byte that is tokenized at once.
    const TOKENIZING: u64 = 100 * (4 << 20);
    let corral = Corral::start_with_routes(&[("/v1", "openai")], &[]);
    corral.check_alive();
    let (before, idle) = (corral.peak_bytes(), corral.resident_bytes());
    let prompt = "The quiet owl looks at the river. ".repeat((4 << 20) / 34);
    let request = json!({"prompt": prompt, "max_tokens": 1}).to_string();
    let bytes = Cell::new(0.0_f64);
    corral.with_neighbors(|| {
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    let answer = corral.post("/v1/completions", &request);
                    assert_eq!(answer.status, 400, "{answer:?}");
                    let code = &answer.json()["error"]["code"];
                    assert_eq!(code, "context_length_exceeded", "{answer:?}");
                });
            }
            corral.wait_until("texts wait", |metrics| {
                let now = metrics.get("corral_tokenization_bytes");
                bytes.set(bytes.get().max(now));
                metrics.get("corral_tokenizations_waiting") >= 2.0
            });
            // Short prompts do not wait for the long ones.
            corral.check_alive();
        });
    });
    let (bytes, peak) = (bytes.get(), corral.peak_bytes());
    println!("peak {before} bytes before, {peak} after");
    assert!(bytes > 0.0 && bytes <= f64::from(4 << 20), "{bytes}");
    let guests = CLIENTS as u64 * (64 << 20);
    assert!(peak < before + guests + TOKENIZING, "{peak}");
    corral.wait_until_idle();
    // The pool keeps up to 2.5 MiB for each instance, and the allocator a few MiB for each thread.
    let kept = CLIENTS as u64 * (5 << 19) + (96 << 20);
    wait_until("memory to be returned", || {
        corral.resident_bytes() < idle + kept
    });
}

#[test]
fn chat_of_too_many_messages_is_refused() {
    let corral = Corral::start_with_routes(&[("/v1", "openai")], &["--cpu-limit", "5"]);
    for (number, code) in [
        (100_000, "too-many-values"),
        // One call of llama.cpp takes 7 s to tokenize them.
        (27_000, "context_length_exceeded"),
    ] {
        let messages = vec![json!({"role": "user", "content": "x"}); number];
        let request = json!({"messages": messages, "max_tokens": 1}).to_string();
        let answer = corral.post("/v1/chat/completions", request);
        assert_eq!(answer.status, 400, "{answer:?}");
        assert_eq!(answer.json()["error"]["code"], code, "{answer:?}");
    }
    corral.wait_until_idle();
}
