//! Completes the request's body with the deployment's model.

use corral_sdk::{Error, GenerateOptions, Model, Request, Response};

corral_sdk::handler!(complete);

async fn complete(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
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
        let body = script.run(async {
            let request = Request::post("/").with_body("12+7=");
            complete(request).await.unwrap().read().await
        });
        assert_eq!(body, b"19");
    }
}
