//! Who answers what.

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Request, Response};

use crate::error::{Dialect, Failure};
use crate::{chat, completions, embeddings, messages, models, responses, tokenize};

/// Bytes that the body of a request may have.
const BODY_LIMIT: usize = 8 << 20;

pub async fn handle(request: Request) -> Result<Response, Failure> {
    let dialect = match request.path().strip_prefix("/v1/messages") {
        Some(below) if below.is_empty() || below.starts_with('/') => Dialect::Anthropic,
        _ => Dialect::OpenAi,
    };
    let answered = answer(request.with_limit(BODY_LIMIT)).await;
    answered.map_err(|error| Failure(dialect, error))
}

async fn answer(mut request: Request) -> Result<Response, Error> {
    let path = request.path().to_owned();
    if let Some(name) = models::named(&path) {
        request.expect_method("GET")?;
        return models::show(&name);
    }
    match path.as_str() {
        "/v1/chat/completions" => chat::answer(body(&mut request).await?).await,
        "/v1/completions" => completions::answer(body(&mut request).await?).await,
        "/v1/embeddings" => embeddings::answer(body(&mut request).await?).await,
        "/v1/responses" => responses::answer(body(&mut request).await?).await,
        "/v1/messages" => messages::answer(body(&mut request).await?).await,
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
                "there is nothing at {path}; there are /v1/models, /v1/chat/completions, \
                 /v1/completions, /v1/embeddings, /v1/responses, /v1/messages, /tokenize and \
                 /detokenize"
            ),
        )),
    }
}

async fn body(request: &mut Request) -> Result<Fields, Error> {
    request.expect_method("POST")?;
    Fields::parse(&request.body().await?)
}
