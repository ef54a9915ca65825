//! Tests of the whole plugin against the scripted host.

mod chat;
mod completions;
mod ignored_fields;
mod images;
mod llama_server;
mod messages;
mod model_families;
mod other_routes;
mod responses;
mod stored_responses;

use corral_sdk::fields::ignored;
use corral_sdk::testing::Script;
use corral_sdk::{Request, Response};
use serde_json::Value;

use crate::configuration::Configuration;
use crate::routes;

/// A short ChatML template with tools.
const TEMPLATE: &str = "{% for t in tools %}[{{ t | tojson }}]{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {{ m.content }}{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// An answer with a tool call.
const CALL: &str = "So.<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";

/// A script with this answer and a template that supports reasoning.
fn script_with_reasoning(answer: &str) -> Script {
    let template = format!("{TEMPLATE}{{# </think> #}}");
    Script::new()
        .chat_template(&template)
        .answers("assistant\n", answer)
}

fn ask(script: &Script, request: Request) -> (Response, String) {
    ask_with(Configuration::default(), script, request)
}

fn ask_with(configuration: Configuration, script: &Script, request: Request) -> (Response, String) {
    script.run(async {
        let response = routes::handle_with(Ok(configuration), request).await;
        let response = response.unwrap_or_else(Response::from);
        let mut head = Response::empty().with_status(response.status());
        for name in ["content-type", "retry-after", "allow", ignored::HEADER] {
            if let Some(value) = response.header(name) {
                head = head.with_header(name, value);
            }
        }
        (head, String::from_utf8(response.read().await).unwrap())
    })
}

/// A configuration that refuses fields without effect.
fn strict() -> Configuration {
    Configuration {
        strict: true,
        ..Configuration::default()
    }
}

/// The body with further fields.
pub fn merged(mut body: Value, fields: &Value) -> Value {
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Checks the status of an error and a field of its body.
fn assert_error(script: &Script, path: &str, body: &Value, expected: (u16, &str, &str)) {
    let (status, name, value) = expected;
    let (found, answer) = post(script, path, body);
    let error = &answer["error"][name];
    assert_eq!((found, error), (status, &value.into()), "{body}: {answer}");
}

/// The status and JSON of a whole response.
fn post(script: &Script, path: &str, body: &Value) -> (u16, Value) {
    let (head, text) = ask(script, Request::post(path).with_json(body));
    let found = head.header("content-type");
    assert_eq!(found, Some("application/json"), "{text}");
    (head.status(), serde_json::from_str(&text).unwrap())
}

/// The data of a response's events, as JSON but for a last `[DONE]`.
fn events(script: &Script, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = true.into();
    let (head, text) = ask(script, Request::post(path).with_json(&body));
    assert_eq!(
        (head.status(), head.header("content-type")),
        (200, Some("text/event-stream")),
        "{text}"
    );
    let data = text
        .split_terminator("\n\n")
        .map(|event| event.rsplit_once("data: ").unwrap().1);
    data.map(|data| match data {
        "[DONE]" => "[DONE]".into(),
        data => serde_json::from_str(data).unwrap(),
    })
    .collect()
}
