//! Writes server-sent events to memory, a thousand at a time.

use corral_sdk::Response;
use corral_sdk::testing::block_on;
use serde_json::{Value, json};
use std::rc::Rc;

/// Events per response.
pub const EVENTS: usize = 1000;
/// An event of the plugin `generate`.
pub const TOKEN: &str = r#"{"text":" river"}"#;
/// Each line needs its own `data:` prefix.
pub const LINES: &str = "The quiet owl\nlooks at the river\r\nand the stone.\n";

/// A token's event in OpenAI's API.
pub fn chunk() -> Value {
    json!({
        "id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1_700_000_000,
        "model": "tiny", "choices": [{"index": 0, "delta": {"content": " river"}, "finish_reason": null}],
    })
}

/// Events with this text.
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

/// Events with a value, serialized for each.
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
