//! A first plugin: the body of the request is the prompt, the body of the answer its continuation.
use corral_sdk::{Error, Generate, Model, Request, Response};

corral_sdk::handler!(complete);

async fn complete(mut request: Request) -> Result<Response, Error> {
    let sequence = Model::first().await?.sequence()?;
    sequence.append(&request.text().await?)?;
    let text = sequence.generate(&Generate::new(64))?.text().await?;
    Ok(Response::text(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;

    #[test]
    fn a_sum_is_answered() {
        let script = Script::new().answers("12+7=", "19");
        let answer = script.run(async {
            let request = Request::post("/hello").with_body("12+7=");
            complete(request).await.unwrap().read().await
        });
        assert_eq!(answer, b"19");
    }
}
