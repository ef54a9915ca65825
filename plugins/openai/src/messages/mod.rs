//! `/v1/messages`, as Anthropic's clients ask for it.

mod answer;
mod request;

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Response};

/// Answers a request.
pub async fn answer(fields: Fields) -> Result<Response, Error> {
    let request = request::read(fields)?;
    let stops = request.ask.settings.stop.clone();
    let answers = request.ask.begin().await?;
    match request.stream {
        true => Ok(answer::stream(answers.begun().await?, stops)),
        false => answer::whole(answers, stops).await,
    }
}
