//! Tests of the whole plugin against the scripted host.

mod chat;
mod completions;
mod messages;
mod model_families;
mod other_routes;
mod responses;
mod tolerance;

use corral_sdk::fields::ignored;
use corral_sdk::testing::Script;
use corral_sdk::{Error, Request, Response};
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

/// The body with further fields.
pub fn merged(mut body: Value, fields: &Value) -> Value {
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Checks that `read` rejects each input of a table with lines `INPUT => FIELD: DETAIL`, strict or not.
pub fn check_errors<T>(table: &str, read: impl Fn(Value) -> Result<T, Error>) {
    for strict in [false, true] {
        ignored::begin(strict);
        check_each_error(table, &read);
    }
}

/// Checks that a strict request rejects each input of such a table, and another names FIELD as ignored.
pub fn check_ignored<T>(table: &str, read: impl Fn(Value) -> Result<T, Error>) {
    ignored::begin(true);
    check_each_error(table, &read);
    for line in table.trim().lines() {
        let (input, error) = line.split_once(" => ").unwrap();
        let (field, _) = error.split_once(": ").unwrap();
        ignored::begin(false);
        let read = read(serde_json::from_str(input).unwrap());
        assert_eq!(read.err(), None, "{line}");
        let indices = |path: &str| path.replace(|letter: char| letter.is_ascii_digit(), "");
        let names = ignored::header_value().unwrap_or_default();
        let found = names
            .split(", ")
            .any(|name| indices(name) == indices(field));
        assert!(found, "{line}: {names}");
    }
}

fn check_each_error<T>(table: &str, read: impl Fn(Value) -> Result<T, Error>) {
    for line in table.trim().lines() {
        let (input, error) = line.split_once(" => ").unwrap();
        let (field, detail) = error.split_once(": ").unwrap();
        let error = read(serde_json::from_str(input).unwrap()).err().unwrap();
        assert_eq!(
            (error.status(), error.field()),
            (400, Some(field)),
            "{line}"
        );
        assert!(error.to_string().contains(detail), "{line}: {error}");
    }
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
    assert_eq!(
        head.header("content-type"),
        Some("application/json"),
        "{text}"
    );
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
