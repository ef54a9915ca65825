//! `/v1/models`.

use corral_sdk::{Error, Model, Response};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

/// The model that a path below `/v1/models/` names. Clients may percent-encode `/`.
pub fn name_in_path(path: &str) -> Option<String> {
    let name = path.strip_prefix("/v1/models/")?;
    let name = percent_decode_str(name).decode_utf8_lossy();
    Some(name.into_owned())
}

/// Lists all models, the default first.
pub fn list() -> Response {
    let models = Model::available();
    let models: Vec<_> = models.iter().map(|name| model_json(name)).collect();
    Response::json(&json!({"object": "list", "data": models}))
}

/// Shows one model.
pub fn show(name: &str) -> Result<Response, Error> {
    Model::check_available(name)?;
    Ok(Response::json(&model_json(name)))
}

/// The creation time of a model is unknown, so `created` is 0.
fn model_json(name: &str) -> Value {
    json!({"id": name, "object": "model", "created": 0, "owned_by": "corral"})
}
