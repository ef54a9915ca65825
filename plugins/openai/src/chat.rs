//! `/v1/chat/completions`.

mod messages;
mod request;
mod response;
mod stream;

pub use response::logprob_list;

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Response};
use serde_json::json;

use conversation::without_effect;

/// `/v1/chat/completions`.
pub async fn respond(mut fields: Fields) -> Result<Response, Error> {
    let verbose = fields.flag("verbose")?;
    let request_fields = fields.into_map();
    let prompt = match verbose {
        true => Some(prompt_text(Fields::from_map(request_fields.clone())).await?),
        false => None,
    };
    let request = request::read(Fields::from_map(request_fields))?;
    let logprobs = request.chat.settings.logprobs.is_some();
    let mut answers = request.chat.start().await?;
    match request.stream {
        Some(options) => {
            if verbose {
                without_effect("verbose", "a stream has no place for the prompt")?;
            }
            Ok(stream::respond(answers, logprobs, options))
        }
        None => response::respond(&mut answers, logprobs, prompt).await,
    }
}

/// `/apply-template`: the prompt of a chat as text.
pub async fn apply_template(fields: Fields) -> Result<Response, Error> {
    let prompt = prompt_text(fields).await?;
    Ok(Response::json(&json!({"prompt": prompt})))
}

async fn prompt_text(fields: Fields) -> Result<String, Error> {
    request::read(fields)?.chat.prompt_text().await
}

/// `/v1/chat/completions/render`: the tokens of a chat's prompt.
pub async fn render(fields: Fields) -> Result<Response, Error> {
    let tokens = request::read(fields)?.chat.prompt_tokens().await?;
    Ok(Response::json(&json!({"token_ids": tokens})))
}

/// `/v1/chat/completions/input_tokens`: the number of tokens of a chat's prompt.
pub async fn count_tokens(fields: Fields) -> Result<Response, Error> {
    let tokens = request::read(fields)?.chat.count_tokens().await?;
    Ok(Response::json(&json!({
        "object": "response.input_tokens",
        "input_tokens": tokens,
    })))
}
