//! A chat handler whose template and samplers are linked plugins; `corral.toml` selects them.

use corral_sdk::http::EventFormat;
use corral_sdk::template::{Chat, render_linked};
use corral_sdk::{Error, Finish, GenerateOptions, Model, Request, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};

corral_sdk::handler!(chat);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChatRequest {
    messages: Vec<Value>,
    /// The name of a linked sampling plugin; default: greedy.
    sampler: Option<String>,
    /// Settings of the sampling plugin.
    #[serde(default)]
    settings: Map<String, Value>,
    #[serde(default = "default_max_tokens")]
    max_tokens: u32,
    seed: Option<u64>,
    #[serde(default)]
    stream: bool,
}

fn default_max_tokens() -> u32 {
    128
}

async fn chat(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    let body: ChatRequest = request.json().await?;
    let chat = Chat::from_messages(body.messages)?;

    let model = Model::open_default().await?;
    let prompt = render_linked(&chat, &model)?;
    let mut options = GenerateOptions::new(body.max_tokens).stops(&prompt.stop);
    if let Some(seed) = body.seed {
        options = options.seed(seed);
    }
    if let Some(name) = &body.sampler {
        let settings = Value::from(body.settings).to_string();
        options = options.sample_with(name, &settings).await?;
    }
    let generation = prompt.sequence(&model)?.generate(&options)?;

    if body.stream {
        let generation = generation.wait_for_start().await?;
        let format = EventFormat::json(|text| json!({"text": text}));
        return Ok(Response::text_events(
            generation,
            format,
            async |outcome, events| {
                events
                    .json(&json!({"finish_reason": finish_reason(outcome?.finish)}))
                    .await
            },
        ));
    }
    let (text, outcome) = generation.text_and_outcome().await?;
    Ok(Response::json(
        &json!({"text": text, "finish_reason": finish_reason(outcome.finish)}),
    ))
}

fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::End => "end",
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::linked::{
        ModelFacts, Prompt, Sampler, SamplerContext, SamplerInput, SamplerNeeds,
    };
    use corral_sdk::testing::{HostCall, Script};

    /// The linked templating plugin.
    fn render(chat: Chat, _: ModelFacts) -> Result<Prompt, String> {
        let message = chat.parsed_messages().last().ok_or("there is no message")?;
        Ok(Prompt::default()
            .trusted("<|im_start|>")
            .text(message.content)
            .trusted("<|im_end|>")
            .stop("."))
    }

    /// A linked sampling plugin: chooses the second most likely token.
    struct Second;

    impl Sampler for Second {
        fn start(context: SamplerContext) -> Result<Self, String> {
            match context.settings.as_str() {
                "{}" => Ok(Second),
                other => Err(format!("expected no settings, not {other}")),
            }
        }

        fn needs(&self) -> SamplerNeeds {
            SamplerNeeds::candidates(2)
        }

        fn sample(&mut self, input: SamplerInput) -> Result<u32, String> {
            Ok(input.candidates[1].token)
        }
    }

    fn script() -> Script {
        Script::new()
            .templating(render)
            .sampler::<Second>("second")
            .answers("<|im_start|>12+7=<|im_end|>", "19. And")
            .next("no?<|im_end|>", &[("n", 2.0), ("y", 1.0)])
            .next("y", &[("!", 2.0), ("<|im_end|>", 1.0)])
    }

    fn user(content: &str) -> Value {
        json!([{"role": "user", "content": content}])
    }

    #[test]
    fn linked_template_renders_the_prompt() {
        let script = script();
        let (status, body) = script.post(chat, &json!({"messages": user("12+7=")}));
        let expected = r#"{"text":"19","finish_reason":"stop"}"#;
        assert_eq!((status, &*body.to_string()), (200, expected));
        let expected = ["max-tokens 128", "stop \".\""];
        assert_eq!(script.generations()[0].settings, expected);
        let (status, body) = script.post(chat, &json!({"messages": []}));
        assert_eq!(status, 400);
        assert!(body.to_string().contains("there is no message"), "{body}");
    }

    #[test]
    fn linked_sampler_chooses_tokens() {
        let body = json!({"messages": user("no?"), "sampler": "second", "stream": true});
        let (status, body) = script().post(chat, &body);
        assert_eq!(status, 200);
        let expected = "data: {\"text\":\"y\"}\n\ndata: {\"finish_reason\":\"end\"}\n\n";
        assert_eq!(body, expected);
    }

    #[test]
    fn errors_reach_the_client() {
        let wrong = |field: &str, value: Value| {
            let mut body = json!({"messages": user("12+7="), "sampler": "second"});
            body[field] = value;
            script().post(chat, &body)
        };
        for (field, value, status, detail) in [
            ("settings", json!({"x": 1}), 400, "expected no settings"),
            ("sampler", json!("third"), 404, "third"),
            ("temperature", json!(1), 400, "unknown field `temperature`"),
            ("max_tokens", json!(0), 400, "max-tokens is 0"),
            ("messages", json!([{"role": "user"}]), 400, "no `content`"),
        ] {
            let (found, body) = wrong(field, value);
            assert_eq!(found, status, "{field}: {body}");
            assert!(body.to_string().contains(detail), "{field}: {body}");
        }
    }

    #[test]
    fn disconnect_cancels_the_generation() {
        let script = script().answers("<|im_start|>on<|im_end|>", "and on");
        let body = json!({"messages": user("on"), "stream": true});
        script.run(async {
            let answer = chat(Request::post("/chat").with_json(&body)).await;
            answer.unwrap().read_events(1).await;
        });
        assert_eq!(script.calls().last(), Some(&HostCall::Cancelled));
    }
}
