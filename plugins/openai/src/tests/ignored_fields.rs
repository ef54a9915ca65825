//! Fields without effect: named in a header, or refused.

use conversation::silently_ignored;
use corral_sdk::Request;
use corral_sdk::fields::ignored;
use corral_sdk::testing::Script;
use serde_json::{Value, json};

use super::{TEMPLATE, ask, ask_with, strict};

fn script() -> Script {
    let script = Script::new().chat_template(TEMPLATE);
    script
        .answers("assistant\n", "x")
        .answers("a", "x")
        .embedding("a", &[1.0])
}

/// Requests with an unknown field, and its name.
fn requests() -> Vec<(&'static str, Value, &'static str)> {
    let user = json!({"role": "user", "content": "Hi"});
    let mut odd = user.clone();
    odd["mood"] = 1.into();
    vec![
        (
            "/v1/chat/completions",
            json!({"messages": [user, odd]}),
            "messages[].mood",
        ),
        ("/v1/completions", json!({"prompt": "a", "nope": 1}), "nope"),
        ("/v1/embeddings", json!({"input": "a", "pool": 1}), "pool"),
        ("/v1/responses", json!({"input": "Hi", "nope": [1]}), "nope"),
        (
            "/v1/messages",
            json!({"messages": [user], "max_tokens": 9, "nope": {}}),
            "nope",
        ),
        ("/tokenize", json!({"content": "a", "nope": 1}), "nope"),
        ("/completion", json!({"prompt": "a", "nope": 1}), "nope"),
    ]
}

#[test]
fn unknown_member_is_named_in_a_header() {
    for (path, body, name) in requests() {
        let (head, text) = ask(&script(), Request::post(path).with_json(&body));
        assert_eq!(head.status(), 200, "{path}: {text}");
        assert_eq!(head.header(ignored::HEADER), Some(name), "{path}");
    }
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "nope": null});
    let request = Request::post("/v1/chat/completions").with_json(&body);
    let (head, _) = ask(&script(), request);
    assert_eq!(head.header(ignored::HEADER), None, "null counts as absent");
}

#[test]
fn head_of_a_stream_names_it_too() {
    let body = json!({"prompt": "a", "stream": true, "nope": 1});
    let request = Request::post("/v1/completions").with_json(&body);
    let (head, text) = ask(&script(), request);
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    assert_eq!(head.header(ignored::HEADER), Some("nope"));
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
}

#[test]
fn strict_configuration_refuses_unknown_fields() {
    for (path, body, name) in requests() {
        let request = Request::post(path).with_json(&body);
        let (head, text) = ask_with(strict(), &script(), request);
        assert_eq!(head.status(), 400, "{path}");
        assert_eq!(head.header(ignored::HEADER), None, "{path}");
        let last = name.rsplit('.').next().unwrap();
        assert!(text.contains(&format!("{last}` is unknown")), "{text}");
    }
}

#[test]
fn last_slash_of_a_path_is_ignored() {
    let body = json!({"prompt": "a"});
    let (head, text) = ask(
        &script(),
        Request::post("/v1/completions/").with_json(&body),
    );
    assert_eq!(head.status(), 200, "{text}");
    let body = json!({"prompt": "a"});
    let (head, text) = ask(&script(), Request::post("/completion/").with_json(&body));
    assert_eq!(head.status(), 200, "{text}");
    for path in ["/v1/models/", "/v1/models/script/", "/health/", "/props/"] {
        assert_eq!(ask(&script(), Request::get(path)).0.status(), 200, "{path}");
    }
    assert_eq!(ask(&script(), Request::get("/v1/models//")).0.status(), 404);
    assert_eq!(ask(&script(), Request::get("/")).0.status(), 404);
}

#[test]
fn head_is_allowed_where_get_is() {
    for (path, status) in [
        ("/v1/models", 200),
        ("/v1/models/x", 404),
        ("/v1/completions", 405),
    ] {
        let (head, _) = ask(&script(), Request::new("HEAD", path));
        assert_eq!(head.status(), status, "{path}");
    }
}

#[test]
fn compressed_body_is_read() {
    // As Python's gzip.compress(b'{"prompt": "a"}', mtime=0) writes it.
    const GZIP: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\x56\x2a\x28\xca\xcf\x2d\x28\x51\xb2\x52\x50\x4a\x54\xaa\x05\x00\xd7\xbf\x52\x98\x0f\x00\x00\x00";
    let post = || Request::post("/v1/completions").with_body(GZIP);
    let (head, text) = ask(&script(), post().with_header("content-encoding", "gzip"));
    assert_eq!(head.status(), 200, "{text}");
    let (head, text) = ask(&script(), post().with_header("content-encoding", "br"));
    assert_eq!(head.status(), 415, "{text}");
}

#[test]
fn readme_has_the_reason_of_each_hint() {
    let readme = include_str!("../../README.md");
    let tables = [
        &silently_ignored::OF_REQUEST[..],
        &silently_ignored::OF_MESSAGE,
        &silently_ignored::OF_PART,
        &silently_ignored::OF_TOOL,
    ];
    for (name, reason) in tables.concat() {
        let field = format!("`{name}`");
        let reason = format!("| {reason} |");
        let mut lines = readme.lines();
        assert!(
            lines.any(|line| line.contains(&field) && line.ends_with(&reason)),
            "{name}: {reason}"
        );
    }
}
