//! Members without effect: named in a header, or refused.

use corral_sdk::Request;
use corral_sdk::fields::ignored;
use corral_sdk::testing::Script;
use serde_json::{Value, json};

use super::{TEMPLATE, ask, ask_with};
use crate::configuration::Configuration;

fn script() -> Script {
    let script = Script::new().chat_template(TEMPLATE);
    script
        .answers("assistant\n", "x")
        .answers("a", "x")
        .embedding("a", &[1.0])
}

/// Requests with an unknown member, and its name.
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
fn strict_configuration_refuses_unknown_members() {
    for (path, body, name) in requests() {
        let request = Request::post(path).with_json(&body);
        let (head, text) = ask_with(
            Configuration {
                strict: true,
                ..Configuration::default()
            },
            &script(),
            request,
        );
        assert_eq!(
            (head.status(), head.header(ignored::HEADER)),
            (400, None),
            "{path}"
        );
        let last = name.rsplit('.').next().unwrap();
        assert!(text.contains(&format!("{last}` is unknown")), "{text}");
    }
}
