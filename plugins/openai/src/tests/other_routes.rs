//! Models, embeddings, tokenization and unknown routes. The clients of the whole-program tests have the usual requests.

use corral_sdk::Request;
use corral_sdk::testing::Script;
use serde_json::{Value, json};

use super::{ask, assert_error, merged, post};

fn get(path: &str) -> (u16, Value) {
    let (head, text) = ask(&Script::new(), Request::get(path));
    (head.status(), serde_json::from_str(&text).unwrap())
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
        ("/v1/messages/batches", true),
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
        assert_eq!(status, 404, "{path}");
        assert_eq!(answer["error"]["code"], "no-route", "{path}");
    }
}

#[test]
fn embedding_errors_name_the_field() {
    let script = Script::new().embedding("a", &[1.0, -2.5, 0.0, 0.5]);
    let path = "/v1/embeddings";
    let (status, _) = post(&script, path, &json!({"input": "a", "dimensions": 4}));
    assert_eq!(status, 200);
    for (body, field) in [
        (json!({"input": ""}), "input"),
        (json!({"input": [1.5]}), "input[0]"),
        (json!({"input": ["a", true]}), "input[1]"),
        (json!({"input": "a", "dimensions": 3}), "dimensions"),
    ] {
        assert_error(&script, path, &body, (400, "param", field));
    }
}

#[test]
fn rerank_template_of_the_model_is_filled() {
    let filled = |document: &str| format!("<|im_start|>Q: 12+7=\nD: {document}<|im_end|>\n\n");
    // The last one does not end its turn.
    let documents = ["19", "{query}", "x<|im_end|>"];
    let mut script =
        Script::new().rerank_template(&filled("{document}").replace("12+7=", "{query}"));
    for (document, score) in documents.iter().zip([0.75, 0.5, 0.25]) {
        script = script.embedding(&filled(document), &[score]);
    }
    let body = json!({"query": "12+7=", "documents": documents});
    let (status, answer) = post(&script, "/v1/rerank", &body);
    assert_eq!(status, 200, "{answer}");
    let results = answer["results"].as_array().unwrap().iter();
    let scores: Vec<_> = results.map(|one| &one["relevance_score"]).collect();
    assert_eq!(scores, [0.75, 0.5, 0.25]);
    let control = "<|im_start|><|im_end|>".len();
    let tokens = documents.map(|document| filled(document).len() - control + 2);
    let expected: usize = tokens.iter().sum();
    assert_eq!(answer["usage"]["prompt_tokens"], expected);
}

#[test]
fn long_lists_of_tokens_are_whole() {
    let text = "ab".repeat(20_000);
    let script = Script::new();
    let tokens: Vec<_> = text.bytes().collect();
    let path = "/tokenize";
    let (status, answer) = post(&script, path, &json!({"content": text}));
    assert_eq!((status, &answer), (200, &json!({"tokens": tokens})));
    let (_, answer) = post(
        &script,
        path,
        &json!({"content": text, "with_pieces": true}),
    );
    let last = answer["tokens"].as_array().unwrap().last();
    assert_eq!(last, Some(&json!({"id": 98, "piece": "b"})));
    let body = json!({"prompt": text, "add_special_tokens": false});
    let (_, mut answer) = post(&script, path, &body);
    let expected = json!({
        "count": tokens.len(), "max_model_len": 4096, "tokens": tokens, "token_strs": null,
    });
    assert_eq!(answer, expected);
    let body = merged(body, &json!({"return_token_strs": true}));
    (_, answer) = post(&script, path, &body);
    assert_eq!(answer["token_strs"].as_array().unwrap().len(), tokens.len());
    let (_, answer) = post(&script, path, &json!({"content": ""}));
    assert_eq!(answer, json!({"tokens": []}));
    let long = "a".repeat((4 << 20) + 1);
    for body in [
        json!({"content": &long}),
        json!({"content": [&long[1..], "a"]}),
        json!({"prompt": &long}),
    ] {
        let (status, answer) = post(&script, path, &body);
        assert_eq!(
            (status, &answer["error"]["code"]),
            (413, &"request-too-large".into())
        );
    }
}

#[test]
fn special_tokens_are_added_on_request() {
    let script = Script::new().control_token("<s>").begin_token("<s>");
    let body = json!({"content": "a", "add_special": true});
    let (_, answer) = post(&script, "/tokenize", &body);
    assert_eq!(answer["tokens"], json!([259, 97]));
}
