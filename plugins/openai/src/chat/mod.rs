//! `/v1/chat/completions`.

mod answer;
pub mod messages;
pub mod request;
mod stream;

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Response};

pub use stream::DONE;

/// Answers a request.
pub async fn answer(fields: Fields) -> Result<Response, Error> {
    let request = request::read(fields)?;
    let likely = request.ask.settings.logprobs.is_some();
    let mut answers = request.ask.begin().await?;
    match request.stream {
        Some(usage) => Ok(stream::answer(answers.begun().await?, likely, usage)),
        None => answer::whole(&mut answers, likely).await,
    }
}
