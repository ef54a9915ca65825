//! What clients of llama.cpp's server and vLLM ask about the server: `/health`, `/props`, `/slots`,
//! `/tokenizer_info` and `/version`.

use corral_sdk::model::RequestCounts;
use corral_sdk::{Error, Model, Response, Token};
use serde_json::{Value, json};

use crate::configuration::Configuration;
use crate::llama_server;
use crate::models::resolve;
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
            "params": llama_server::default_settings(configuration)?,
        },
        "total_slots": slot_count(configuration, model.request_counts()?),
        "model_alias": model.name(),
        // A plugin knows the name of a model, not its file.
        "model_path": model.name(),
        "chat_template": info.chat_template.as_deref().unwrap_or_default(),
        "bos_token": name_of(info.bos, &model)?,
        "eos_token": name_of(info.eos, &model)?,
        "modalities": {"vision": model.accepts_images(), "audio": model.accepts_audio()},
        "endpoint_slots": configuration.slots != Some(0),
        "build_info": SYSTEM_FINGERPRINT,
        "is_sleeping": false,
    })))
}

/// The requests of a model as slots. The host batches requests as they come and tells a plugin their number, so the first
/// slots are in use, and none says by which request. With `fail_on_no_slot`, it is an error if all are.
pub async fn slots(
    name: Option<String>,
    fail_on_no_slot: bool,
    configuration: &Configuration,
) -> Result<Response, Error> {
    if configuration.slots == Some(0) {
        let text = "this deployment does not tell how many requests run; its operator can remove `slots = \"0\"` from \
                    [configuration]";
        return Err(Error::new(501, "unsupported", text));
    }
    let model = open(name, configuration).await?;
    let counts = model.request_counts()?;
    let count = slot_count(configuration, counts);
    let used = counts.running.saturating_add(counts.waiting);
    if fail_on_no_slot && used >= count {
        let text =
            format!("none of {count} slots is free: {used} requests run or wait; try again later");
        return Err(Error::new(503, "no-slot", text));
    }
    let slots = (0..count).map(|id| {
        json!({
            "id": id,
            "n_ctx": model.info().context,
            "speculative": false,
            "is_processing": id < used,
        })
    });
    Ok(Response::json(&slots.collect::<Vec<_>>()))
}

/// As many as the configuration says, but no more than requests may run at a time.
fn slot_count(configuration: &Configuration, counts: RequestCounts) -> u32 {
    let most = counts.max_running;
    let configured = configuration.slots.filter(|slots| *slots > 0);
    configured.map_or(most, |slots| slots.min(most))
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
