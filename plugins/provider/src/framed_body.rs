//! A generation's text as a byte stream: see `frame` in the WIT.

use serde_json::Value;
use wit_bindgen::{StreamReader, StreamResult, StreamWriter};

use crate::bindings::exports::corral::inference::inference_async::Framing;
use crate::live_generation::LiveGeneration;

/// Bytes of the plugin's rest that are read at once.
const REST_BUFFER: usize = 4096;

/// Writes the framed text, then the rest. Ends when the plugin drops the body.
pub(crate) async fn write(
    generation: LiveGeneration,
    framing: Framing,
    mut rest: StreamReader<u8>,
    mut body: StreamWriter<u8>,
) {
    let LiveGeneration {
        generation,
        outcome,
        unread,
        ..
    } = generation;
    let mut chunk = unread.into_iter().next();
    let mut bytes = framing.first.clone();
    loop {
        if let Some(text) = chunk
            .map(|chunk| chunk.text)
            .filter(|text| !text.is_empty())
        {
            bytes.extend(&framing.before);
            match framing.json {
                true => bytes.extend(Value::from(text).to_string().bytes()),
                false => bytes.extend(text.bytes()),
            }
            bytes.extend(&framing.after);
        }
        // Without bytes, this waits until the plugin reads.
        let unsent = body.write_all(std::mem::take(&mut bytes)).await;
        if !unsent.is_empty() {
            // Dropping the generation cancels it.
            return;
        }
        chunk = generation.read();
        if chunk.is_none() {
            break;
        }
    }
    let result = generation.outcome();
    drop(generation);
    // An error says that the plugin does not want the outcome.
    let _ = outcome.write(result).await;
    let mut status = StreamResult::Complete(0);
    while let StreamResult::Complete(_) = status {
        let read;
        (status, read) = rest.read(Vec::with_capacity(REST_BUFFER)).await;
        if !read.is_empty() && !body.write_all(read).await.is_empty() {
            return;
        }
    }
}
