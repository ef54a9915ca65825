//! Converts the API's messages to those of chat templates.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, out_of_range, wrong_type};
use serde_json::{Map, Value, json};

use crate::error::unsupported;

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Reads the messages.
pub fn read(messages: Vec<Value>) -> Result<Vec<Value>, Error> {
    if messages.is_empty() {
        let text = "`messages` is empty; expected at least one message";
        return Err(Error::bad_request("empty-prompt", text).with_field("messages"));
    }
    let messages = messages.into_iter().enumerate();
    messages
        .map(|(index, value)| message(Fields::at(format!("messages[{index}]"), value)?))
        .collect()
}

fn message(mut fields: Fields) -> Result<Value, Error> {
    let role = fields.text("role")?;
    let expected = "system, developer, user, assistant or tool";
    let role = role.ok_or_else(|| fields.missing("role", expected))?;
    if !ROLES.contains(&role.as_str()) {
        return Err(out_of_range(&fields.path("role"), &role.into(), expected));
    }
    for name in ["audio", "function_call"] {
        if fields.take(name).is_some() {
            return Err(unsupported(
                &fields.path(name),
                "messages support text and tool calls",
            ));
        }
    }
    let content = content(&mut fields, &role)?;
    let refusal = fields.text("refusal")?;
    let refusal = refusal.filter(|refusal| !refusal.is_empty());
    if refusal.is_some() && (role != "assistant" || content.is_some()) {
        return Err(unsupported(
            &fields.path("refusal"),
            "it is for messages of the assistant without `content`",
        ));
    }
    let calls = fields.list("tool_calls")?;
    let calls = calls.filter(|calls| !calls.is_empty());

    let mut message = Map::new();
    message.insert("role".to_owned(), role.clone().into());
    match (content.or(refusal), &calls) {
        (Some(text), _) => message.insert("content".to_owned(), text.into()),
        (None, Some(_)) if role == "assistant" => message.insert("content".to_owned(), Value::Null),
        (None, _) => return Err(fields.missing("content", "a string or a list of parts")),
    };
    if let Some(calls) = calls {
        if role != "assistant" {
            return Err(unsupported(
                &fields.path("tool_calls"),
                "it is for messages of the assistant",
            ));
        }
        let path = fields.path("tool_calls");
        let calls = calls.into_iter().enumerate();
        let calls = calls.map(|(at, call)| tool_call(Fields::at(format!("{path}[{at}]"), call)?));
        message.insert("tool_calls".to_owned(), calls.collect::<Result<_, _>>()?);
    }
    // Templates use these names.
    for (name, only_role) in [
        ("name", None),
        ("tool_call_id", Some("tool")),
        ("reasoning_content", Some("assistant")),
    ] {
        if let Some(text) = fields.text(name)? {
            if let Some(only) = only_role.filter(|only| *only != role) {
                let why = format!("it is for messages of the role {only:?}");
                return Err(unsupported(&fields.path(name), &why));
            }
            message.insert(name.to_owned(), text.into());
        }
    }
    fields.reject_unknown(&[
        "role",
        "content",
        "refusal",
        "tool_calls",
        "name",
        "tool_call_id",
        "reasoning_content",
    ])?;
    Ok(Value::Object(message))
}

/// Reads the text of a message: a string, or text parts, which are concatenated.
fn content(fields: &mut Fields, role: &str) -> Result<Option<String>, Error> {
    let path = fields.path("content");
    let kinds: &[&str] = match role {
        "assistant" => &["text", "refusal"],
        _ => &["text"],
    };
    match fields.take("content") {
        None => Ok(None),
        Some(content) => text(&path, content, kinds).map(Some),
    }
}

/// Reads a string or a list of parts of these types. A part has its text in the field named after
/// its type or in `text`.
pub fn text(path: &str, content: Value, kinds: &[&str]) -> Result<String, Error> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => return Err(wrong_type(path, "a string or a list of parts", &other)),
    };
    let mut joined = String::new();
    for (index, part) in parts.into_iter().enumerate() {
        let mut part = Fields::at(format!("{path}[{index}]"), part)?;
        let kind = part.text("type")?;
        let Some(&kind) = kinds.iter().find(|known| Some(**known) == kind.as_deref()) else {
            let text = format!(
                "parts of the type {} are unknown; expected text",
                Value::from(kind)
            );
            return Err(unsupported(&part.path("type"), &text));
        };
        let field = if kind == "refusal" { kind } else { "text" };
        let text = part.text(field)?;
        joined += &text.ok_or_else(|| part.missing(field, "a string"))?;
        // Fields of earlier answers, and cache marks.
        for ignored in ["annotations", "logprobs", "cache_control", "citations"] {
            part.take(ignored);
        }
        part.reject_unknown(&["type", field])?;
    }
    Ok(joined)
}

fn tool_call(mut fields: Fields) -> Result<Value, Error> {
    let id = fields.text("id")?;
    let kind = fields.text("type")?;
    if kind.as_deref().is_some_and(|kind| kind != "function") {
        return Err(out_of_range(
            &fields.path("type"),
            &kind.into(),
            "\"function\"",
        ));
    }
    // Some clients send back the index of a streamed call.
    fields.take("index");
    let function = fields.object("function")?;
    let mut function = function.ok_or_else(|| fields.missing("function", "an object"))?;
    fields.reject_unknown(&["id", "type", "function"])?;
    let name = function.text("name")?;
    let name = name.ok_or_else(|| function.missing("name", "a string"))?;
    let arguments = function.take("arguments").unwrap_or_default();
    let path = function.path("arguments");
    function.reject_unknown(&["name", "arguments"])?;
    let arguments = match arguments {
        Value::String(text) => parse_arguments(&text),
        Value::Null => json!({}),
        Value::Object(_) => arguments,
        other => return Err(wrong_type(&path, "JSON text", &other)),
    };
    Ok(call(id, &name, arguments))
}

/// Parses the arguments of a call; keeps the text if it is not an object.
pub fn parse_arguments(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Value::Object(object),
        _ if text.trim().is_empty() => json!({}),
        _ => text.into(),
    }
}

/// A tool call in the format of templates.
pub fn call(id: Option<String>, name: &str, arguments: Value) -> Value {
    let mut call = Map::new();
    if let Some(id) = id {
        call.insert("id".to_owned(), id.into());
    }
    call.insert("type".to_owned(), "function".into());
    call.insert(
        "function".to_owned(),
        json!({"name": name, "arguments": arguments}),
    );
    Value::Object(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_get_the_form_of_templates() {
        let messages = vec![
            json!({"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
            json!({"role": "assistant", "content": null, "refusal": null, "reasoning_content": "hm", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
                {"id": "2", "index": 1, "function": {"name": "f", "arguments": "oops"}},
            ]}),
            json!({"role": "tool", "tool_call_id": "1", "content": "x"}),
            json!({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "tool_calls": []}),
            json!({"role": "assistant", "content": null, "refusal": "no"}),
            json!({"role": "assistant", "content": "", "refusal": ""}),
        ];
        assert_eq!(
            Value::from(read(messages).unwrap()),
            json!([
                {"role": "developer", "content": "ab"},
                {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
                    {"id": "2", "type": "function", "function": {"name": "f", "arguments": "oops"}},
                ]},
                {"role": "tool", "content": "x", "tool_call_id": "1"},
                {"role": "assistant", "content": "no"},
                {"role": "assistant", "content": "no"},
                {"role": "assistant", "content": ""},
            ])
        );
    }

    #[test]
    fn errors_name_the_field() {
        let call = json!({"function": {"name": "f", "arguments": "{}"}});
        for (message, field, detail) in [
            (json!(1), "messages[0]", "a number"),
            (json!({"content": "x"}), "messages[0].role", "is missing"),
            (
                json!({"role": "me", "content": "x"}),
                "messages[0].role",
                "assistant or tool",
            ),
            (json!({"role": "user"}), "messages[0].content", "is missing"),
            (
                json!({"role": "user", "content": 1}),
                "messages[0].content",
                "a number",
            ),
            (
                json!({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}),
                "messages[0].content[0].type",
                "image_url",
            ),
            (
                json!({"role": "user", "content": "x", "mood": 1}),
                "messages[0].mood",
                "is unknown",
            ),
            (
                json!({"role": "user", "content": "x", "tool_calls": [call]}),
                "messages[0].tool_calls",
                "of the assistant",
            ),
            (
                json!({"role": "user", "content": "x", "tool_call_id": "1"}),
                "messages[0].tool_call_id",
                "of the role \"tool\"",
            ),
            (
                json!({"role": "user", "content": "x", "reasoning_content": "hm"}),
                "messages[0].reasoning_content",
                "of the role \"assistant\"",
            ),
            (
                json!({"role": "assistant", "content": "x", "refusal": "no"}),
                "messages[0].refusal",
                "without `content`",
            ),
            (
                json!({"role": "user", "refusal": "no"}),
                "messages[0].refusal",
                "of the assistant",
            ),
            (
                json!({"role": "assistant", "tool_calls": [{"id": "1"}]}),
                "messages[0].tool_calls[0].function",
                "is missing",
            ),
        ] {
            let error = read(vec![message.clone()]).unwrap_err();
            assert_eq!(
                (error.status(), error.field()),
                (400, Some(field)),
                "{message}"
            );
            assert!(error.to_string().contains(detail), "{message}: {error}");
        }
        assert_eq!(read(Vec::new()).unwrap_err().field(), Some("messages"));
    }
}
