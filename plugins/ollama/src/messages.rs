//! Converts the API's messages to those of chat templates.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, out_of_range, wrong_type};
use serde_json::{Map, Value, json};

use conversation::message::{call, parse_arguments};
use conversation::{images, unsupported};

const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

/// Reads the messages. Fields that the API does not define are ignored, as Ollama does, and named in
/// the response.
pub fn read(messages: Vec<Value>) -> Result<Vec<Value>, Error> {
    let messages = messages.into_iter().enumerate();
    messages
        .map(|(index, value)| message(Fields::at(format!("messages[{index}]"), value)?))
        .collect()
}

fn message(mut fields: Fields) -> Result<Value, Error> {
    let expected = "system, user, assistant or tool";
    let role = fields.text("role")?;
    let role = role.ok_or_else(|| fields.missing("role", expected))?;
    if !ROLES.contains(&role.as_str()) {
        return Err(out_of_range(&fields.path("role"), &role.into(), expected));
    }
    let mut message = Map::new();
    let images = images(&mut fields)?;
    if !images.is_empty() && role != "user" {
        return Err(unsupported(
            &fields.path("images"),
            "they are for messages of the user",
        ));
    }
    message.insert("role".to_owned(), role.into());
    let content = images + &fields.text("content")?.unwrap_or_default();
    message.insert("content".to_owned(), content.into());
    // The templates' names.
    for (name, template_name) in [
        ("thinking", "reasoning_content"),
        ("tool_name", "name"),
        ("tool_call_id", "tool_call_id"),
    ] {
        if let Some(text) = fields.text(name)?.filter(|text| !text.is_empty()) {
            message.insert(template_name.to_owned(), text.into());
        }
    }
    let path = fields.path("tool_calls");
    let calls = fields.list("tool_calls")?.unwrap_or_default();
    fields.ignore_unknown(&[])?;
    if !calls.is_empty() {
        let calls = calls.into_iter().enumerate();
        let calls = calls.map(|(at, call)| tool_call(Fields::at(format!("{path}[{at}]"), call)?));
        message.insert("tool_calls".to_owned(), calls.collect::<Result<_, _>>()?);
    }
    Ok(Value::Object(message))
}

/// Reads the images, each in base64, and returns the text that stands for them.
pub fn images(fields: &mut Fields) -> Result<String, Error> {
    let path = fields.path("images");
    let images = fields.list("images")?.unwrap_or_default();
    let images = images.into_iter().enumerate().map(|(index, image)| {
        let path = format!("{path}[{index}]");
        match image {
            Value::String(text) => images::read_base64(&path, &text),
            other => Err(wrong_type(&path, "base64", &other)),
        }
    });
    images.collect()
}

fn tool_call(mut fields: Fields) -> Result<Value, Error> {
    let id = fields.text("id")?;
    let mut function = fields.required_object("function")?;
    let name = function.required_text("name")?;
    let arguments = match function.take("arguments") {
        None => json!({}),
        Some(Value::String(text)) => parse_arguments(&text),
        Some(other) => other,
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
            json!({"role": "user", "content": "a", "images": [], "mood": 1}),
            json!({"role": "assistant", "thinking": "hm", "tool_calls": [
                {"function": {"index": 0, "name": "f", "arguments": {"a": 1}}},
            ]}),
            json!({"role": "tool", "tool_name": "f", "content": "x"}),
        ];
        assert_eq!(
            Value::from(read(messages).unwrap()),
            json!([
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [
                    {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
                ]},
                {"role": "tool", "content": "x", "name": "f"},
            ])
        );
    }

    #[test]
    fn errors_name_the_field() {
        let table = r#"
1 => messages[0]: a number
{"content": "x"} => messages[0].role: is missing
{"role": "developer"} => messages[0].role: or tool
{"role": "user", "content": 1} => messages[0].content: a number
{"role": "user", "content": "x", "images": ["?"]} => messages[0].images[0]: not valid base64
{"role": "user", "content": "x", "images": [1]} => messages[0].images[0]: a number
{"role": "system", "content": "x", "images": ["aGk="]} => messages[0].images: of the user
{"role": "assistant", "tool_calls": [{}]} => messages[0].tool_calls[0].function: is missing
"#;
        check_field_errors(table, |message| read(vec![message]));
    }
}
