//! A handler to try the middleware with: the request's body is the prompt.

use corral_sdk::{Error, GenerateOptions, Model, Request, Response};

corral_sdk::handler!(answer);

async fn answer(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    let sequence = Model::open_default().await?.sequence()?;
    sequence.append(&request.text().await?)?;
    let text = sequence
        .generate(&GenerateOptions::new(128))?
        .text()
        .await?;
    Ok(Response::text(text))
}
