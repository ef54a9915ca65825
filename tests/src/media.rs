//! Chats about a sum that a picture or a recording holds.

use crate::{Corral, RELIABLE_SUMS, Response, Sum};
use serde_json::{Value, json};

/// Asks for the sum of `part`, which holds a file.
pub fn ask_about(corral: &Corral, part: &Value) -> Response {
    let content = json!([part, {"type": "text", "text": "="}]);
    let body = json!({"messages": [{"role": "user", "content": content}], "temperature": 0});
    corral.post("/v1/chat/completions", body.to_string())
}

/// The text of the response to a chat.
pub fn answer(response: &Response) -> String {
    let content = &response.ok_json()["choices"][0]["message"]["content"];
    content.as_str().expect("text").to_owned()
}

/// Asserts that a file's `positions` are cached for the same file only; `ask` sends the file of a sum to a new server.
pub fn check_only_same_file_is_cached(
    corral: &Corral,
    positions: u64,
    ask: impl Fn(Sum) -> Response,
) {
    let [one, other, ..] = RELIABLE_SUMS;
    let cached = |sum: Sum| {
        let response = ask(sum);
        assert_eq!(answer(&response), sum.answer());
        let usage = response.json()["usage"].clone();
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        let prompt = usage["prompt_tokens"].as_u64().expect("a number");
        (cached.expect("a number"), prompt)
    };
    let (none, prompt) = cached(one);
    assert_eq!(none, 0);
    assert_eq!(cached(one), (prompt - 1, prompt));
    // Of another file only the text before it.
    let (before, same) = cached(other);
    assert_eq!(same, prompt);
    assert!(0 < before, "{before} of {prompt}");
    assert!(before < prompt - positions, "{before} of {prompt}");
    assert_eq!(cached(one), (prompt - 1, prompt));
    let metrics = corral.metrics();
    for metric in ["images_encoded", "image_cache_hits"] {
        let count = metrics.get(&format!("corral_engine_{metric}_total"));
        assert_eq!(count, 2.0, "{metric}");
    }
}
