//! Plugins that call other deployments of the server.

use corral_tests::deployments::deploy_plugin;
use corral_tests::{Corral, limited_key_file, wait_until};
use serde_json::{Value, json};

/// Deploys the plugin that sends requests at `/NAME`, which may call these deployments.
fn deploy_caller(corral: &Corral, name: &str, deployments: Value) {
    let grants = json!({"grants": {"deployments": deployments}});
    deploy_plugin(corral, name, "outbound", grants);
}

/// What the caller reports of a request.
fn send(corral: &Corral, name: &str, request: &Value) -> Value {
    corral.post_json(&format!("/{name}"), request)
}

fn post(url: &str, body: &Value) -> Value {
    json!({"url": url, "method": "POST", "body": body.to_string()})
}

fn sum() -> Value {
    json!({"prompt": "12+7=", "max_tokens": 20})
}

fn metric(corral: &Corral, name: &str, deployment: &str) -> f64 {
    let name = format!("corral_deployment_{name}{{deployment=\"{deployment}\"}}");
    corral.metrics().get(&name)
}

#[test]
fn granted_deployment_answers_call() {
    let corral = Corral::start_with_store(&[]);
    deploy_plugin(&corral, "sum", "generate", json!({}));
    deploy_caller(&corral, "caller", json!(["sum"]));
    let answer = send(
        &corral,
        "caller",
        &post("http://sum.corral.internal/sum", &sum()),
    );
    assert_eq!(answer["status"], 200, "{answer}");
    let text: Value = serde_json::from_str(answer["text"].as_str().expect("a text")).expect("JSON");
    assert_eq!(text["text"], "19");
    assert_eq!(metric(&corral, "requests_total", "sum"), 1.0);
    assert_eq!(metric(&corral, "outbound_requests_total", "caller"), 1.0);
    assert_eq!(metric(&corral, "outbound_connections", "caller"), 0.0);
    let page = corral.cli_output(&["show", "caller"]);
    assert!(page.contains("may call the deployment sum\n"), "{page}");
}

#[test]
fn call_without_grant_is_refused() {
    let corral = Corral::start_with_store(&[]);
    deploy_plugin(&corral, "sum", "generate", json!({}));
    deploy_caller(&corral, "other", json!(["else"]));
    // A grant for all hosts is none for deployments.
    let grants = json!({"grants": {"outbound": ["http://*:*"]}});
    deploy_plugin(&corral, "anywhere", "outbound", grants);
    for name in ["other", "anywhere"] {
        let answer = send(
            &corral,
            name,
            &post("http://sum.corral.internal/sum", &sum()),
        );
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(error.contains("HttpRequestDenied"), "{name}: {answer}");
    }
    corral.wait_for_stderr("add its name to 'grants.deployments'");
    assert_eq!(metric(&corral, "requests_total", "sum"), 0.0);
}

#[test]
fn errors_of_called_deployment_are_responses() {
    let corral = Corral::start_with_store(&[]);
    let limits = json!({"limits": {"requests-per-minute": 2}});
    deploy_plugin(&corral, "faulty", "misbehave", limits);
    deploy_caller(&corral, "caller", json!(["faulty", "absent"]));
    let status = |url: &str| {
        let answer = send(&corral, "caller", &json!({"url": url, "method": "POST"}));
        (answer["status"].clone(), answer["text"].to_string())
    };
    let (missing, text) = status("http://absent.corral.internal/");
    assert_eq!(missing, 404);
    assert!(text.contains("no-deployment"), "{text}");
    assert_eq!(status("http://faulty.corral.internal/trap").0, 500);
    let found = status("http://faulty.corral.internal/ok");
    assert_eq!(found, (json!(200), "\"ok\"".to_owned()));
    let (refused, text) = status("http://faulty.corral.internal/ok");
    assert_eq!(refused, 429);
    assert!(text.contains("request-rate-exceeded"), "{text}");
    corral.cli_output(&["pause", "faulty"]);
    assert_eq!(status("http://faulty.corral.internal/ok").0, 503);
    corral.check_alive();
}

#[test]
fn body_beyond_called_deployments_limit_answers_413() {
    let corral = Corral::start_with_store(&[]);
    let limits = json!({"limits": {"request-kib": 1}, "error-format": "openai"});
    deploy_plugin(&corral, "faulty", "misbehave", limits);
    deploy_caller(&corral, "caller", json!(["faulty"]));
    let post = |behavior: &str, headers: Value| {
        let url = format!("http://faulty.corral.internal/{behavior}");
        let request = json!({"url": url, "method": "POST", "body_kib": 64, "headers": headers});
        send(&corral, "caller", &request)
    };
    // One answers without its body, and one when it has all of it.
    for (behavior, headers) in [
        ("deaf", json!({"content-length": "65536"})),
        ("embed", json!({})),
    ] {
        let answer = post(behavior, headers);
        assert_eq!(answer["status"], 413, "{answer}");
        let text = answer["text"].as_str().unwrap_or_default();
        assert!(text.contains("larger than 1024 bytes"), "{text}");
        assert!(text.starts_with("{\"error\""), "{text}");
    }
    // The response begins before the body is too large.
    let answer = post("echo", json!({}));
    assert!(answer["error"].is_string(), "{answer}");
    let hits = "corral_deployment_limit_hits_total{deployment=\"faulty\",limit=\"request-kib\"}";
    assert_eq!(corral.metrics().get(hits), 2.0);
}

#[test]
fn pause_of_called_deployment_ends_response() {
    let corral = Corral::start_with_store(&[]);
    deploy_plugin(&corral, "faulty", "misbehave", json!({}));
    deploy_caller(&corral, "caller", json!(["faulty"]));
    let url = "http://faulty.corral.internal/drip";
    let answer = send(&corral, "caller", &json!({"url": url, "between_ms": 20}));
    assert_eq!(answer["status"], 200, "{answer}");
    let error = answer["error"].as_str().unwrap_or_default();
    assert!(error.contains("ConnectionReadTimeout"), "{answer}");
    let refused = "corral_deployment_outbound_refused_total{deployment=\"caller\",reason=\"time\"}";
    assert_eq!(corral.metrics().get(refused), 1.0);
    corral.check_alive();
}

#[test]
fn cycle_of_calls_ends() {
    let corral = Corral::start_with_store(&[]);
    deploy_caller(&corral, "one", json!(["two"]));
    deploy_caller(&corral, "two", json!(["one"]));
    // Each call carries the request of the next.
    let request = (0..12).fold(json!({}), |inner, number| {
        let name = if number % 2 == 0 { "one" } else { "two" };
        post(&format!("http://{name}.corral.internal/"), &inner)
    });
    let mut answer = send(&corral, "one", &request);
    let mut depth = 0;
    while let Some(text) = answer["text"].as_str() {
        assert_eq!(answer["status"], 200, "{answer}");
        answer = serde_json::from_str(text).unwrap_or_default();
        depth += 1;
    }
    let error = answer["error"].as_str().unwrap_or_default();
    assert!(error.contains("LoopDetected"), "{answer}");
    assert_eq!(depth, 8);
}

#[test]
fn call_counts_for_callers_tenant() {
    let quota = "\n[tenant.alice]\ntokens-per-minute = 40\n";
    let (file, key) = limited_key_file(quota);
    let key = format!("Bearer {key}");
    let corral = Corral::start_with_store(&["--keys", &file]);
    deploy_plugin(&corral, "sum", "generate", json!({}));
    deploy_caller(&corral, "caller", json!(["sum"]));
    let body = post("http://sum.corral.internal/sum", &sum()).to_string();
    let ask = || {
        let headers = [("authorization", &*key)];
        corral.request("POST", "/caller", &headers, &body).ok_json()["status"].clone()
    };
    assert_eq!(ask(), 200);
    let tokens = "corral_quota_tokens_total{kind=\"tenant\",name=\"alice\"}";
    wait_until("counted tokens", || {
        corral.metrics().get_or_zero(tokens) > 5.0
    });
    let refused = (0..8).find(|_| ask() == 429);
    assert!(refused.is_some(), "the tenant's tokens never ran out");
}

#[test]
fn headers_of_the_host_cannot_be_forged() {
    let corral = Corral::start_with_store(&[]);
    deploy_plugin(&corral, "faulty", "misbehave", json!({}));
    deploy_caller(&corral, "caller", json!(["faulty"]));
    let headers = json!({"x-corral-job-id": "1", "x-request-id": "mine", "x-own": "kept"});
    let request = json!({"url": "http://faulty.corral.internal/headers", "headers": headers});
    let answer = corral.post("/caller", request.to_string());
    let id = answer.header("x-request-id").expect("an id").to_owned();
    let text = answer.json()["text"].as_str().expect("a text").to_owned();
    assert!(text.contains("x-own: kept\n"), "{text}");
    let expected = format!("x-request-id: {id}\n");
    assert!(text.contains(&expected), "{id}: {text}");
    assert!(!text.contains("x-corral-job-id"), "{text}");
}

#[test]
fn hang_up_ends_called_deployment() {
    let corral = Corral::start_with_store(&[]);
    deploy_plugin(&corral, "faulty", "misbehave", json!({}));
    deploy_caller(&corral, "caller", json!(["faulty"]));
    let url = "http://faulty.corral.internal/drip";
    let client = corral.begin_post("/caller", json!({"url": url}).to_string());
    let running = |count: f64| {
        wait_until("running calls", || {
            metric(&corral, "calls_running", "faulty") == count
        });
    };
    running(1.0);
    drop(client);
    running(0.0);
    corral.check_alive();
}
