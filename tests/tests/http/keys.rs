//! API keys: access, tenants and quotas.

use corral_tests::{
    Connection, Corral, HttpVersion, Response, Sum, block_on, distinct_sums, new_key, run,
    scratch_dir, wait_until,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn file() -> PathBuf {
    let file = scratch_dir().join("keys.toml");
    std::fs::write(&file, "").expect("written");
    file
}

fn append(file: &Path, text: &str) {
    let all = std::fs::read_to_string(file).expect("read") + text;
    std::fs::write(file, all).expect("written");
}

fn start(file: &Path, arguments: &[&str]) -> Corral {
    let file = file.to_str().expect("a path in UTF-8");
    Corral::start_with(&[&["--keys", file], arguments].concat())
}

/// Sends a request on its own connection.
fn ask(corral: &Corral, path: &str, authorization: Option<&str>, body: &str) -> Response {
    let header = authorization.map(|text| ("authorization", text));
    block_on(async {
        let client = Connection::connect(corral.public(), HttpVersion::Http1, None).await;
        let client = client.expect("connected");
        let answer = client.request(path, header.as_slice(), body).await;
        answer.expect("a response")
    })
}

fn bearer(key: &str) -> String {
    format!("Bearer {key}")
}

fn check_sum(corral: &Corral, key: &str, sum: Sum) {
    let body = json!({"prompt": sum.question(), "max_tokens": 20}).to_string();
    let answer = ask(corral, "/generate", Some(&bearer(key)), &body);
    assert_eq!(answer.ok_json()["text"], sum.answer(), "{sum:?}");
}

#[test]
fn new_key_entry_holds_digest_only() {
    let printed = run(["keys", "new", "--tenant", "alice", "--deployment", "/chat"]);
    assert_eq!(printed.code, Some(0), "{printed:?}");
    let (key, entry) = printed
        .stdout
        .split_once("\n\n")
        .expect("a key and an entry");
    assert!(key.starts_with("corral_"), "{key}");
    assert!(!entry.contains(&key["corral_".len()..]), "{entry}");
    for line in ["[[key]]", "tenant = \"alice\"", "deployments = [\"/chat\"]"] {
        assert!(entry.lines().any(|entry| entry == line), "{line}: {entry}");
    }
    let json = run(["keys", "new", "--tenant", "bob", "--name", "b", "--json"]);
    let json: Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(json!([json["tenant"], json["name"]]), json!(["bob", "b"]));
    assert_ne!(json["key"], key);
    // A key that cannot be stored is not shown.
    let ended = run(["keys", "new", "--tenant", "a", "--append", "/no/keys.toml"]);
    ended.check_error(1, &["cannot append the key to /no/keys.toml"]);
}

#[test]
fn missing_key_error_has_route_format() {
    let file = file();
    let good = new_key(&file, &["--tenant", "alice", "--deployment", "/generate"]);
    let options = [
        "--open-route",
        "/hello",
        "--error-format",
        "/wasi-p2-handler=openai",
    ];
    let corral = start(&file, &options);
    check_sum(&corral, &good, Sum { a: 1, b: 1 });
    let (good, wrong) = (bearer(&good), bearer(&format!("{good}0")));
    for (authorization, code) in [
        (None, "missing-key"),
        (Some(""), "missing-key"),
        (Some("Basic YTpi"), "missing-key"),
        (Some(&*wrong), "invalid-key"),
    ] {
        let answer = ask(&corral, "/generate", authorization, "{}");
        answer.problem(401, code);
        let challenge = answer.header("www-authenticate").expect("a challenge");
        assert!(challenge.starts_with("Bearer "), "{challenge}");
    }
    ask(&corral, "/misbehave/ok", Some(&good), "").problem(403, "key-not-granted");
    assert_eq!(ask(&corral, "/hello", None, "1+1=").status, 200);
    assert_eq!(ask(&corral, "/healthz", None, "").status, 200);
    ask(&corral, "/nowhere", None, "").problem(404, "no-route");
    let openai = ask(&corral, "/wasi-p2-handler", Some(&wrong), "");
    assert_eq!(openai.status, 401, "{openai:?}");
    assert_eq!(openai.header("content-type"), Some("application/json"));
    let error = &openai.json()["error"];
    assert_eq!(error["code"], "invalid_api_key");
    assert_eq!(error["param"], Value::Null);
    let metrics = corral.wait_until_idle();
    for (reason, count) in [("missing", 3.0), ("invalid", 2.0), ("not-granted", 1.0)] {
        let name = format!("corral_api_key_rejections_total{{reason=\"{reason}\"}}");
        assert_eq!(metrics.get(&name), count, "{reason}");
    }
}

#[test]
fn open_route_hides_key_from_plugin() {
    let file = file();
    let key = new_key(&file, &["--tenant", "alice"]);
    let corral = start(&file, &["--open-route", "/misbehave"]);
    let headers = |authorization: &str| {
        let answer = ask(&corral, "/misbehave/headers", Some(authorization), "");
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body
    };
    for authorization in [bearer(&key), format!("Token {key}"), key.clone()] {
        let seen = headers(&authorization);
        assert!(seen.contains("x-request-id: "), "{seen}");
        assert!(!seen.contains("authorization"), "{seen}");
        assert!(!seen.contains(&key["corral_".len()..]), "{seen}");
    }
    let seen = headers("Bearer of-the-plugin");
    // A header that is no key of this server belongs to the plugin.
    let expected = "authorization: Bearer of-the-plugin\n";
    assert!(seen.contains(expected), "{seen}");
    corral.wait_until_idle();
}

#[test]
fn keys_never_reach_the_log() {
    let file = file();
    let key = new_key(&file, &["--tenant", "alice", "--name", "the-laptop"]);
    let mut corral = start(&file, &["--verbose"]);
    check_sum(&corral, &key, Sum { a: 1, b: 1 });
    ask(
        &corral,
        "/misbehave/ok",
        Some(&bearer(&format!("{key}x"))),
        "",
    );
    ask(&corral, "/misbehave/trap", Some(&bearer(&key)), "");
    corral.wait_until_idle();
    corral.shut_down();
    let text = std::fs::read_to_string(&file).expect("read");
    for text in [corral.stderr(), text] {
        assert!(!text.contains(&key["corral_".len()..]), "{text}");
    }
}

#[test]
fn keys_reload_while_serving() {
    let file = file();
    let first = new_key(&file, &["--tenant", "alice"]);
    let corral = start(&file, &[]);
    check_sum(&corral, &first, Sum { a: 1, b: 1 });
    let second = new_key(&file, &["--tenant", "bob"]);
    let wait_for_status = |key: &str, status: u16| {
        wait_until("the keys to be reloaded", || {
            ask(&corral, "/misbehave/ok", Some(&bearer(key)), "").status == status
        });
    };
    wait_for_status(&second, 200);
    // An invalid file changes nothing; an empty one removes all keys.
    std::fs::write(&file, "[[key]]\nname = 1\n").expect("written");
    corral.signal("HUP");
    corral.wait_for_stderr("the old keys stay in use");
    check_sum(&corral, &first, Sum { a: 1, b: 1 });
    std::fs::write(&file, "").expect("written");
    corral.signal("HUP");
    wait_for_status(&first, 401);
    corral.wait_until_idle();
}

#[test]
fn each_key_limit_trips_alone() {
    let file = file();
    let mut keys = Vec::new();
    for (name, limit) in [
        ("free", ""),
        ("rate", "requests-per-minute = 3"),
        ("minute", "tokens-per-minute = 60"),
        ("day", "tokens-per-day = 60"),
        ("request", "tokens-per-request = 40"),
        ("concurrent-requests", "concurrent-requests = 1"),
    ] {
        keys.push(new_key(&file, &["--tenant", name, "--name", name]));
        if !limit.is_empty() {
            append(&file, &format!("[tenant.{name}]\n{limit}\n"));
        }
    }
    let corral = start(&file, &[]);
    let [free, rate, minute, day, request, concurrent] = &keys[..] else {
        panic!("six keys");
    };
    let generate = |key: &str, max_tokens: u32| {
        let body = json!({"prompt": "1+1=", "ignore_eos": true, "max_tokens": max_tokens});
        ask(&corral, "/generate", Some(&bearer(key)), &body.to_string())
    };
    let check_wait = |answer: &Response, at_most: u64| {
        assert!(answer.retry_after() <= at_most, "{answer:?}");
    };
    std::thread::scope(|scope| {
        // A neighbor whose sums are always right.
        let neighbor = scope.spawn(|| {
            for sum in distinct_sums(40) {
                check_sum(&corral, free, sum);
            }
        });
        for _ in 0..3 {
            let body = json!({"prompt": "1+1=", "max_tokens": 20}).to_string();
            let answer = ask(&corral, "/generate", Some(&bearer(rate)), &body);
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        let refused = ask(&corral, "/misbehave/ok", Some(&bearer(rate)), "");
        let detail = refused.problem(429, "request-rate-exceeded");
        assert!(detail.contains("tenant rate"), "{detail}");
        check_wait(&refused, 61);

        for (key, longest) in [(minute, 61), (day, 24 * 3600 + 15 * 60)] {
            // 4 prompt tokens and 20 generated, twice.
            for _ in 0..2 {
                assert_eq!(generate(key, 20).status, 200);
            }
            // 12 are left: the request is admitted, but its generation is refused.
            let refused = generate(key, 20);
            refused.problem(429, "refused");
            check_wait(&refused, longest);
            // More than the limit is refused for good.
            let detail = generate(key, 1000).problem(403, "not-granted");
            assert!(detail.contains("1004"), "{detail}");
            assert_eq!(generate(key, 8).status, 200, "exactly what is left");
            let refused = ask(&corral, "/misbehave/ok", Some(&bearer(key)), "");
            refused.problem(429, "token-quota-exceeded");
            check_wait(&refused, longest);
        }

        assert_eq!(generate(request, 36).status, 200);
        let detail = generate(request, 37).problem(403, "not-granted");
        assert!(detail.contains("tokens-per-request"), "{detail}");
        // Each request has a limit of its own.
        assert_eq!(generate(request, 36).status, 200);

        block_on(async {
            let connect = async || {
                let client = Connection::connect(corral.public(), HttpVersion::Http1, None).await;
                client.expect("connected")
            };
            let authorization = bearer(concurrent);
            let headers = [("authorization", &*authorization)];
            let mut drip = connect().await.send("/misbehave/drip", &headers, "").await;
            let drip = drip.as_mut().expect("begun");
            drip.chunk().await.expect("a chunk").expect("not cut off");
            let refused = connect().await.request("/misbehave/ok", &headers, "").await;
            let refused = refused.expect("a response");
            refused.problem(429, "concurrency-exceeded");
            check_wait(&refused, 1);
        });
        // The connection's end frees its slot.
        wait_until("the permit to be free", || {
            ask(&corral, "/misbehave/ok", Some(&bearer(concurrent)), "").status != 429
        });
        neighbor.join().expect("every sum is right");
    });
    let metrics = corral.wait_until_idle();
    let refusals = |name: &str, limit: &str| {
        let labels = format!("{{kind=\"tenant\",name=\"{name}\",limit=\"{limit}\"}}");
        metrics.get_or_zero(&format!("corral_quota_refusals_total{labels}"))
    };
    assert_eq!(refusals("rate", "requests-per-minute"), 1.0);
    assert_eq!(refusals("minute", "tokens-per-minute"), 3.0);
    assert_eq!(refusals("day", "tokens-per-day"), 3.0);
    assert_eq!(refusals("request", "tokens-per-request"), 1.0);
    assert!(refusals("concurrent-requests", "concurrent-requests") >= 1.0);
    let tokens = |name: &str| {
        let labels = format!("{{kind=\"tenant\",name=\"{name}\"}}");
        metrics.get(&format!("corral_quota_tokens_total{labels}"))
    };
    assert_eq!(tokens("minute"), 60.0);
    assert_eq!(tokens("day"), 60.0);
    assert_eq!(tokens("request"), 80.0);
    assert_eq!(metrics.get("corral_quota_requests_running"), 0.0);
}

#[test]
fn route_quota_covers_all_clients() {
    let quota = ["--quota", "/hello=requests-per-minute:5"];
    let arguments = [quota, ["--error-format", "/hello=openai"]].concat();
    let corral = Corral::start_with(&arguments);
    for _ in 0..5 {
        assert_eq!(corral.post("/hello", "1+1=").status, 200);
    }
    let refused = corral.get("/hello");
    assert_eq!(refused.status, 429, "{refused:?}");
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    refused.retry_after();
    corral.check_alive();
    corral.wait_until_idle();
}
