//! The deployment's models: names, lists and details.

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Model, Response};
use serde_json::{Value, json};

use conversation::CallFormat;

/// The tag that clients add to a name without one.
const DEFAULT_TAG: &str = ":latest";

/// The version of Ollama's API that the routes follow.
const VERSION: &str = "0.13.0";

/// Reads the model's name: `model`, or `name` as old clients call it.
pub fn read_name(fields: &mut Fields) -> Result<String, Error> {
    let name = match fields.text("model")? {
        Some(name) => {
            fields.take("name");
            Some(name)
        }
        None => fields.text("name")?,
    };
    let name = name.filter(|name| !name.is_empty());
    name.ok_or_else(|| fields.missing("model", "the name of a model"))
}

/// The name under which the host has a model that a client names, with or without the default tag.
pub fn resolve(name: &str) -> Result<String, Error> {
    let available = Model::available();
    let without_tag = name.strip_suffix(DEFAULT_TAG).unwrap_or(name);
    let mut candidates = [name, without_tag].into_iter();
    let known = candidates.find(|candidate| available.iter().any(|one| one == candidate));
    known.map(str::to_owned).ok_or_else(|| {
        // Clients look for these words.
        let text = format!(
            "model '{name}' not found; expected one of: {}",
            available.join(", ")
        );
        Error::new(404, "unknown-model", text).with_field("model")
    })
}

/// `/api/version`.
pub fn version() -> Response {
    Response::json(&json!({"version": VERSION}))
}

/// `/api/tags`: all models.
pub fn tags() -> Response {
    let models: Vec<_> = Model::available().iter().map(|name| entry(name)).collect();
    Response::json(&json!({"models": models}))
}

/// `/api/ps`: the host loads models when needed and keeps them, so these are all models as well.
pub fn ps() -> Response {
    let models = Model::available();
    let models: Vec<_> = models
        .iter()
        .map(|name| {
            let mut model = entry(name);
            model["expires_at"] = NEVER.into();
            model["size_vram"] = 0.into();
            model
        })
        .collect();
    Response::json(&json!({"models": models}))
}

/// A time for what has none: clients require a time here.
const LONG_AGO: &str = "1970-01-01T00:00:00Z";
const NEVER: &str = "9999-12-31T23:59:59Z";

/// The digest of a model: none is known, but the program `ollama` shows the first 12 digits, and fails if there are fewer.
const NO_DIGEST: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// A plugin does not learn a model's file, so its size, digest and time are unknown.
fn entry(name: &str) -> Value {
    json!({
        "name": name,
        "model": name,
        "modified_at": LONG_AGO,
        "size": 0,
        "digest": NO_DIGEST,
        "details": details(),
    })
}

fn details() -> Value {
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": "",
        "families": [],
        "parameter_size": "",
        "quantization_level": "",
    })
}

/// `/api/show`: the details of one model.
pub async fn show(mut fields: Fields) -> Result<Response, Error> {
    let name = resolve(&read_name(&mut fields)?)?;
    let model = Model::open(&name).await?;
    let info = model.info();
    let template = info.chat_template.as_deref().unwrap_or_default();
    let mut capabilities = vec!["completion"];
    if CallFormat::detect(&model).is_ok() {
        capabilities.push("tools");
    }
    if model.accepts_images() {
        capabilities.push("vision");
    }
    if template.contains("</think>") {
        capabilities.push("thinking");
    }
    Ok(Response::json(&json!({
        "modelfile": "",
        "parameters": "",
        "template": template,
        "modified_at": LONG_AGO,
        "details": details(),
        "model_info": {
            "general.architecture": "model",
            "general.basename": name,
            "model.context_length": info.context,
            "model.embedding_length": info.embedding_length,
            "model.vocab_size": info.vocabulary,
        },
        "capabilities": capabilities,
    })))
}

/// `/api/pull`: succeeds for a model that is there, since clients pull before they use a model.
pub fn pull(mut fields: Fields) -> Result<Response, Error> {
    resolve(&read_name(&mut fields)?)?;
    let success = json!({"status": "success"});
    if !fields.boolean("stream")?.unwrap_or(true) {
        return Ok(Response::json(&success));
    }
    Ok(Response::json_lines(async move |lines| {
        lines.json_line(&success).await
    }))
}
