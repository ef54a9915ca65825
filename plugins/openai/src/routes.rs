//! Dispatches requests to the APIs.

use std::pin::Pin;

use conversation::with_ignored;
use corral_sdk::fields::{Fields, ignored};
use corral_sdk::{Error, Request, Response};
use serde_json::{Map, Value};

use crate::configuration::Configuration;
use crate::error::{ApiError, ApiFormat};
use crate::{
    chat, completions, embeddings, field_types, llama_server, messages, models, rerank, responses,
    server_info, tokenize,
};

/// Limit for request bodies, in bytes.
const DEFAULT_BODY_LIMIT: usize = 8 << 20;

pub async fn handle(request: Request) -> Result<Response, ApiError> {
    handle_with(Configuration::from_environment(), request).await
}

/// Handles a request with this configuration of the plugin.
pub async fn handle_with(
    configuration: Result<Configuration, Error>,
    request: Request,
) -> Result<Response, ApiError> {
    let format = match request.path().strip_prefix("/v1/messages") {
        Some(below) if below.is_empty() || below.starts_with('/') => ApiFormat::Anthropic,
        _ => ApiFormat::OpenAi,
    };
    let with_format = |error| ApiError(format, error);
    let configuration = configuration.map_err(with_format)?;
    ignored::begin(configuration.strict);
    let request = request.with_body_limit(DEFAULT_BODY_LIMIT);
    let response = dispatch(request, &configuration).await;
    response.map(with_ignored).map_err(with_format)
}

async fn dispatch(mut request: Request, configuration: &Configuration) -> Result<Response, Error> {
    let path = request.path().to_owned();
    let path = path.strip_suffix('/').unwrap_or(&path);
    if let Some(name) = models::name_in_path(path) {
        request.expect_method("GET")?;
        return models::show(&name, configuration).await;
    }
    if let Some(stored) = responses::stored_path(path) {
        return responses::answer_stored(&request, stored, configuration.store_seconds);
    }
    match path {
        "/v1/models" | "/models" | "/health" | "/v1/health" | "/props" | "/slots" | "/version"
        | "/tokenizer_info" | "/lora-adapters" => {
            request.expect_method("GET")?;
            show(path, &request, configuration).await
        }
        _ => match api(path) {
            Some(api) => {
                request.expect_method("POST")?;
                let request_fields = request_fields(path, &mut request, configuration).await?;
                api(Fields::from_map(request_fields), configuration).await
            }
            None => Err(Error::new(
                404,
                "no-route",
                format!("there is no route {path}; expected one of those in the plugin's README"),
            )),
        },
    }
}

/// Answers a request without a body.
async fn show(
    path: &str,
    request: &Request,
    configuration: &Configuration,
) -> Result<Response, Error> {
    let model = request.query_parameter("model");
    match path {
        "/health" | "/v1/health" => Ok(server_info::health()),
        "/props" => server_info::props(model, configuration).await,
        "/slots" => {
            let fails = request.query_parameter("fail_on_no_slot");
            let fails = fails.is_some_and(|value| !value.is_empty());
            server_info::slots(model, fails, configuration).await
        }
        "/version" => Ok(server_info::version()),
        "/lora-adapters" => server_info::adapters(model, configuration).await,
        "/tokenizer_info" => server_info::tokenizer_info(model, configuration).await,
        _ => models::list(configuration).await,
    }
}

type Responding = Pin<Box<dyn Future<Output = Result<Response, Error>>>>;

/// The function that answers requests with a body at this path.
fn api(path: &str) -> Option<fn(Fields, &Configuration) -> Responding> {
    Some(match path {
        "/v1/chat/completions" | "/chat/completions" => |fields, _| Box::pin(chat::respond(fields)),
        "/v1/chat/completions/input_tokens" | "/chat/completions/input_tokens" => {
            |fields, _| Box::pin(chat::count_tokens(fields))
        }
        "/v1/chat/completions/render" | "/chat/completions/render" => {
            |fields, _| Box::pin(chat::render(fields))
        }
        "/apply-template" => |fields, _| Box::pin(chat::apply_template(fields)),
        "/v1/completions" => |fields, _| Box::pin(completions::respond(fields)),
        "/v1/completions/render" => |fields, _| Box::pin(completions::render(fields)),
        "/completion" | "/completions" => |fields, _| Box::pin(llama_server::completion(fields)),
        "/infill" => |fields, _| Box::pin(llama_server::infill(fields)),
        "/v1/embeddings" => |fields, _| Box::pin(embeddings::respond(fields)),
        "/embeddings" | "/embedding" => |fields, _| Box::pin(embeddings::respond_native(fields)),
        "/v1/rerank" | "/rerank" | "/v1/reranking" | "/reranking" | "/v2/rerank" => {
            |fields, _| Box::pin(rerank::respond(fields))
        }
        "/v1/responses" | "/responses" => |fields, configuration| {
            Box::pin(responses::respond(fields, configuration.store_seconds))
        },
        "/v1/responses/input_tokens" | "/responses/input_tokens" => |fields, configuration| {
            Box::pin(responses::input_tokens(fields, configuration.store_seconds))
        },
        "/v1/messages" => |fields, _| Box::pin(messages::respond(fields)),
        "/v1/messages/count_tokens" => |fields, _| Box::pin(messages::count_tokens(fields)),
        "/tokenize" => |fields, _| Box::pin(tokenize::tokenize(fields)),
        "/detokenize" => |fields, _| Box::pin(tokenize::detokenize(fields)),
        _ => return None,
    })
}

/// The fields of a request, with the model's own name and the deployment's defaults.
async fn request_fields(
    path: &str,
    request: &mut Request,
    configuration: &Configuration,
) -> Result<Map<String, Value>, Error> {
    let body = request.decompressed_body().await?;
    // Some clients on Windows begin with a byte order mark.
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&body);
    let mut request_fields = Fields::parse(body)?.into_map();
    field_types::rewrite(&mut request_fields)?;
    models::resolve_name(&mut request_fields, configuration);
    add_defaults(path, &mut request_fields, configuration);
    Ok(request_fields)
}

/// Adds the deployment's defaults for fields that the API has and the request lacks.
fn add_defaults(
    path: &str,
    request_fields: &mut Map<String, Value>,
    configuration: &Configuration,
) {
    let all = path.ends_with("/completions") || ["/completion", "/infill"].contains(&path);
    let temperature_only = path.ends_with("/messages") || path.ends_with("/responses");
    let present = |request_fields: &Map<String, Value>, name: &str| {
        request_fields
            .get(name)
            .is_some_and(|value| !value.is_null())
    };
    for (name, value) in &configuration.defaults {
        let applies = all || temperature_only && name == "temperature";
        if !applies {
            continue;
        }
        let names: &[&str] = match name.as_str() {
            "max_tokens" => &["max_tokens", "max_completion_tokens", "n_predict"],
            _ => &[name],
        };
        if !names.iter().any(|name| present(request_fields, name)) {
            request_fields.insert(name.clone(), value.clone());
        }
    }
}
