//! Converts the API's messages to those of chat templates.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, out_of_range, wrong_type};
use serde_json::{Map, Value, json};

use conversation::message::{call, parse_arguments, text};
use conversation::unsupported;

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
    let mut function = fields.required_object("function")?;
    fields.reject_unknown(&["id", "type", "function"])?;
    let name = function.required_text("name")?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::check_field_errors;

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

    /// A message, and the field and text of its error.
    const ERRORS: &str = r#"
1 => messages[0]: a number
{"content": "x"} => messages[0].role: is missing
{"role": "me", "content": "x"} => messages[0].role: assistant or tool
{"role": "user"} => messages[0].content: is missing
{"role": "user", "content": 1} => messages[0].content: a number
{"role": "user", "content": [{"type": "image_url", "image_url": {}}]} => messages[0].content[0].type: image_url
{"role": "user", "content": "x", "mood": 1} => messages[0].mood: is unknown
{"role": "user", "content": "x", "tool_call_id": "1"} => messages[0].tool_call_id: of the role "tool"
{"role": "user", "content": "x", "reasoning_content": "hm"} => messages[0].reasoning_content: of the role "assistant"
{"role": "assistant", "content": "x", "refusal": "no"} => messages[0].refusal: without `content`
{"role": "user", "refusal": "no"} => messages[0].refusal: of the assistant
{"role": "assistant", "tool_calls": [{"id": "1"}]} => messages[0].tool_calls[0].function: is missing
{"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]} => messages[0].tool_calls: of the assistant
"#;

    #[test]
    fn errors_name_the_field() {
        check_field_errors(ERRORS, |message| read(vec![message]));
        assert_eq!(read(Vec::new()).unwrap_err().field(), Some("messages"));
    }
}
