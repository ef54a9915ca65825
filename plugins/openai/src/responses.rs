//! `/v1/responses`: OpenAI's Responses API. Responses are stored if the deployment's configuration says so.

mod encoded_reasoning;
mod input;
mod items;
mod logprobs;
mod request;
mod response;
mod store;
mod tool_names;

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Response};
use serde_json::json;

pub use store::{answer_stored, stored_path};

/// `store_seconds`: how long responses are stored, if at all.
pub async fn respond(fields: Fields, store_seconds: Option<u64>) -> Result<Response, Error> {
    let (fields, earlier, storing) = store::begin(fields, store_seconds)?;
    let request = request::read(fields, earlier)?;
    let answers = request.chat.start().await?;
    let head = response::Head::new(&answers, request.repeated, request.items, storing);
    match request.stream {
        Some(options) => Ok(response::stream(answers, head, options)),
        None => response::respond(answers, head).await,
    }
}

/// `/v1/responses/input_tokens`: the number of tokens of the prompt.
pub async fn input_tokens(fields: Fields, store_seconds: Option<u64>) -> Result<Response, Error> {
    let (fields, earlier, _) = store::begin(fields, store_seconds)?;
    let request = request::read(fields, earlier)?;
    let tokens = request.chat.count_tokens().await?;
    Ok(Response::json(
        &json!({"object": "response.input_tokens", "input_tokens": tokens}),
    ))
}
