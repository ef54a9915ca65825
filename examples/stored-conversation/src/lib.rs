//! Conversations that the server keeps: `POST /stored-conversation/NAME` continues the one of this name, also after a
//! restart of the server. A snapshot of the sequence holds its tokens and the model's state for them.

use corral_sdk::template::Prompt;
use corral_sdk::{Error, Finish, GenerateOptions, Model, Request, Response};
use serde_json::json;

corral_sdk::handler!(converse);

async fn converse(mut request: Request) -> Result<Response, Error> {
    let name = request
        .path()
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .to_owned();
    let model = Model::open_default().await?;
    if request.method() == "DELETE" {
        model.delete_snapshot(&name).await?;
        return Ok(Response::empty());
    }
    request.expect_method("POST")?;
    let message = request.text().await?;

    let sequence = match model.restore(&name).await {
        Err(Error::NotFound(_)) => model.sequence()?,
        restored => restored?,
    };
    let history = sequence.len();
    Prompt::default()
        .trusted("<|im_start|>user\n")
        // Untrusted: a message cannot end its turn and write the assistant's.
        .text(message)
        .trusted("<|im_end|>\n<|im_start|>assistant\n")
        .append_to(&sequence)?;
    let generation = sequence.generate(&GenerateOptions::new(256))?;
    let (text, outcome) = generation.text_and_outcome().await?;
    let end = match outcome.finish {
        Finish::End => "\n",
        Finish::Stop | Finish::Length => "<|im_end|>\n",
    };
    sequence.append_trusted(end)?;
    sequence.snapshot(&name).await?;
    Ok(Response::json(&json!({
        "text": text,
        "history_tokens": history,
        "cached_tokens": outcome.cached_tokens,
        "tokens": sequence.len(),
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;
    use serde_json::Value;

    fn turn(message: &str) -> String {
        format!("<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n")
    }

    async fn send(method: &str, name: &str, message: &str) -> (u16, Value) {
        let request =
            Request::new(method, &format!("/stored-conversation/{name}")).with_body(message);
        let answer = converse(request).await.unwrap_or_else(Response::from);
        let status = answer.status();
        (
            status,
            serde_json::from_slice(&answer.read().await).unwrap_or_default(),
        )
    }

    #[test]
    fn second_message_continues_the_conversation() {
        let first = turn("12+7=");
        let second = format!("{first}19<|im_end|>\n{}", turn("Hi"));
        let script = Script::new()
            .answers(&first, "19")
            .answers(&second, "Hello!")
            .answers(&turn("Hi"), "Hi!");
        script.run(async {
            let (status, body) = send("POST", "ada", "12+7=").await;
            assert_eq!((status, &body["text"]), (200, &json!("19")));
            let (_, body) = send("POST", "ada", "Hi").await;
            assert_eq!(body["text"], "Hello!");
            let (_, body) = send("POST", "bob", "Hi").await;
            assert_eq!(body["text"], "Hi!");
            assert_eq!(body["history_tokens"], 0);
            assert_eq!(send("DELETE", "ada", "").await.0, 204);
            assert_eq!(send("DELETE", "ada", "").await.0, 404);
            let (_, body) = send("POST", "ada", "Hi").await;
            assert_eq!(body["text"], "Hi!");
        });
    }

    #[test]
    fn failed_snapshot_is_an_error() {
        let script = Script::new()
            .answers(&turn("12+7="), "19")
            .fails("snapshot", Error::NotGranted("no snapshots".to_owned()));
        assert_eq!(script.run(send("POST", "ada", "12+7=")).0, 403);
        assert_eq!(script.run(send("PUT", "ada", "12+7=")).0, 405);
    }
}
