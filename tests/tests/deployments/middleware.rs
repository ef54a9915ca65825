//! Middleware before a handler: the order of a chain, what it may change and use, streams through it, and its failures.

use corral_tests::artifacts::component;
use corral_tests::deployments::{deploy, digest, manifest, show, try_deploy, upload};
use corral_tests::{
    Corral, ENDLESS_TOKENS, EventStream, RELIABLE_SUMS, Response, artifacts, concurrently,
};
use serde_json::{Value, json};

/// A server with the plugin at `/a` behind this middleware; `more` is added to the manifest.
fn start(plugin: &str, middleware: &[&str], more: Value) -> Corral {
    let corral = Corral::start_with_store(&[]);
    put_before(&corral, plugin, middleware, more);
    corral
}

fn put_before(corral: &Corral, plugin: &str, middleware: &[&str], more: Value) {
    let handler = upload(corral, &component(plugin));
    let chain = middleware.iter().map(|name| match name.strip_suffix('!') {
        Some(name) => json!({"component": upload(corral, &component(name)), "inherit": true}),
        None => json!(upload(corral, &component(name))),
    });
    let mut more = more;
    more["linked"] = json!({"middleware": Vec::from_iter(chain)});
    deploy(corral, &manifest("a", &handler, more));
}

/// Posts to a path with words for the test plugin `middleware`.
fn post(corral: &Corral, path: &str, words: &str, body: &str) -> Response {
    corral.request("POST", path, &[("x-middleware", words)], body)
}

fn stream(corral: &Corral, path: &str, words: &str, body: &str) -> EventStream {
    corral.post_stream_with(path, &[("x-middleware", words)], body)
}

/// The words that the middleware added to a response, the innermost first.
fn passed(response: &Response) -> Vec<&str> {
    let headers = response.headers.iter();
    let headers = headers.filter(|(name, _)| name == "x-passed");
    headers.map(|(_, value)| value.as_str()).collect()
}

#[test]
fn outermost_middleware_comes_first() {
    let corral = start("misbehave", &["middleware", "middleware"], json!({}));
    let answer = post(&corral, "/a/echo", "pass rewrite", "hello");
    assert_eq!((answer.status, &*answer.body), (200, "HELLO"), "{answer:?}");
    assert_eq!(passed(&answer), ["rewrite", "pass"]);
    // The second refuses, and the first sees its answer.
    let answer = post(&corral, "/a/log", "pass deny", "");
    answer.problem(401, "denied");
    assert_eq!(passed(&answer), ["pass"]);
    let answer = post(&corral, "/a/log", "deny pass", "");
    answer.problem(401, "denied");
    assert_eq!(passed(&answer), [""; 0]);
    // The handler was not called, but is now.
    let lines = |corral: &Corral| corral.cli_output(&["logs", "a"]).lines().count();
    assert_eq!(lines(&corral), 0);
    assert_eq!(post(&corral, "/a/log", "pass pass", "").status, 200);
    corral.wait_until_idle();
    assert_eq!(lines(&corral), 2);
    // Without words, requests and responses pass as they are.
    let answer = corral.post("/a/echo", "hello");
    assert_eq!((answer.status, &*answer.body), (200, "hello"), "{answer:?}");
    let headers = corral.request("GET", "/a/headers", &[("x-b", "1"), ("x-a", "2")], "");
    assert!(headers.body.contains("x-a: 2\n"), "{headers:?}");
    corral.check_alive();
}

#[test]
fn chain_of_eight_answers_many_requests() {
    let corral = start("generate", &["middleware"; 8], json!({}));
    concurrently(8, &RELIABLE_SUMS, |sum| {
        let body = json!({"prompt": sum.question(), "max_tokens": 20}).to_string();
        let words = ["pass"; 8].join(" ");
        let answer = post(&corral, "/a", &words, &body);
        assert_eq!(answer.ok_json()["text"], sum.answer());
        assert_eq!(passed(&answer), ["pass"; 8]);
        let answer = corral.post("/a", &body);
        assert_eq!(answer.json()["text"], sum.answer());
    });
    corral.check_alive();
}

#[test]
fn redactor_hides_data_and_streams_the_answer() {
    let corral = start("misbehave", &["redactor"], json!({}));
    let chat = json!({"messages": [{"role": "user", "content": "I am ann@example.com"}]});
    let answer = corral.post("/a/echo", chat.to_string());
    assert_eq!(answer.header("x-redacted"), Some("1"), "{answer:?}");
    assert_eq!(answer.json()["messages"][0]["content"], "I am [EMAIL-1]");
    let mut drips = corral.drip("/a");
    drips.next_drip();
    drop(drips);

    put_before(&corral, "generate", &["redactor"], json!({}));
    for sum in RELIABLE_SUMS {
        let body = json!({"prompt": sum.question(), "max_tokens": 20, "stream": true});
        let (texts, _) = corral.post_stream("/a", body.to_string()).texts();
        assert_eq!(texts.concat(), sum.answer());
    }
    corral.check_alive();
    corral.wait_until_idle();
}

#[test]
fn body_that_passes_by_wakes_no_guest() {
    let corral = start("generate", &["redactor"], json!({}));
    let body = json!({"prompt": "1+1=", "max_tokens": 200, "ignore_eos": true, "stream": true});
    // One call of ten: a busy machine may wake a guest for reasons of its own, and join pieces of the text.
    let mut seen = Vec::new();
    let passes_by = (0..10).any(|_| {
        let before = corral.wait_until_idle();
        let (texts, _) = corral.post_stream("/a", body.to_string()).texts();
        let polls = corral.wait_until_idle().growth(
            "corral_deployment_guest_polls_total{deployment=\"a\"}",
            &before,
        );
        seen.push((texts.len(), polls));
        texts.len() > 100 && polls < 50.0
    });
    assert!(passes_by, "pieces and polls: {seen:?}");
}

#[test]
fn cached_answer_computes_no_token() {
    let more = json!({
        "grants": {"key-value-mib": 1},
        "configuration": {"CACHE_THRESHOLD": "0.99"},
    });
    let corral = start("generate", &["semantic-cache!"], more);
    for streams in [false, true] {
        let ask = |question: &str| {
            let body = json!({"prompt": question, "max_tokens": 20, "stream": streams});
            let before = corral.wait_until_idle();
            let answer = corral.post("/a", body.to_string());
            let after = corral.wait_until_idle();
            assert_eq!(answer.status, 200, "{answer:?}");
            let growth = |name: &str| after.growth(name, &before);
            assert_eq!(growth("corral_engine_embedding_inputs_total"), 1.0);
            let computed = growth("corral_engine_computed_tokens_total");
            let cache = answer.header("x-cache").map(str::to_owned);
            (cache, computed > 0.0, answer)
        };
        let (cache, computes, first) = ask("What is 12+7?\n");
        assert_eq!((cache.as_deref(), computes), (Some("miss"), true));
        assert!(first.body.contains('9'), "{first:?}");
        let (cache, computes, second) = ask("What's 12+7?\n");
        assert_eq!((cache.as_deref(), computes), (Some("hit"), false));
        assert_eq!(first.body, second.body);
        assert_eq!(first.header("content-type"), second.header("content-type"));
        let (cache, computes, _) = ask("reverse: table\n");
        assert_eq!((cache.as_deref(), computes), (Some("miss"), true));
    }
    corral.check_alive();
}

#[test]
fn changed_stream_is_not_buffered() {
    let corral = start("misbehave", &["middleware", "middleware"], json!({}));
    // The body is endless.
    let mut drips = stream(&corral, "/a/drip", "upper pass", "");
    for _ in 0..3 {
        let line = drips.line().expect("the response goes on");
        assert_eq!(line.as_deref(), Some("DRIP"));
    }
    drop(drips);
    // A request's body reaches the handler before its end, and so its client the answer.
    let mut drips = stream(&corral, "/a/drip", "pass upper", "x");
    let line = drips.line().expect("the response goes on");
    assert_eq!(line.as_deref(), Some("DRIP"));
    drop(drips);
    corral.wait_until_idle();
    corral.check_alive();
}

#[test]
fn disconnect_cancels_the_chain() {
    let corral = start("generate", &["middleware", "redactor"], json!({}));
    let body =
        json!({"prompt": "1+1=", "ignore_eos": true, "max_tokens": ENDLESS_TOKENS, "stream": true});
    for words in ["pass", "upper"] {
        let mut events = stream(&corral, "/a", words, &body.to_string());
        assert_eq!(events.status, 200);
        assert!(events.line().expect("it goes on").is_some());
    }
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_engine_requests_canceled_total"), 2.0);
    corral.check_alive();
}

#[test]
fn middleware_has_grants_only_if_inherited() {
    let more = || json!({"configuration": {"SECRET": "of the handler"}});
    let corral = start("misbehave", &["middleware", "middleware!"], more());
    let secret = "SECRET=of the handler\n";
    for (words, expected) in [
        ("environment", ""),
        ("pass environment", secret),
        ("pass pass", secret),
    ] {
        let answer = post(&corral, "/a/env", words, "");
        let body = answer.body.trim_end_matches('\n').to_owned();
        assert_eq!(
            (answer.status, &*body),
            (200, expected.trim_end()),
            "{words}"
        );
    }
    // It would use models and values.
    let handler = upload(&corral, &component("misbehave"));
    let cache = upload(&corral, &component("semantic-cache"));
    let linked = json!({"linked": {"middleware": [cache]}});
    let answer = try_deploy(&corral, &manifest("a", &handler, linked));
    let detail = answer.problem(422, "linked-import-refused");
    for expected in [
        "a (linked component 'middleware.1') imports what",
        "corral:inference/models@0.1.0",
        "wasi:keyvalue/store",
        "inherit = true",
    ] {
        assert!(detail.contains(expected), "{detail}");
    }
}

#[test]
fn failing_middleware_fails_its_own_call() {
    let more = json!({"limits": {"cpu-seconds": 1}});
    let corral = start("misbehave", &["middleware", "middleware"], more);
    corral.with_neighbors(|| {
        for words in ["trap", "pass trap"] {
            post(&corral, "/a/ok", words, "").problem(500, "trapped");
        }
        for words in ["trap-late", "pass trap-late"] {
            stream(&corral, "/a/drip", words, "").check_cut_off();
        }
        post(&corral, "/a/ok", "pass spin", "").problem(504, "cpu-time");
        // The handler's failures are its own, and an error that it returns can be handled.
        post(&corral, "/a/trap", "pass", "").problem(500, "trapped");
        let refused = post(&corral, "/a/refuse", "pass pass", "");
        assert!(refused.status >= 500, "{refused:?}");
        let answer = post(&corral, "/a/refuse", "pass stand-in", "");
        assert_eq!((answer.status, &*answer.body), (200, "stand-in"));
        stream(&corral, "/a/midtrap", "upper", "").check_cut_off();
    });
    assert_eq!(post(&corral, "/a/ok", "pass pass", "").body, "ok");
    corral.check_alive();
}

#[test]
fn deploy_uploads_middleware() {
    let corral = Corral::start_with_store(&[]);
    let path = |name: &str| artifacts::plugin(name).display().to_string();
    let (handler, first, second) = (path("misbehave"), path("redactor"), path("middleware"));
    let deploy = [
        "deploy",
        &handler,
        "--name",
        "a",
        "--route",
        "/a",
        "--middleware",
        &first,
        "--middleware",
        &second,
    ];
    corral.cli_output(&deploy);
    let digests = ["redactor", "middleware"].map(|name| digest(&component(name)));
    let shown = show(&corral, "a");
    let linked = &shown["revisions"][0]["manifest"]["linked"];
    assert_eq!(*linked, json!({"middleware": digests}));
    assert_eq!(shown["deployment"]["traffic"][0]["linked"], *linked);
    let page = corral.cli_output(&["show", "a"]);
    let [redactor, middleware] = digests.map(|digest| digest[..19].to_owned());
    let links = format!("middleware={redactor} middleware={middleware}\n");
    assert!(page.contains(&links), "{page}");
    let answer = post(&corral, "/a/echo", "pass", "call +49 30 1234567");
    assert_eq!(answer.body, "call [PHONE-1]");
    corral
        .cli(&[&deploy[..], &["--middleware", "/no.wasm"]].concat())
        .check_error(1, &["cannot read the component /no.wasm"]);
}
