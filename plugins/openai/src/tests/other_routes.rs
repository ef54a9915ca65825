//! Models, embeddings, tokenization and unknown routes.

use corral_sdk::Request;
use corral_sdk::testing::Script;
use serde_json::{Value, json};

use super::{ask, assert_error, post};

fn get(path: &str) -> (u16, Value) {
    let (head, text) = ask(&Script::new(), Request::get(path));
    (head.status(), serde_json::from_str(&text).unwrap())
}

#[test]
fn models_are_listed() {
    let card = json!({"id": "script", "object": "model", "created": 0, "owned_by": "corral"});
    assert_eq!(
        get("/v1/models"),
        (200, json!({"object": "list", "data": [card]}))
    );
    assert_eq!(get("/v1/models/script"), (200, card));
    let (status, answer) = get("/v1/models/other");
    assert_eq!(
        (status, &answer["error"]["code"]),
        (404, &"model_not_found".into())
    );
}

#[test]
fn model_name_may_contain_a_slash() {
    let script = Script::new().info(|info| info.name = "org/é%2 +:7b".to_owned());
    for (path, status) in [
        ("org%2F%C3%a9%252%20+:7b", 200),
        ("org/%c3%A9%2%20+%3a7b", 200),
        ("org%252F%C3%a9%252%20+:7b", 404),
        ("%", 404),
        ("%ff", 404),
    ] {
        let (head, text) = ask(&script, Request::get(&format!("/v1/models/{path}")));
        assert_eq!(head.status(), status, "{path}: {text}");
    }
}

#[test]
fn errors_below_messages_have_its_format() {
    for (path, anthropic) in [
        ("/v1/messages", true),
        ("/v1/messages/count_tokens", true),
        ("/v1/messages/batches/x", true),
        ("/v1/messagesx", false),
    ] {
        let (status, answer) = get(path);
        assert_eq!(status, if path == "/v1/messages" { 405 } else { 404 });
        assert_eq!(answer["type"] == "error", anthropic, "{path}");
    }
}

#[test]
fn unknown_route_answers_404() {
    for path in ["/v1", "/v1/chat", "/v1/images/generations", "/tokenize/x"] {
        let (status, answer) = get(path);
        assert_eq!(
            (status, &answer["error"]["code"]),
            (404, &"no-route".into()),
            "{path}"
        );
    }
}

#[test]
fn embeddings_have_the_requested_encoding() {
    let script = Script::new()
        .embedding("a", &[1.0, -2.5, 0.0, 0.5])
        .embedding("bc", &[0.25, 0.0, 0.0, 0.0]);
    let path = "/v1/embeddings";
    let (status, answer) = post(
        &script,
        path,
        &json!({"input": ["a", "bc"], "dimensions": 4}),
    );
    assert_eq!(status, 200);
    assert_eq!(answer["data"][0]["embedding"], json!([1.0, -2.5, 0.0, 0.5]));
    assert_eq!(answer["data"][1]["index"], 1);
    assert_eq!(
        answer["usage"],
        json!({"prompt_tokens": 3, "total_tokens": 3})
    );
    for input in [json!([98, 99]), json!([[98, 99]]), json!("bc")] {
        let (_, answer) = post(&script, path, &json!({"input": input}));
        assert_eq!(answer["data"][0]["embedding"][0], 0.25, "{input}");
    }
    let (_, answer) = post(
        &script,
        path,
        &json!({"input": "a", "encoding_format": "base64"}),
    );
    assert_eq!(answer["data"][0]["embedding"], "AACAPwAAIMAAAAAAAAAAPw==");
    for (body, member) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": ""}), "input"),
        (json!({"input": [1.5]}), "input[0]"),
        (json!({"input": ["a", 1]}), "input[1]"),
        (json!({"input": "a", "dimensions": 3}), "dimensions"),
        (
            json!({"input": "a", "encoding_format": "int8"}),
            "encoding_format",
        ),
        (json!({"input": "a", "pool": 1}), "pool"),
    ] {
        assert_error(&script, path, &body, (400, "param", member));
    }
}

#[test]
fn tokenize_and_detokenize_round_trip() {
    let script = Script::new().control_token("<s>").begin_token("<s>");
    let tokens = |body: Value| post(&script, "/tokenize", &body).1["tokens"].clone();
    assert_eq!(tokens(json!({"content": "a<s>"})), json!([97, 259]));
    assert_eq!(
        tokens(json!({"content": "a", "add_special": true})),
        json!([259, 97])
    );
    assert_eq!(
        tokens(json!({"content": "<s>", "parse_special": false})),
        json!([60, 115, 62])
    );
    assert_eq!(
        tokens(json!({"content": "é<s>", "with_pieces": true})),
        json!([{"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}, {"id": 259, "piece": "<s>"}])
    );
    let (_, answer) = post(&script, "/detokenize", &json!({"tokens": [195, 169, 259]}));
    assert_eq!(answer, json!({"content": "é<s>"}));
    assert_error(
        &script,
        "/detokenize",
        &json!({"tokens": [260]}),
        (400, "param", "tokens[0]"),
    );
    assert_error(&script, "/tokenize", &json!({}), (400, "param", "content"));
}
