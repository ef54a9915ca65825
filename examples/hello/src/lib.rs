//! A minimal plugin: completes the request body as a prompt.
use corral_sdk::{Error, GenerateOptions, Model, Request, Response};

corral_sdk::handler!(complete);

async fn complete(mut request: Request) -> Result<Response, Error> {
    let sequence = Model::open_default().await?.sequence()?;
    sequence.append(&request.text().await?)?;
    let text = sequence.generate(&GenerateOptions::new(64))?.text().await?;
    Ok(Response::text(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;

    #[test]
    fn prompt_gets_a_completion() {
        let script = Script::new().answers("12+7=", "19");
        let answer = script.run(async {
            let request = Request::post("/hello").with_body("12+7=");
            complete(request).await.unwrap().read().await
        });
        assert_eq!(answer, b"19");
    }
}
