//! `/v1/responses`: OpenAI's Responses API, without stored state.

mod input;
mod items;
mod request;
mod response;

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Response};

pub async fn respond(fields: Fields) -> Result<Response, Error> {
    let request = request::read(fields)?;
    let answers = request.chat.start().await?;
    let head = response::Head::new(&answers, request.repeated);
    match request.stream {
        true => Ok(response::stream(answers, head)),
        false => response::respond(answers, head).await,
    }
}
