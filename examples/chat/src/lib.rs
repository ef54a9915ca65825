//! A chat whose prompts and whose samplers are plugins of their own: see `corral.toml` for which.

use corral_sdk::http::Frame;
use corral_sdk::template::{Chat, linked};
use corral_sdk::{Error, Finish, Generate, Model, Request, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};

corral_sdk::handler!(chat);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    messages: Vec<Value>,
    /// A linked sampling plugin by name; without it, the likeliest token is always taken.
    sampler: Option<String>,
    /// For the sampling plugin.
    #[serde(default)]
    settings: Map<String, Value>,
    #[serde(default = "usual")]
    max_tokens: u32,
    seed: Option<u64>,
    #[serde(default)]
    stream: bool,
}

fn usual() -> u32 {
    128
}

async fn chat(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    let asked: Asked = request.json().await?;
    let chat = Chat::from_messages(asked.messages)?;

    let model = Model::first().await?;
    let prompt = linked(&chat, &model)?;
    let mut how = Generate::new(asked.max_tokens).stops(&prompt.stop);
    if let Some(seed) = asked.seed {
        how = how.seed(seed);
    }
    if let Some(name) = &asked.sampler {
        let settings = Value::from(asked.settings).to_string();
        how = how.sample_with(name, &settings).await?;
    }
    let generation = prompt.sequence(&model)?.generate(&how)?;

    if asked.stream {
        let generation = generation.begun().await?;
        let frame = Frame::json(|text| json!({"text": text}));
        return Ok(Response::forward(
            generation,
            frame,
            async |outcome, events| {
                events
                    .json(&json!({"finish_reason": reason(outcome?.finish)}))
                    .await
            },
        ));
    }
    let (text, outcome) = generation.whole().await?;
    Ok(Response::json(
        &json!({"text": text, "finish_reason": reason(outcome.finish)}),
    ))
}

fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::End => "end",
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::role::{Beginning, ModelFacts, Needs, Prompt, Sampler, Told};
    use corral_sdk::testing::{Call, Script};

    /// Stands for the linked templating plugin.
    fn render(chat: Chat, _: ModelFacts) -> Result<Prompt, String> {
        let turn = chat.turns().last().ok_or("there is no message")?;
        Ok(Prompt::default()
            .trusted("<|im_start|>")
            .text(turn.content)
            .trusted("<|im_end|>")
            .stop("."))
    }

    /// Stands for a linked sampling plugin: always the second.
    struct Second;

    impl Sampler for Second {
        fn start(beginning: Beginning) -> Result<Self, String> {
            match beginning.settings.as_str() {
                "{}" => Ok(Second),
                other => Err(format!("expected no settings, not {other}")),
            }
        }

        fn needs(&self) -> Needs {
            Needs::candidates(2)
        }

        fn sample(&mut self, told: Told) -> Result<u32, String> {
            Ok(told.candidates[1].token)
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

    fn ask(script: &Script, body: Value) -> (u16, String) {
        script.run(async {
            let request = Request::post("/chat").with_json(&body);
            let answer = chat(request).await.unwrap_or_else(Response::from);
            let status = answer.status();
            (status, String::from_utf8(answer.read().await).unwrap())
        })
    }

    fn user(content: &str) -> Value {
        json!([{"role": "user", "content": content}])
    }

    #[test]
    fn the_linked_template_writes_the_prompt() {
        let script = script();
        let (status, body) = ask(&script, json!({"messages": user("12+7=")}));
        assert_eq!(
            (status, body.as_str()),
            (200, r#"{"text":"19","finish_reason":"stop"}"#)
        );
        assert_eq!(
            script.generations()[0].settings,
            ["max-tokens 128", "stop \".\""]
        );
        let (status, body) = ask(&script, json!({"messages": []}));
        assert_eq!(status, 400);
        assert!(body.contains("there is no message"), "{body}");
    }

    #[test]
    fn the_linked_sampler_chooses() {
        let asked = json!({"messages": user("no?"), "sampler": "second", "stream": true});
        let (status, body) = ask(&script(), asked);
        assert_eq!(status, 200);
        assert_eq!(
            body,
            "data: {\"text\":\"y\"}\n\ndata: {\"finish_reason\":\"end\"}\n\n"
        );
    }

    #[test]
    fn what_is_wrong_is_told() {
        let wrong = |member: &str, value: Value| {
            let mut body = json!({"messages": user("12+7="), "sampler": "second"});
            body[member] = value;
            let (status, body) = ask(&script(), body);
            (status, body)
        };
        for (member, value, status, words) in [
            ("settings", json!({"x": 1}), 400, "expected no settings"),
            ("sampler", json!("third"), 404, "third"),
            ("temperature", json!(1), 400, "unknown field `temperature`"),
            ("max_tokens", json!(0), 400, "max-tokens is 0"),
            ("messages", json!([{"role": "user"}]), 400, "no `content`"),
        ] {
            let (found, body) = wrong(member, value);
            assert_eq!(found, status, "{member}: {body}");
            assert!(body.contains(words), "{member}: {body}");
        }
    }

    #[test]
    fn who_leaves_cancels() {
        let script = script().answers("<|im_start|>on<|im_end|>", "and on");
        let body = json!({"messages": user("on"), "stream": true});
        script.run(async {
            let answer = chat(Request::post("/chat").with_json(&body)).await;
            answer.unwrap().read_events(1).await;
        });
        assert_eq!(script.calls().last(), Some(&Call::Cancelled));
    }
}
