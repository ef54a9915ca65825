//! Server-sent events as plugins write them, a thousand at a time, to memory.

use corral_sdk::Response;
use corral_sdk::testing::block_on;
use serde_json::{Value, json};
use std::rc::Rc;

/// Events of an answer.
pub const EVENTS: usize = 1000;
/// An event of `generate`.
pub const TOKEN: &str = r#"{"text":" river"}"#;
/// Each line gets a beginning of its own.
pub const LINES: &str = "The quiet owl\nlooks at the river\r\nand the stone.\n";

/// What a client of OpenAI's API gets for a token.
pub fn chunk() -> Value {
    json!({
        "id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1_700_000_000,
        "model": "tiny", "choices": [{"index": 0, "delta": {"content": " river"}, "finish_reason": null}],
    })
}

/// Events of this text.
pub fn data(text: &'static str) -> Vec<u8> {
    let response = Response::events(async move |events| {
        for _ in 0..EVENTS {
            events.data(text).await?;
        }
        Ok(())
    });
    block_on(response.read())
}

/// Events with a name.
pub fn named() -> Vec<u8> {
    let response = Response::events(async |events| {
        for _ in 0..EVENTS {
            events.named("content_block_delta", TOKEN).await?;
        }
        Ok(())
    });
    block_on(response.read())
}

/// Events of a value, which is written as JSON for each.
pub fn json(value: &Rc<Value>) -> Vec<u8> {
    let value = Rc::clone(value);
    let response = Response::events(async move |events| {
        for _ in 0..EVENTS {
            events.json(&*value).await?;
        }
        Ok(())
    });
    block_on(response.read())
}
