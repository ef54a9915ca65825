//! A handler to try the templating plugin with: the request's body is a user's message.

use corral_sdk::template::{Chat, render_linked};
use corral_sdk::{Error, GenerateOptions, Model, Request, Response};

corral_sdk::handler!(answer);

async fn answer(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    let chat = Chat::new().message("user", &request.text().await?);
    let model = Model::open_default().await?;
    let prompt = render_linked(&chat, &model)?;
    let options = GenerateOptions::new(128).stops(&prompt.stop);
    let text = prompt.sequence(&model)?.generate(&options)?.text().await?;
    Ok(Response::text(text))
}
