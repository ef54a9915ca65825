//! `/v1/responses`: OpenAI's Responses API, without stored state.

mod input;
mod items;
mod request;
mod response;
mod tool_names;

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Response};
use serde_json::json;

pub async fn respond(fields: Fields) -> Result<Response, Error> {
    let request = request::read(fields)?;
    let answers = request.chat.start().await?;
    let head = response::Head::new(&answers, request.repeated, request.names);
    match request.stream {
        true => Ok(response::stream(answers, head)),
        false => response::respond(answers, head).await,
    }
}

/// `/v1/responses/input_tokens`: the number of tokens of the prompt.
pub async fn input_tokens(fields: Fields) -> Result<Response, Error> {
    let request = request::read(fields)?;
    let tokens = request.chat.count_tokens().await?;
    Ok(Response::json(
        &json!({"object": "response.input_tokens", "input_tokens": tokens}),
    ))
}
