//! `/v1/chat/completions`.

mod messages;
mod request;
mod response;
mod stream;

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Response};
use serde_json::json;

/// `/v1/chat/completions`.
pub async fn respond(fields: Fields) -> Result<Response, Error> {
    let request = request::read(fields)?;
    let logprobs = request.chat.settings.logprobs.is_some();
    let mut answers = request.chat.start().await?;
    match request.stream {
        Some(options) => Ok(stream::respond(answers, logprobs, options)),
        None => response::respond(&mut answers, logprobs).await,
    }
}

/// `/apply-template`: the prompt of a chat as text.
pub async fn apply_template(fields: Fields) -> Result<Response, Error> {
    let (model, tokens) = request::read(fields)?.chat.prompt().await?;
    let prompt = model.detokenize_with_control(&tokens)?;
    Ok(Response::json(&json!({"prompt": prompt})))
}

/// `/v1/chat/completions/input_tokens`: the number of tokens of a chat's prompt.
pub async fn count_tokens(fields: Fields) -> Result<Response, Error> {
    let (_, tokens) = request::read(fields)?.chat.prompt().await?;
    Ok(Response::json(&json!({
        "object": "response.input_tokens",
        "input_tokens": tokens.len(),
    })))
}
