//! Answers a chat, rendered with the template in the model file.

use corral_sdk::http::EventFormat;
use corral_sdk::template::Chat;
use corral_sdk::{Error, GenerateOptions, Model, Request, Response};
use serde::Deserialize;
use serde_json::{Value, json};

corral_sdk::handler!(chat);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChatRequest {
    messages: Vec<Value>,
    #[serde(default = "default_max_tokens")]
    max_tokens: u32,
    /// Server-sent events instead of one object.
    #[serde(default)]
    stream: bool,
}

fn default_max_tokens() -> u32 {
    256
}

async fn chat(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    let body: ChatRequest = request.json().await?;
    let chat = Chat::from_messages(body.messages)?;
    let model = Model::open_default().await?;
    let options = GenerateOptions::new(body.max_tokens);
    let generation = chat.sequence(&model)?.generate(&options)?;
    if !body.stream {
        return Ok(Response::json(&json!({"text": generation.text().await?})));
    }
    // An error before the first token still sets the status.
    let generation = generation.wait_for_start().await?;
    let format = EventFormat::json(|text| json!({"text": text}));
    Ok(Response::text_events(
        generation,
        format,
        async |outcome, events| {
            let tokens = outcome?.generated_tokens;
            events.json(&json!({"generated_tokens": tokens})).await
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;

    fn ask(body: Value) -> (u16, String) {
        let script = Script::new()
            .chat_template("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
            .answers("12+7=<|im_end|>", "19");
        script.run(async {
            let request = Request::post("/").with_json(&body);
            let response = chat(request).await.unwrap_or_else(Response::from);
            let status = response.status();
            (status, String::from_utf8(response.read().await).unwrap())
        })
    }

    #[test]
    fn question_is_answered() {
        let messages = json!([{"role": "user", "content": "12+7="}]);
        let answer = ask(json!({"messages": messages}));
        assert_eq!(answer, (200, r#"{"text":"19"}"#.to_owned()));
        let (_, events) = ask(json!({"messages": messages, "stream": true}));
        assert!(events.starts_with("data: {\"text\":\"1\"}\n\n"), "{events}");
    }

    #[test]
    fn message_without_content_is_refused() {
        let (status, body) = ask(json!({"messages": [{"role": "user"}]}));
        assert_eq!(status, 400, "{body}");
    }
}
