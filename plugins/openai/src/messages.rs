//! `/v1/messages`: Anthropic's Messages API.

mod conversation;
mod request;
mod response;

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Response};
use serde_json::json;

pub async fn respond(fields: Fields) -> Result<Response, Error> {
    let request = request::read(fields, true)?;
    let stops = request.chat.settings.stop.clone();
    let answers = request.chat.start().await?;
    match request.stream {
        true => Ok(response::stream(answers, stops)),
        false => response::respond(answers, stops).await,
    }
}

/// `/v1/messages/count_tokens`: the number of tokens of the prompt.
pub async fn count_tokens(fields: Fields) -> Result<Response, Error> {
    let request = request::read(fields, false)?;
    let tokens = request.chat.count_tokens().await?;
    Ok(Response::json(&json!({"input_tokens": tokens})))
}
