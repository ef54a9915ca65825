//! `/v1/messages`: Anthropic's Messages API.

mod request;
mod response;

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Response};

pub async fn respond(fields: Fields) -> Result<Response, Error> {
    let request = request::read(fields)?;
    let stops = request.chat.settings.stop.clone();
    let answers = request.chat.start().await?;
    match request.stream {
        true => Ok(response::stream(answers, stops)),
        false => response::respond(answers, stops).await,
    }
}
