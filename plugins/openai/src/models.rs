//! `/v1/models`, and the names under which requests find models.

use corral_sdk::{Error, Model, Response};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

use crate::configuration::Configuration;
use conversation::ids::now;

/// The model that a path below `/v1/models/` or `/models/` names. Clients may percent-encode `/`.
pub fn name_in_path(path: &str) -> Option<String> {
    let path = path.strip_prefix("/v1").unwrap_or(path);
    let name = path.strip_prefix("/models/")?;
    let name = percent_decode_str(name).decode_utf8_lossy();
    Some(name.into_owned())
}

/// The model's own name for a name in a request. An unknown name stays as it is, unless the
/// deployment serves the default model instead.
pub fn resolve(name: String, configuration: &Configuration) -> String {
    let known = Model::available();
    if known.contains(&name) {
        return name;
    }
    let alias = configuration
        .aliases
        .iter()
        .find(|(alias, _)| *alias == name);
    match (alias, known.into_iter().next()) {
        (Some((_, model)), _) => model.clone(),
        (None, Some(default)) if configuration.accept_unknown_models => default,
        _ => name,
    }
}

/// Replaces the name in a request's fields by the model's own.
pub fn resolve_name(request_fields: &mut Map<String, Value>, configuration: &Configuration) {
    if let Some(Value::String(name)) = request_fields.get_mut("model") {
        *name = resolve(std::mem::take(name), configuration);
    }
}

/// Lists all models, the default first. Opening a model loads it, so only the default one, which
/// the host loads first, has its facts here; [`show`] has those of the others.
pub async fn list(configuration: &Configuration) -> Result<Response, Error> {
    let mut models = Vec::new();
    for (at, name) in Model::available().into_iter().enumerate() {
        let opened = match at {
            0 => Some(Model::open(&name).await?),
            _ => None,
        };
        models.push(model_json(&name, opened.as_ref(), configuration));
    }
    Ok(Response::json(&json!({"object": "list", "data": models})))
}

/// Shows one model.
pub async fn show(name: &str, configuration: &Configuration) -> Result<Response, Error> {
    let name = resolve(name.to_owned(), configuration);
    let model = Model::open_requested(Some(&name)).await?;
    Ok(Response::json(&model_json(
        &name,
        Some(&model),
        configuration,
    )))
}

/// The creation time of the file is unknown to a plugin. `created` is the time of the request, as in
/// llama.cpp's server.
fn model_json(name: &str, model: Option<&Model>, configuration: &Configuration) -> Value {
    let aliases = configuration.aliases.iter();
    let aliases = aliases.filter(|(_, model)| model == name);
    let aliases: Vec<_> = aliases.map(|(alias, _)| alias.as_str()).collect();
    let names = [&[name][..], &aliases].concat();
    let mut json = json!({
        "id": name,
        "object": "model",
        "created": now(),
        "owned_by": "corral",
        "aliases": names,
        "tags": configuration.tags,
    });
    if let Some(model) = model {
        let info = model.info();
        let inputs = [
            ("text", true),
            ("image", model.accepts_images()),
            ("audio", model.accepts_audio()),
        ];
        let inputs = inputs.iter().filter(|(_, is_accepted)| *is_accepted);
        let inputs: Vec<_> = inputs.map(|(name, _)| *name).collect();
        // The names of OpenRouter.
        json["architecture"] = json!({"input_modalities": inputs, "output_modalities": ["text"]});
        json["max_model_len"] = info.context.into();
        json["meta"] = json!({
            "n_ctx": info.context,
            "n_vocab": info.vocabulary,
            "n_embd": info.embedding_length,
        });
    }
    json
}
