//! JSON serialized while it is written, so that a long response is in memory once.

use std::io;

use corral_sdk::{Error, Response};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// A 200 with a value as JSON. Serializes twice, first to determine the length: a growing buffer
/// needs up to three times its size for a while, and a plugin has little memory.
pub fn respond(value: &impl Serialize) -> Result<Response, Error> {
    let to_error = |error| Error::Failed(format!("the response has no JSON form: {error}"));
    let mut length = ByteCount(0);
    serde_json::to_writer(&mut length, value).map_err(to_error)?;
    let mut body = Vec::with_capacity(length.0);
    serde_json::to_writer(&mut body, value).map_err(to_error)?;
    Ok(Response::bytes("application/json", body))
}

/// Counts the bytes written.
struct ByteCount(usize);

impl io::Write for ByteCount {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A response of chat completions and completions.
#[derive(Serialize)]
pub struct CompletionResponse<'a, C> {
    pub id: String,
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    pub model: &'a str,
    pub system_fingerprint: &'static str,
    pub choices: Vec<C>,
    pub usage: Value,
    pub timings: Value,
    /// The rendered prompt, for `verbose`.
    #[serde(rename = "__verbose", skip_serializing_if = "Option::is_none")]
    pub verbose: Option<Value>,
}

/// A JSON array of an iterator's items. The function creates the iterator for each serialization.
pub struct JsonArray<F>(pub F);

impl<F, I> Serialize for JsonArray<F>
where
    F: Fn() -> I,
    I: Iterator<Item: Serialize>,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// A JSON object of an iterator's names and values.
pub struct JsonObject<F>(pub F);

impl<F, I, N, V> Serialize for JsonObject<F>
where
    F: Fn() -> I,
    I: Iterator<Item = (N, V)>,
    N: Serialize,
    V: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map((self.0)())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::block_on;

    #[test]
    fn arrays_and_objects_serialize_twice() {
        let array = JsonArray(|| (0..3).map(|at| (at > 0).then_some(at)));
        let object = JsonObject(|| [("a", 0.5), ("\u{e9}\"", -1.0)].into_iter());
        let response = respond(&(array, object)).unwrap();
        assert_eq!(response.header("content-type"), Some("application/json"));
        let body = block_on(response.read());
        let expected = "[[null,1,2],{\"a\":0.5,\"\u{e9}\\\"\":-1.0}]";
        assert_eq!(String::from_utf8(body).unwrap(), expected);
    }
}
