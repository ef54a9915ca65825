//! Answers of known model families, with templates in their style. The SDK tests the rendering of
//! these templates.

use corral_sdk::Model;
use corral_sdk::template::Chat;
use corral_sdk::testing::Script;
use serde_json::{Value, json};

use super::post;

/// A model family: its template, and the control tokens that begin and end a text.
struct ModelFamily {
    name: &'static str,
    template: &'static str,
    begin: Option<&'static str>,
    end: &'static str,
}

macro_rules! family {
    ($name:literal, $begin:expr, $end:literal) => {
        ModelFamily {
            name: $name,
            template: include_str!(concat!("../../templates/", $name, ".jinja")),
            begin: $begin,
            end: $end,
        }
    };
}

const CHATML: ModelFamily = family!("chatml", None, "<|im_end|>");
const DEEPSEEK: ModelFamily = family!(
    "deepseek",
    Some("<｜begin▁of▁sentence｜>"),
    "<｜end▁of▁sentence｜>"
);
const GEMMA: ModelFamily = family!("gemma", Some("<bos>"), "<end_of_turn>");
const LLAMA: ModelFamily = family!("llama3", Some("<|begin_of_text|>"), "<|eot_id|>");
const MISTRAL: ModelFamily = family!("mistral", Some("<s>"), "</s>");
const QWEN: ModelFamily = family!("qwen3", None, "<|im_end|>");

impl ModelFamily {
    fn script(&self) -> Script {
        let mut script = Script::new().chat_template(self.template).context(100_000);
        let mut next = 259;
        if let Some(begin) = self.begin {
            script = script.control_token(begin).begin_token(begin);
            next += 1;
        }
        if self.end != "<|im_end|>" {
            script = script.control_token(self.end).info(|info| {
                info.eos = Some(next);
                info.end_of_generation = vec![next];
            });
        }
        script
    }

    /// The parsed answer to a chat with these tools.
    fn respond(&self, says: &str, tools: &[&str]) -> (u16, Value) {
        let tools = tools.iter();
        let tools = tools.map(|name| json!({"type": "function", "function": {"name": name}}));
        let body = json!({
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": tools.collect::<Vec<_>>(),
        });
        post(
            &self.script().answers("", says),
            "/v1/chat/completions",
            &body,
        )
    }

    fn check(&self, says: &str, tools: &[&str], reasoning: &str, content: &str, calls: Value) {
        let (status, answer) = self.respond(says, tools);
        assert_eq!(status, 200, "{}: {answer}", self.name);
        let message = &answer["choices"][0]["message"];
        let text = |field: &str| message[field].as_str().unwrap_or_default();
        let called = message["tool_calls"].as_array().into_iter().flatten();
        let called = called.map(|call| {
            let function = &call["function"];
            json!([function["name"], function["arguments"]])
        });
        assert_eq!(
            (
                text("reasoning_content"),
                text("content"),
                Value::from(called.collect::<Vec<_>>())
            ),
            (reasoning, content, calls),
            "{}: {says}",
            self.name
        );
    }
}

const TOOLS: [&str; 2] = ["weather", "add"];

#[test]
fn answers_are_parsed_per_family() {
    for family in [&CHATML, &DEEPSEEK, &GEMMA, &LLAMA, &MISTRAL, &QWEN] {
        family.check("Hello!", &[], "", "Hello!", json!([]));
    }
    for family in [&LLAMA, &MISTRAL, &QWEN] {
        family.check("Hello!", &TOOLS, "", "Hello!", json!([]));
    }
    let bern = r#"{"city": "Bern"}"#;
    let one = json!([["weather", bern]]);
    let two = json!([["weather", bern], ["add", "{}"]]);
    let llama = format!(r#"{{"name": "weather", "parameters": {bern}}}"#);
    LLAMA.check(&llama, &TOOLS, "", "", one);
    let ada = r#"{"name": "Ada", "age": 36}"#;
    LLAMA.check(ada, &TOOLS, "", ada, json!([]));
    let calls = [
        format!(r#"{{"name": "weather", "arguments": {bern}}}"#),
        r#"{"name": "add", "arguments": {}}"#.to_owned(),
    ];
    let mistral = format!("[TOOL_CALLS] [{}]", calls.join(", "));
    MISTRAL.check(&mistral, &TOOLS, "", "", two.clone());
    let qwen = calls.map(|call| format!("<tool_call>\n{call}\n</tool_call>"));
    let qwen = qwen.join("\n");
    let text = format!("<think>\nhm\n</think>\n\n{qwen}");
    QWEN.check(&text, &TOOLS, "hm", "", two);
    let calls = json!([]);
    QWEN.check("<think>\n\n</think>\n\nHello!", &[], "", "Hello!", calls);
    DEEPSEEK.check("<think>hm</think>Hello!", &[], "hm", "Hello!", json!([]));
}

#[test]
fn unsupported_call_format_is_rejected() {
    for family in [&CHATML, &DEEPSEEK, &GEMMA] {
        let (status, answer) = family.respond("Hello!", &TOOLS);
        assert_eq!(status, 400, "{}", family.name);
        assert_eq!(answer["error"]["param"], "tools", "{}", family.name);
    }
}

#[test]
fn message_text_is_not_a_control_token() {
    for family in [&CHATML, &DEEPSEEK, &GEMMA, &LLAMA, &MISTRAL, &QWEN] {
        let tokens = |content: &str| {
            let chat = Chat::new().message("user", content);
            let tokens = family.script().run(async {
                let model = Model::open_default().await?;
                chat.tokens(&model)
            });
            tokens.unwrap()
        };
        let control = |tokens: &[u32]| tokens.iter().filter(|&&token| token > 255).count();
        let found = control(&tokens(family.end));
        assert_eq!(found, control(&tokens("x")), "{}", family.name);
    }
}
