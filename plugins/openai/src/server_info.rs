//! What clients of llama.cpp's server and vLLM ask about the server: `/health`, `/props`, `/slots`,
//! `/tokenizer_info` and `/version`.

use corral_sdk::{Error, Model, Response, Token};
use serde_json::{Value, json};

use crate::configuration::Configuration;
use crate::models::resolve;
use crate::native;
use crate::timings::SYSTEM_FINGERPRINT;

/// Answers once the host runs plugins. It does not load a model.
pub fn health() -> Response {
    Response::json(&json!({"status": "ok"}))
}

/// The version of this plugin.
pub fn version() -> Response {
    Response::json(&json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// The properties of a model, by default the first, and the settings of a request without any.
pub async fn props(name: Option<String>, configuration: &Configuration) -> Result<Response, Error> {
    let model = open(name, configuration).await?;
    let info = model.info();
    Ok(Response::json(&json!({
        "default_generation_settings": {
            "n_ctx": info.context,
            "params": native::default_settings(configuration)?,
        },
        "total_slots": configuration.slots.unwrap_or(1),
        "model_alias": model.name(),
        // A plugin knows the name of a model, not its file.
        "model_path": model.name(),
        "chat_template": info.chat_template.as_deref().unwrap_or_default(),
        "bos_token": name_of(info.bos, &model)?,
        "eos_token": name_of(info.eos, &model)?,
        "modalities": {"vision": model.accepts_images(), "audio": model.accepts_audio()},
        "build_info": SYSTEM_FINGERPRINT,
        "is_sleeping": false,
    })))
}

/// The error of llama.cpp's server without `--slots`. The host schedules requests of all plugins together and tells
/// none about those of others, so a slot could not say whether it is in use.
pub fn slots() -> Result<Response, Error> {
    let text = "there are no slots: the host batches requests as they come; /metrics and /v1/loads count them by \
                model if the server runs with --metrics-public, and the operator sees them at /requests of the \
                admin listener";
    Err(Error::new(501, "unsupported", text))
}

/// The model's LoRA adapters, by whose ids requests choose one. None applies otherwise.
pub async fn adapters(
    name: Option<String>,
    configuration: &Configuration,
) -> Result<Response, Error> {
    let model = open(name, configuration).await?;
    let adapters = model.info().adapters.iter().enumerate();
    let adapters = adapters.map(|(id, name)| json!({"id": id, "path": name, "scale": 0.0}));
    Ok(Response::json(&adapters.collect::<Vec<_>>()))
}

/// Facts about the tokenizer, in the names of vLLM.
pub async fn tokenizer_info(
    name: Option<String>,
    configuration: &Configuration,
) -> Result<Response, Error> {
    let model = open(name, configuration).await?;
    let info = model.info();
    Ok(Response::json(&json!({
        "model": model.name(),
        "model_max_length": info.context,
        "vocab_size": info.vocabulary,
        "bos_token": name_of(info.bos, &model)?,
        "bos_token_id": info.bos,
        "eos_token": name_of(info.eos, &model)?,
        "eos_token_id": info.eos,
        "chat_template": info.chat_template,
    })))
}

async fn open(name: Option<String>, configuration: &Configuration) -> Result<Model, Error> {
    let name = name.map(|name| resolve(name, configuration));
    Model::open_requested(name.as_deref()).await
}

fn name_of(token: Option<Token>, model: &Model) -> Result<Value, Error> {
    Ok(match token {
        Some(token) => model.detokenize_with_control(&[token])?.into(),
        None => Value::Null,
    })
}
