//! Templates in the style of the well-known families: what they make of chats, as an independent renderer
//! does (`templates/*.json`), and how answers of such models are read.

use corral_sdk::template::Chat;
use corral_sdk::testing::Script;
use corral_sdk::{Error, Model};
use serde_json::{Map, Value, json};

use super::post;

/// A template and its cases.
macro_rules! family {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!("../../templates/", $name, ".jinja")),
            include_str!(concat!("../../templates/", $name, ".json")),
        )
    };
}

const FAMILIES: [(&str, &str, &str); 6] = [
    family!("chatml"),
    family!("llama3"),
    family!("mistral"),
    family!("gemma"),
    family!("qwen3"),
    family!("deepseek"),
];

/// A model with the template, and with the control tokens that begin a text and end one.
fn script(template: &str, cases: &Value) -> Script {
    let mut script = Script::new().chat_template(template).context(100_000);
    let mut next = 259;
    let begin = cases["bos_token"].as_str().unwrap();
    if !begin.is_empty() {
        script = script.control_token(begin).begins_with(begin);
        next += 1;
    }
    let end = cases["eos_token"].as_str().unwrap();
    if end != "<|im_end|>" {
        script = script.control_token(end).info(|info| {
            info.end = Some(next);
            info.end_of_generation = vec![next];
        });
    }
    script
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

#[test]
fn chats_are_written_as_an_independent_renderer_writes_them() {
    let mut count = 0;
    for (family, template, cases) in FAMILIES {
        let cases: Value = serde_json::from_str(cases).unwrap();
        for case in list(&cases["cases"]) {
            let chat = Chat {
                messages: list(&case["messages"]),
                tools: list(&case["tools"]),
                arguments: case["arguments"]
                    .as_object()
                    .cloned()
                    .unwrap_or_else(Map::new),
                begin_answer: case["add_generation_prompt"].as_bool().unwrap_or(true),
            };
            let written = script(template, &cases).run(async {
                let model = Model::first().await?;
                model.detokenize_with_control(&chat.tokens(&model)?)
            });
            let name = format!("{family}: {}", case["name"]);
            match (case["prompt"].as_str(), written) {
                (Some(prompt), written) => assert_eq!(written.as_deref(), Ok(prompt), "{name}"),
                (None, Err(error)) => {
                    let expected = case["error"].as_str().unwrap();
                    assert!(error.to_string().contains(expected), "{name}: {error}");
                }
                (None, Ok(written)) => panic!("{name}: {written:?}"),
            }
            count += 1;
        }
    }
    assert!(count >= 25, "{count}");
}

#[test]
fn answers_are_read_as_their_family_writes_them() {
    for (family, template, cases) in FAMILIES {
        let cases: Value = serde_json::from_str(cases).unwrap();
        for answer in list(&cases["answers"]) {
            let script = || script(template, &cases).answers("", answer["says"].as_str().unwrap());
            let mut body =
                json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 500});
            let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
            let tools = json!([tool("weather"), tool("add")]);
            if answer["calls"].is_null() {
                // A family whose calls can't be read says so.
                body["tools"] = tools;
                let (status, refused) = post(&script(), "/v1/chat/completions", &body);
                assert_eq!(
                    (status, &refused["error"]["param"]),
                    (400, &"tools".into()),
                    "{family}"
                );
                body["tools"] = Value::Null;
            } else {
                body["tools"] = tools;
            }
            let (status, told) = post(&script(), "/v1/chat/completions", &body);
            assert_eq!(status, 200, "{family}: {told}");
            let message = &told["choices"][0]["message"];
            let calls = list(&message["tool_calls"]);
            let calls = calls.iter().map(|call| {
                let function = &call["function"];
                json!([function["name"], function["arguments"]])
            });
            let calls = Value::from(calls.collect::<Vec<_>>());
            assert_eq!(
                (
                    message["content"].as_str().unwrap_or_default(),
                    message["reasoning_content"].as_str(),
                    calls,
                ),
                (
                    answer["content"].as_str().unwrap(),
                    answer["reasoning"].as_str(),
                    list(&answer["calls"]).into(),
                ),
                "{family}"
            );
        }
    }
}

#[test]
fn what_a_message_contains_is_no_control_token() {
    for (family, template, cases) in FAMILIES {
        let cases: Value = serde_json::from_str(cases).unwrap();
        let end = cases["eos_token"].as_str().unwrap();
        let tokens = |content: &str| {
            let chat = Chat::new().message("user", content);
            let tokens = script(template, &cases).run(async {
                let model = Model::first().await?;
                Ok::<_, Error>(chat.tokens(&model)?)
            });
            tokens.unwrap()
        };
        let control = |tokens: &[u32]| tokens.iter().filter(|&&token| token > 255).count();
        assert_eq!(control(&tokens(end)), control(&tokens("x")), "{family}");
    }
}
