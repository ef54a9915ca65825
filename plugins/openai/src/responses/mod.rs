//! `/v1/responses`, without anything that is kept from one request to the next.

mod answer;
mod input;
mod items;
mod request;

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Response};

/// Answers a request.
pub async fn answer(fields: Fields) -> Result<Response, Error> {
    let request = request::read(fields)?;
    let answers = request.ask.begin().await?;
    let head = answer::Head::new(&answers, request.shown);
    match request.stream {
        true => Ok(answer::stream(answers.begun().await?, head)),
        false => answer::whole(answers, head).await,
    }
}
