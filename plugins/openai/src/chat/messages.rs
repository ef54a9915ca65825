//! Converts the API's messages to those of chat templates.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, out_of_range, wrong_type};
use serde_json::{Map, Value, json};

use conversation::message::{call, parse_arguments, text};
use conversation::{silently_ignored, unsupported, without_effect};

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
    if fields.flag("prefix")? {
        let why = "use `continue_final_message` to continue the last message";
        return Err(unsupported(&fields.path("prefix"), why));
    }
    silently_ignored::drop(&mut fields, &silently_ignored::OF_MESSAGE);
    let calls = tool_calls(&mut fields, &role)?;
    let has_content = fields.has("content");
    let content = content(&mut fields, &role)?;
    let mut refusal = fields.text("refusal")?;
    refusal = refusal.filter(|refusal| !refusal.is_empty());
    if refusal.is_some() && (role != "assistant" || content.is_some()) {
        let why = "it is for messages of the assistant without `content`";
        without_effect(&fields.path("refusal"), why)?;
        refusal = None;
    }

    let mut message = Map::new();
    message.insert("role".to_owned(), role.clone().into());
    let content = match (content.or(refusal), &calls) {
        (Some(text), _) => text.into(),
        (None, Some(_)) => Value::Null,
        // Clients send empty answers as null, or leave them out.
        (None, None) if has_content || role == "assistant" => "".into(),
        (None, None) => return Err(fields.missing("content", "a string or a list of parts")),
    };
    message.insert("content".to_owned(), content);
    if let Some(calls) = calls {
        message.insert("tool_calls".to_owned(), calls);
    }
    let reasoning = reasoning(&mut fields)?;
    // Templates use these names.
    for (name, text, only_role) in [
        ("name", fields.text("name")?, None),
        ("tool_call_id", fields.text("tool_call_id")?, Some("tool")),
        ("reasoning_content", reasoning, Some("assistant")),
    ] {
        let Some(text) = text else { continue };
        match only_role.filter(|only| *only != role) {
            Some(only) => {
                let why = format!("it is for messages of the role {only:?}");
                without_effect(&fields.path(name), &why)?;
            }
            None => {
                message.insert(name.to_owned(), text.into());
            }
        }
    }
    fields.ignore_unknown(&[
        "role",
        "content",
        "refusal",
        "tool_calls",
        "name",
        "tool_call_id",
        "reasoning_content",
        "reasoning",
    ])?;
    Ok(Value::Object(message))
}

/// Reads the reasoning of an earlier answer in the field of vLLM's older or newer versions. Parts of it
/// in `reasoning_details` repeat its text.
fn reasoning(fields: &mut Fields) -> Result<Option<String>, Error> {
    let older = fields.text("reasoning_content")?;
    let newer = fields.text("reasoning")?;
    let text = older.or(newer);
    if text.is_some() {
        fields.take("reasoning_details");
    }
    Ok(text)
}

fn tool_calls(fields: &mut Fields, role: &str) -> Result<Option<Value>, Error> {
    let path = fields.path("tool_calls");
    let calls = fields.list("tool_calls")?;
    let Some(calls) = calls.filter(|calls| !calls.is_empty()) else {
        return Ok(None);
    };
    if role != "assistant" {
        return Err(unsupported(&path, "it is for messages of the assistant"));
    }
    let calls = calls.into_iter().enumerate();
    let calls = calls.map(|(at, call)| tool_call(Fields::at(format!("{path}[{at}]"), call)?));
    calls.collect::<Result<_, _>>().map(Some)
}

/// Reads the text of a message: a string, or text parts, which are concatenated.
fn content(fields: &mut Fields, role: &str) -> Result<Option<String>, Error> {
    let path = fields.path("content");
    let kinds: &[&str] = match role {
        "assistant" => &["text", "refusal"],
        "user" => &["text", "image_url", "input_audio", "audio_url"],
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
    fields.ignore_unknown(&["id", "type", "function"])?;
    let name = function.required_text("name")?;
    let arguments = function.take("arguments").unwrap_or_default();
    let path = function.path("arguments");
    function.ignore_unknown(&["name", "arguments"])?;
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
    use corral_sdk::fields::ignored;
    use corral_sdk::testing::{check_field_errors, check_ignored_fields};

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
            json!({"role": "assistant", "content": null}),
            json!({"role": "assistant", "id": "msg_1", "content": ["a", {"type": "text", "text": "b"}],
                "reasoning": "hm", "reasoning_details": [{}], "annotations": [], "audio": null}),
            json!({"role": "user", "content": null, "name": null, "cache_control": {}}),
        ];
        ignored::begin(true);
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
                {"role": "assistant", "content": ""},
                {"role": "assistant", "content": "ab", "reasoning_content": "hm"},
                {"role": "user", "content": ""},
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
{"role": "user", "content": [{"type": "image_url", "image_url": {}}]} => messages[0].content[0].image_url.url: is missing
{"role": "system", "content": [{"type": "image_url", "image_url": {}}]} => messages[0].content[0].type: image_url
{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]} => messages[0].content[0].input_audio.data: is missing
{"role": "system", "content": [{"type": "input_audio", "input_audio": {}}]} => messages[0].content[0].type: input_audio
{"role": "assistant", "content": "x", "prefix": true} => messages[0].prefix: `continue_final_message`
{"role": "user", "content": "x", "function_call": {}} => messages[0].function_call: text and tool calls
{"role": "assistant", "tool_calls": [{"id": "1"}]} => messages[0].tool_calls[0].function: is missing
{"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]} => messages[0].tool_calls: of the assistant
"#;

    /// A message with a field without effect, and the field and text of the error if it is strict.
    const IGNORED: &str = r#"
{"role": "user", "content": "x", "mood": 1} => messages[0].mood: is unknown
{"role": "user", "content": "x", "tool_call_id": "1"} => messages[0].tool_call_id: of the role "tool"
{"role": "user", "content": "x", "reasoning_content": "hm"} => messages[0].reasoning_content: of the role "assistant"
{"role": "assistant", "content": "x", "refusal": "no"} => messages[0].refusal: without `content`
{"role": "user", "content": "x", "refusal": "no"} => messages[0].refusal: of the assistant
{"role": "assistant", "content": "x", "reasoning_details": []} => messages[0].reasoning_details: is unknown
"#;

    #[test]
    fn fields_without_effect_are_named() {
        check_ignored_fields(IGNORED, |message| read(vec![message]));
    }

    #[test]
    fn errors_name_the_field() {
        check_field_errors(ERRORS, |message| read(vec![message]));
        assert_eq!(read(Vec::new()).unwrap_err().field(), Some("messages"));
    }
}
