//! Dispatches requests to the APIs.

use corral_sdk::fields::{Fields, ignored};
use corral_sdk::{Error, Request, Response};

use crate::configuration::Configuration;
use crate::error::{ApiError, ApiFormat, with_ignored};
use crate::{chat, completions, embeddings, messages, models, responses, tokenize};

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
    ignored::begin(configuration.map_err(with_format)?.strict);
    let response = dispatch(request.with_body_limit(DEFAULT_BODY_LIMIT)).await;
    response.map(with_ignored).map_err(with_format)
}

async fn dispatch(mut request: Request) -> Result<Response, Error> {
    let path = request.path().to_owned();
    let path = path.strip_suffix('/').unwrap_or(&path);
    if let Some(name) = models::name_in_path(path) {
        request.expect_method("GET")?;
        return models::show(&name);
    }
    match path {
        "/v1/chat/completions" => chat::respond(body(&mut request).await?).await,
        "/v1/completions" => completions::respond(body(&mut request).await?).await,
        "/v1/embeddings" => embeddings::respond(body(&mut request).await?).await,
        "/v1/responses" => responses::respond(body(&mut request).await?).await,
        "/v1/messages" => messages::respond(body(&mut request).await?).await,
        "/v1/messages/count_tokens" => messages::count_tokens(body(&mut request).await?).await,
        "/v1/responses/input_tokens" => responses::input_tokens(body(&mut request).await?).await,
        "/v1/models" => {
            request.expect_method("GET")?;
            Ok(models::list())
        }
        "/tokenize" => tokenize::tokenize(body(&mut request).await?).await,
        "/detokenize" => tokenize::detokenize(body(&mut request).await?).await,
        _ => Err(Error::new(
            404,
            "no-route",
            format!(
                "there is no route {path}; expected /v1/models, /v1/chat/completions, \
                 /v1/completions, /v1/embeddings, /v1/responses, /v1/messages, /tokenize or \
                 /detokenize"
            ),
        )),
    }
}

async fn body(request: &mut Request) -> Result<Fields, Error> {
    request.expect_method("POST")?;
    Fields::parse(&request.decompressed_body().await?)
}
