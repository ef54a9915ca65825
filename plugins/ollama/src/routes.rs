//! Dispatches requests to the routes.

use conversation::with_ignored;
use corral_sdk::fields::{Fields, ignored};
use corral_sdk::{Error, Request, Response};

use crate::error::ApiError;
use crate::{chat, embed, generate, models};

/// Limit for request bodies, in bytes.
const DEFAULT_BODY_LIMIT: usize = 8 << 20;

/// What clients expect at `/` of a server that runs.
const RUNNING: &str = "Ollama is running";

pub async fn handle(request: Request) -> Result<Response, ApiError> {
    ignored::begin(false);
    let response = dispatch(request.with_body_limit(DEFAULT_BODY_LIMIT)).await;
    response.map(with_ignored).map_err(ApiError)
}

async fn dispatch(mut request: Request) -> Result<Response, Error> {
    let path = request.path().trim_end_matches('/').to_owned();
    match path.as_str() {
        "" => get(&request, || Ok(Response::text(RUNNING))),
        "/api/version" => get(&request, || Ok(models::version())),
        "/api/tags" => get(&request, || Ok(models::tags())),
        "/api/ps" => get(&request, || Ok(models::ps())),
        "/api/chat" => chat::respond(body(&mut request).await?).await,
        "/api/generate" => generate::respond(body(&mut request).await?).await,
        "/api/embed" => embed::respond(body(&mut request).await?).await,
        "/api/embeddings" => embed::respond_one(body(&mut request).await?).await,
        "/api/show" => models::show(body(&mut request).await?).await,
        "/api/pull" => models::pull(body(&mut request).await?),
        "/api/push" | "/api/create" | "/api/copy" | "/api/delete" => Err(Error::new(
            501,
            "unsupported",
            format!(
                "{path} is not supported: the operator of the server manages its models; see \
                 `corral model`"
            ),
        )),
        _ => Err(Error::new(
            404,
            "no-route",
            format!(
                "there is no route {path}; expected /api/chat, /api/generate, /api/embed, \
                 /api/embeddings, /api/tags, /api/show, /api/ps, /api/pull or /api/version"
            ),
        )),
    }
}

fn get(
    request: &Request,
    respond: impl FnOnce() -> Result<Response, Error>,
) -> Result<Response, Error> {
    request.expect_method("GET")?;
    respond()
}

async fn body(request: &mut Request) -> Result<Fields, Error> {
    request.expect_method("POST")?;
    Fields::parse(&request.decompressed_body().await?)
}
