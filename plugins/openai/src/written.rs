//! JSON that is made as it is written, so that a long answer stands in memory once.

use std::io;

use corral_sdk::{Error, Response};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// 200 with a value as JSON. It is written twice, the first time to see how long it is: a text that grows as
/// it is written needs up to three times its room for a while, and a plugin has little.
pub fn answer(value: &impl Serialize) -> Result<Response, Error> {
    let no_form = |error| Error::Failed(format!("the answer has no JSON form: {error}"));
    let mut length = Length(0);
    serde_json::to_writer(&mut length, value).map_err(no_form)?;
    let mut body = Vec::with_capacity(length.0);
    serde_json::to_writer(&mut body, value).map_err(no_form)?;
    Ok(Response::bytes("application/json", body))
}

/// Bytes that were written.
struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An answer of the two oldest APIs.
#[derive(Serialize)]
pub struct Whole<'a, C> {
    pub id: String,
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    pub model: &'a str,
    pub choices: Vec<C>,
    pub usage: Value,
}

/// A list of what an iterator gives, which the function makes anew each time.
pub struct List<F>(pub F);

impl<F, I> Serialize for List<F>
where
    F: Fn() -> I,
    I: Iterator<Item: Serialize>,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// The same as an object, of pairs of names and values.
pub struct Members<F>(pub F);

impl<F, I, N, V> Serialize for Members<F>
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
    fn lists_and_objects_are_made_twice_alike() {
        let list = List(|| (0..3).map(|at| (at > 0).then_some(at)));
        let members = Members(|| [("a", 0.5), ("\u{e9}\"", -1.0)].into_iter());
        let response = answer(&(list, members)).unwrap();
        assert_eq!(response.header("content-type"), Some("application/json"));
        let body = block_on(response.read());
        assert_eq!(
            String::from_utf8(body).unwrap(),
            "[[null,1,2],{\"a\":0.5,\"\u{e9}\\\"\":-1.0}]"
        );
    }
}
