//! `/v1/chat/completions`.

mod messages;
mod request;
mod response;
mod stream;

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Response};

pub async fn respond(fields: Fields) -> Result<Response, Error> {
    let request = request::read(fields)?;
    let logprobs = request.chat.settings.logprobs.is_some();
    let mut answers = request.chat.start().await?;
    match request.stream {
        Some(usage) => Ok(stream::respond(answers, logprobs, usage)),
        None => response::respond(&mut answers, logprobs).await,
    }
}
