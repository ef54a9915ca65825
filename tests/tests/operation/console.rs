//! What the console needs of the admin listener: its files, events, cancellation, calls of routes, and the prefix cache;
//! and that a page of another origin can use none of it.

use corral_tests::{Corral, EventStream, MANY_CELLS, RELIABLE_SUMS, Response, key_file, wait_for};
use serde_json::{Value, json};
use std::time::Duration;

const HTML: (&str, &str) = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");
const MAX_CLIENTS: usize = 16;

/// The next snapshot of `/events`.
fn next_snapshot(events: &mut EventStream) -> Value {
    loop {
        let line = events.line().expect("not cut off").expect("no end");
        if let Some(data) = line.strip_prefix("data: ") {
            return serde_json::from_str(data).expect("JSON");
        }
        assert!(
            line.is_empty() || line == "event: snapshot" || line.starts_with(':'),
            "{line}"
        );
    }
}

/// Reads snapshots until one has what is wanted.
fn find_snapshot<T>(events: &mut EventStream, what: &str, find: impl Fn(&Value) -> Option<T>) -> T {
    for _ in 0..300 {
        if let Some(found) = find(&next_snapshot(events)) {
            return found;
        }
    }
    panic!("{what} did not happen");
}

/// The rest of a stream that ends with an error.
fn rest(mut stream: EventStream) -> String {
    let mut text = String::new();
    while let Some(line) = stream.line().expect("not cut off") {
        text += &line;
        text.push('\n');
    }
    text
}

fn endless_request() -> String {
    json!({"prompt": "1+1=", "ignore_eos": true, "max_tokens": 16_000}).to_string()
}

#[test]
fn browsers_get_the_console() {
    let corral = Corral::start_with_store(&[]);
    let get =
        |path: &str, headers: &[(&str, &str)]| corral.request_admin_as("GET", path, headers, "");
    for (path, content_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/ui/requests", "text/html; charset=utf-8"),
        ("/ui/app.js", "text/javascript; charset=utf-8"),
        ("/ui/app.css", "text/css; charset=utf-8"),
    ] {
        // Also from a link of another site, without the token.
        let answer = get(path, &[HTML, ("sec-fetch-site", "cross-site")]);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.header("content-type"), Some(content_type));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
        let policy = answer.header("content-security-policy").expect("a policy");
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "connect-src 'self'",
            "frame-ancestors 'none'",
            "form-action 'none'",
            "base-uri 'none'",
        ] {
            assert!(policy.contains(part), "{part}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        let etag = answer.header("etag").expect("an etag");
        let again = get(path, &[HTML, ("if-none-match", etag)]);
        assert_eq!((again.status, again.body.as_str()), (304, ""));
    }
    let page = get("/", &[HTML]).body;
    assert!(page.contains("/ui/app.js"), "{page}");
    assert!(page.contains("/ui/app.css"), "{page}");
    let list = corral.get_admin("/");
    assert!(list.body.starts_with("corral admin\n"), "{list:?}");

    let plain = Corral::start_with(&["--no-console"]);
    let list = plain.request_admin_as("GET", "/", &[HTML], "");
    assert!(list.body.starts_with("corral admin\n"), "{list:?}");
    plain.get_admin("/ui/app.js").problem(404, "no-route");
}

#[test]
fn session_says_what_a_caller_may_do() {
    let corral = Corral::start_with_store(&[]);
    let without = corral.get_admin("/session").json();
    assert_eq!(without["token_required"], true);
    assert_eq!(without["authorized"], false);
    assert_eq!(without["can_read"], true);
    assert_eq!(without["has_store"], true);
    assert_eq!(without["public_url"], format!("http://{}", corral.public()));
    let with = corral.request_admin("GET", "/session", "").json();
    assert_eq!(with["authorized"], true);
    let wrong = ("authorization", "Bearer 0123456789abcdef");
    let wrong = corral.request_admin_as("GET", "/session", &[wrong], "");
    assert_eq!(wrong.json()["authorized"], false);
}

#[test]
fn pages_of_other_origins_can_do_nothing() {
    // Without a token, so that only the origin protects it.
    let corral = Corral::start();
    let session = corral.get_admin("/session").json();
    assert_eq!(session["token_required"], false);
    assert_eq!(session["authorized"], true);
    let before = corral.metrics();
    let port = corral.admin().rsplit(':').next().expect("a port");
    let other_port = format!(
        "http://127.0.0.1:{}",
        port.parse::<u16>().expect("a port") ^ 1
    );
    let question = json!({"prompt": "1+1="}).to_string();
    for (method, path) in [
        ("GET", "/metrics"),
        ("GET", "/requests"),
        ("GET", "/events"),
        ("GET", "/session"),
        ("GET", "/prefix-cache"),
        ("GET", "/deployments/%2Fgenerate/logs"),
        ("PUT", "/models/tiny"),
        ("DELETE", "/models/tiny"),
        ("DELETE", "/prefix-cache"),
        ("DELETE", "/requests/00000000-0"),
        ("POST", "/call/generate"),
        ("GET", "/call/hello"),
        ("POST", "/deployments/x"),
        ("OPTIONS", "/models/tiny"),
    ] {
        for page in [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("origin", "https://evil.example"),
            ("origin", other_port.as_str()),
            ("origin", "null"),
        ] {
            let simple = ("content-type", "text/plain");
            let answer = corral.request_admin_as(method, path, &[page, simple], &question);
            answer.problem(403, "cross-origin");
            assert_eq!(answer.header("access-control-allow-origin"), None);
        }
    }
    let after = corral.metrics();
    let found = after.growth("corral_deployment_requests_total", &before);
    assert_eq!(found, 0.0);
    assert_eq!(after.growth("corral_event_snapshots_total", &before), 0.0);
    // The console itself may.
    let own = format!("http://{}", corral.admin());
    for page in [("sec-fetch-site", "same-origin"), ("origin", own.as_str())] {
        let answer = corral.request_admin_as("POST", "/call/generate", &[page], &question);
        assert_eq!(answer.json()["text"], "2", "{answer:?}");
    }
}

#[test]
fn events_are_bounded_and_free_without_clients() {
    let corral = Corral::start();
    assert_eq!(corral.metrics().get("corral_event_snapshots_total"), 0.0);
    let mut events = corral.stream_admin("/events");
    assert_eq!(events.status, 200);
    let first = next_snapshot(&mut events);
    assert_eq!(first["ready"], true);
    assert_eq!(first["requests"], json!([]));
    let model = &first["models"][0];
    assert_eq!(model["model"], "tiny");
    assert_eq!(model["state"], "loaded");
    assert_eq!(model["cells"]["free"], model["cells"]["total"]);
    let route = |snapshot: &Value| {
        let deployments = snapshot["deployments"].as_array().expect("a list");
        let found = deployments.iter().find(|one| one["name"] == "/generate");
        found.expect("it is deployed").clone()
    };
    assert_eq!(route(&first)["state"], "serving");
    assert_eq!(route(&first)["requests"], 0);

    // Snapshots wake no engine.
    let before = corral.wait_until_idle();
    let idle = corral.wait_until("two snapshots", |metrics| {
        metrics.growth("corral_event_snapshots_total", &before) >= 2.0
    });
    assert_eq!(idle.growth("corral_engine_wakeups_total", &before), 0.0);

    assert_eq!(corral.text("1+1="), "2");
    let seen = find_snapshot(&mut events, "a generation", |snapshot| {
        let finished = snapshot["models"][0]["counters"]["requests_finished"] == 1;
        finished.then(|| snapshot.clone())
    });
    let counters = &seen["models"][0]["counters"];
    let metrics = corral.metrics();
    for (name, metric) in [
        ("steps", "steps"),
        ("rows", "rows"),
        ("computed_tokens", "computed_tokens"),
        ("generated_tokens", "live_generated_tokens"),
        ("generated_tokens", "generated_tokens"),
        ("prompt_tokens", "prompt_tokens"),
    ] {
        let expected = metrics.get(&format!("corral_engine_{metric}_total"));
        assert!(expected > 0.0, "{metric}");
        assert_eq!(counters[name].as_f64(), Some(expected), "{name}");
    }
    let histogram = &seen["models"][0]["histograms"]["time_to_first_token_seconds"];
    assert_eq!(histogram["count"], 1);
    let bounds = histogram["bounds"].as_array().expect("a list");
    let counts = histogram["counts"].as_array().expect("a list");
    assert!(!bounds.is_empty(), "{histogram}");
    assert!(bounds.len() == counts.len(), "{histogram}");
    assert_eq!(route(&seen)["requests"], 1);

    let mut others = Vec::from_iter((1..MAX_CLIENTS).map(|_| corral.stream_admin("/events")));
    for one in &mut others {
        next_snapshot(one);
    }
    let refused = corral.get_admin("/events");
    refused.problem(503, "too-many-clients");
    refused.retry_after();
    drop((events, others));
    let left = corral.wait_until("the clients are gone", |metrics| {
        metrics.get("corral_event_clients") == 0.0
    });
    // One snapshot may be under way.
    let interval = Duration::from_secs(1);
    std::thread::sleep(2 * interval);
    let then = corral.metrics();
    assert!(then.growth("corral_event_snapshots_total", &left) <= 1.0);
    std::thread::sleep(3 * interval);
    let after = corral.metrics();
    assert_eq!(after.growth("corral_event_snapshots_total", &then), 0.0);
    next_snapshot(&mut corral.stream_admin("/events"));
}

#[test]
fn running_request_is_listed_and_canceled() {
    let corral = Corral::start();
    let before = corral.wait_until_idle();
    let mut events = corral.stream_admin("/events");
    let stream = corral.endless("/generate");
    let id = stream
        .headers
        .iter()
        .find(|(name, _)| name == "x-request-id");
    let id = id.expect("an id").1.clone();
    let request = find_snapshot(&mut events, "a running request", |snapshot| {
        let request = &snapshot["requests"][0];
        let runs = request["generated_tokens"].as_u64()? > 0;
        runs.then(|| request.clone())
    });
    assert_eq!(request["request_id"], id);
    assert_eq!(request["deployment"], "/generate");
    assert_eq!(request["method"], "POST");
    assert_eq!(request["path"], "/generate");
    assert_eq!(request["from"], "public");
    assert_eq!(request["state"], "decode");
    assert_eq!(request["model"], "tiny");
    assert!(request["prompt_tokens"].as_u64() > Some(0), "{request}");
    assert!(request["age_seconds"].as_f64() > Some(0.0), "{request}");

    let path = format!("/requests/{id}");
    corral.get_admin(&path).problem(405, "method-not-allowed");
    let canceled = corral.request_admin("DELETE", &path, "");
    assert_eq!(canceled.json(), json!({"canceled": id}));
    let rest = rest(stream);
    assert!(rest.contains("event: error\n"), "{rest}");
    assert!(rest.contains(r#""code":"cancelled""#), "{rest}");
    let again = corral.request_admin("DELETE", &path, "");
    again.problem(404, "no-request");
    find_snapshot(&mut events, "an empty list", |snapshot| {
        (snapshot["requests"] == json!([])).then_some(())
    });
    let after = corral.wait_until_idle();
    for (metric, growth) in [
        ("corral_http_requests_canceled_total", 1.0),
        ("corral_http_requests_aborted_total", 1.0),
        ("corral_plugin_calls_canceled_total", 1.0),
        ("corral_plugin_calls_failed_total", 0.0),
        ("corral_engine_requests_canceled_total", 1.0),
    ] {
        assert_eq!(after.growth(metric, &before), growth, "{metric}");
    }
    let log = corral.wait_for_stderr("cancel-request");
    assert!(log.contains(&id), "{log}");
    corral.check_alive();
}

#[test]
fn request_without_response_is_canceled() {
    let corral = Corral::start();
    let before = corral.wait_until_idle();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| corral.post("/generate", endless_request()));
        let mut events = corral.stream_admin("/events");
        let id = find_snapshot(&mut events, "a running request", |snapshot| {
            let request = &snapshot["requests"][0];
            (request["state"] == "decode").then(|| request["request_id"].clone())
        });
        let id = id.as_str().expect("an id");
        let answer = corral.request_admin("DELETE", &format!("/requests/{id}"), "");
        assert_eq!(answer.status, 200, "{answer:?}");
        let answer = waiting.join().expect("no panic");
        answer.problem(499, "cancelled");
        assert_eq!(answer.header("x-request-id"), Some(id));
    });
    let after = corral.wait_until_idle();
    for metric in [
        "corral_http_requests_canceled_total",
        "corral_plugin_calls_canceled_total",
        "corral_engine_requests_canceled_total",
    ] {
        assert_eq!(after.growth(metric, &before), 1.0, "{metric}");
    }
}

#[test]
fn calls_go_through_the_public_code() {
    let (file, _) = key_file();
    let corral = Corral::start_with_store(&["--keys", &file]);
    let question = json!({"prompt": "1+1="}).to_string();
    let refused = corral.post("/generate", &question);
    refused.problem(401, "missing-key");
    let refused = corral.request_admin_as("POST", "/call/generate", &[], &question);
    refused.problem(401, "token-required");
    let before = corral.metrics();
    let answer = corral.request_admin("POST", "/call/generate", &question);
    assert_eq!(answer.json()["text"], "2", "{answer:?}");
    assert!(answer.header("x-request-id").is_some(), "{answer:?}");
    let policy = Some("sandbox; default-src 'none'");
    assert_eq!(answer.header("content-security-policy"), policy);
    let unknown = corral.request_admin("POST", "/call/nothing", "");
    unknown.problem(404, "no-route");
    let after = corral.metrics();
    let found = after.growth("corral_deployment_requests_total", &before);
    assert_eq!(found, 1.0);
    let log = corral.wait_for_stderr("action=\"call\"");
    assert!(log.contains("deployment=\"/generate\""), "{log}");

    // A call that its client leaves ends.
    let mut events = corral.stream_admin("/events");
    let mut request: Value = serde_json::from_str(&endless_request()).expect("JSON");
    request["stream"] = json!(true);
    let mut stream = corral.stream_admin_post("/call/generate", request.to_string());
    stream.next_text();
    let from = find_snapshot(&mut events, "a call", |snapshot| {
        let request = &snapshot["requests"][0];
        (request["state"] == "decode").then(|| request["from"].clone())
    });
    assert_eq!(from, "console");
    drop(stream);
    find_snapshot(&mut events, "the end of the call", |snapshot| {
        (snapshot["requests"] == json!([])).then_some(())
    });
}

/// The entries of the prefix cache.
fn entries(corral: &Corral, query: &str) -> Vec<Value> {
    let answer = wait_for("a status", || {
        let answer = corral.get_admin(&format!("/prefix-cache{query}"));
        Some(answer).filter(|answer| answer.status != 503)
    });
    let list = answer.json();
    assert_eq!(list["omitted"], 0, "{list}");
    list["entries"].as_array().expect("a list").clone()
}

fn dropped(answer: &Response) -> u64 {
    answer.ok_json()["dropped"].as_u64().expect("a number")
}

#[test]
fn prefixes_are_listed_and_dropped() {
    let corral = Corral::start();
    assert!(entries(&corral, "").is_empty());
    let prompts = RELIABLE_SUMS.map(|sum| sum.question_in(100));
    let ask = |prompt: &str| drop(corral.generate(&json!({"prompt": prompt})));
    prompts.iter().for_each(|prompt| ask(prompt));
    corral.wait_until_idle();
    let cached = entries(&corral, "?deployment=%2Fgenerate");
    assert_eq!(cached.len(), prompts.len());
    for entry in &cached {
        assert_eq!(entry["model"], "tiny");
        assert_eq!(entry["deployment"], "/generate");
        assert_eq!(entry["location"], "cells");
        assert!(entry["tokens"].as_u64() >= Some(100), "{entry}");
    }
    // All prompts begin alike. The same prompt reuses its entry, or an entry takes its place.
    let hits = |cached: &[Value]| {
        cached
            .iter()
            .filter_map(|one| one["hits"].as_u64())
            .sum::<u64>()
    };
    let before = hits(&cached);
    ask(&prompts[0]);
    ask(&prompts[0]);
    corral.wait_until_idle();
    let cached = entries(&corral, "");
    assert_eq!(cached.len(), prompts.len(), "{cached:?}");
    assert_eq!(hits(&cached), before + 2, "{cached:?}");

    let path = format!("/prefix-cache/tiny/{}", cached[0]["entry"]);
    assert_eq!(dropped(&corral.request_admin("DELETE", &path, "")), 1);
    for gone in [&path, "/prefix-cache/tiny/x", "/prefix-cache/other/1"] {
        let answer = corral.request_admin("DELETE", gone, "");
        answer.problem(404, "no-entry");
    }
    assert_eq!(entries(&corral, "").len(), prompts.len() - 1);
    let other = corral.request_admin("DELETE", "/prefix-cache?deployment=%2Fhello", "");
    assert_eq!(dropped(&other), 0);
    let unknown = corral.request_admin("DELETE", "/prefix-cache?deployment=nobody", "");
    unknown.problem(404, "no-deployment");
    let all = corral.request_admin("DELETE", "/prefix-cache?deployment=%2Fgenerate", "");
    assert_eq!(dropped(&all), prompts.len() as u64 - 1);
    assert!(entries(&corral, "").is_empty());
    corral.wait_until_idle();
    corral.check_alive();
}

#[test]
fn branch_of_the_prefix_tree_is_dropped() {
    let corral = Corral::start();
    let stories = RELIABLE_SUMS.map(|sum| sum.question_in(100));
    let prompts = stories.iter().take(3).cloned();
    let others = stories.iter().skip(3).map(|story| format!("Read: {story}"));
    for prompt in prompts.chain(others) {
        corral.generate(&json!({"prompt": prompt}));
    }
    corral.wait_until_idle();
    let cached = entries(&corral, "");
    assert_eq!(cached.len(), 5);
    // Entries share the story with those beside them, but not with those of the other beginning.
    let shared = |entry: &Value| entry["shared_tokens"].as_u64().expect("a number");
    let in_branch = |entry: &&Value| shared(entry) >= 80;
    assert_eq!(cached.iter().filter(in_branch).count(), 3, "{cached:?}");
    let chosen = cached.iter().find(in_branch).expect("an entry of a branch");
    let tokens = shared(chosen).min(80);

    let path = format!("/prefix-cache/tiny/{}", chosen["entry"]);
    let drop_first =
        |tokens: u64| corral.request_admin("DELETE", &format!("{path}?first_tokens={tokens}"), "");
    drop_first(0).problem(400, "invalid-query");
    drop_first(10_000).problem(404, "no-entry");
    let gone = dropped(&drop_first(tokens)) as usize;
    assert!([2, 3].contains(&gone), "{gone}");
    let left = entries(&corral, "");
    assert_eq!(left.len(), 5 - gone, "{left:?}");
    // The other branch is whole.
    let in_branch = left.iter().filter(in_branch).count();
    assert_eq!(in_branch, left.len() - 1, "{left:?}");
    corral.wait_until_idle();
    corral.check_alive();
}

#[test]
fn prefixes_are_listed_and_dropped_under_load() {
    let corral = Corral::start_with(&["--kv-cells", MANY_CELLS]);
    for sum in &RELIABLE_SUMS[..2] {
        corral.generate(&json!({"prompt": sum.question_in(100)}));
    }
    let idle = corral.wait_until_idle();
    std::thread::sleep(Duration::from_secs(2));
    let still = corral.metrics();
    assert_eq!(still.growth("corral_engine_wakeups_total", &idle), 0.0);
    assert_eq!(entries(&corral, "").len(), 2);
    let asked = corral.wait_until_idle();
    assert!(asked.growth("corral_engine_wakeups_total", &idle) > 0.0);

    let streams = Vec::from_iter((0..4).map(|_| corral.endless("/generate")));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let answer = corral.get_admin("/prefix-cache?deployment=%2Fgenerate");
                    let list = answer.ok_json();
                    assert_eq!(list["missing"], json!([]), "{list}");
                    assert_eq!(list["entries"].as_array().map(Vec::len), Some(2), "{list}");
                }
            });
        }
    });
    let entry = &entries(&corral, "")[0]["entry"];
    let path = format!("/prefix-cache/tiny/{entry}?first_tokens=1");
    assert_eq!(dropped(&corral.request_admin("DELETE", &path, "")), 2);
    assert!(entries(&corral, "").is_empty());
    drop(streams);
    corral.wait_until_idle();
    corral.check_alive();
}

#[test]
fn limit_hits_are_shown_by_deployment() {
    let corral = Corral::start_with(&["--quota", "/generate=requests-per-minute:1"]);
    assert_eq!(corral.text("1+1="), "2");
    let refused = corral.post("/generate", json!({"prompt": "1+1="}).to_string());
    assert_eq!(refused.status, 429, "{refused:?}");
    let snapshot = next_snapshot(&mut corral.stream_admin("/events"));
    let deployments = snapshot["deployments"].as_array().expect("a list");
    let generate = deployments.iter().find(|one| one["name"] == "/generate");
    let hits = &generate.expect("it is deployed")["limit_hits"];
    assert_eq!(*hits, json!({"requests-per-minute": 1}));
}
