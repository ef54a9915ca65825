//! `/v1/models`: what there is to ask.

use corral_sdk::{Error, Model, Response};
use serde_json::{Value, json};

/// The model that a path below `/v1/models/` names. Clients write `/` and the like as `%2F`, or as it is.
pub fn named(path: &str) -> Option<String> {
    path.strip_prefix("/v1/models/").map(decoded)
}

/// A path without percent-encoding; what is none stays as it is.
fn decoded(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        bytes.push(match (first, after) {
            (b'%', &[high, low, ..]) => match (digit(high), digit(low)) {
                (Some(high), Some(low)) => {
                    rest = &after[2..];
                    high << 4 | low
                }
                _ => first,
            },
            _ => first,
        });
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What a hexadecimal digit stands for.
fn digit(letter: u8) -> Option<u8> {
    let digit = char::from(letter).to_digit(16)?;
    u8::try_from(digit).ok()
}

/// All of them, the default one first.
pub fn list() -> Response {
    let models = Model::available();
    let models: Vec<_> = models.iter().map(|name| card(name)).collect();
    Response::json(&json!({"object": "list", "data": models}))
}

/// One of them.
pub fn show(name: &str) -> Result<Response, Error> {
    check(Some(name))?;
    Ok(Response::json(&card(name)))
}

/// Nobody keeps when a model was made, so that is 0.
fn card(name: &str) -> Value {
    json!({"id": name, "object": "model", "created": 0, "owned_by": "corral"})
}

/// Opens the model that a request names, or the default one.
pub async fn open(name: Option<&str>) -> Result<Model, Error> {
    check(name)?;
    Model::open_or_first(name).await
}

/// 404, unless there is a model of the name.
fn check(name: Option<&str>) -> Result<(), Error> {
    let Some(name) = name else { return Ok(()) };
    let names = Model::available();
    if names.iter().any(|known| known == name) {
        return Ok(());
    }
    let text = format!("there is no model {name:?} here; expected one of {names:?}");
    Err(Error::new(404, "unknown-model", text).about("model"))
}
