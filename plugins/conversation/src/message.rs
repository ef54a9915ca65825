//! Parts of messages: the text of a client's content, and calls in the format of templates.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, wrong_type};
use serde_json::{Map, Value, json};

use crate::{audio, images, silently_ignored, unsupported};

/// Reads a string or a list of strings and parts of these types. A part has its text in the field named after
/// its type or in `text`. An [image](images) or [audio] becomes its marker.
pub fn text(path: &str, content: Value, kinds: &[&str]) -> Result<String, Error> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => return Err(wrong_type(path, "a string or a list of parts", &other)),
    };
    let mut joined = String::new();
    for (index, part) in parts.into_iter().enumerate() {
        if let Value::String(text) = &part {
            joined += text;
            continue;
        }
        let mut part = Fields::at(format!("{path}[{index}]"), part)?;
        let kind = part.text("type")?;
        let Some(&kind) = kinds.iter().find(|known| Some(**known) == kind.as_deref()) else {
            let text = format!(
                "parts of the type {} are unknown; expected text",
                Value::from(kind)
            );
            return Err(unsupported(&part.path("type"), &text));
        };
        silently_ignored::drop(&mut part, &silently_ignored::OF_PART);
        if images::PART_TYPES.contains(&kind) {
            joined += &images::read_part(&mut part, kind)?;
            part.ignore_unknown(&["type", "image_url", "source"])?;
            continue;
        }
        if audio::PART_TYPES.contains(&kind) {
            joined += &audio::read_part(&mut part, kind)?;
            part.ignore_unknown(&["type"])?;
            continue;
        }
        let field = if kind == "refusal" { kind } else { "text" };
        joined += &part.required_text(field)?;
        part.ignore_unknown(&["type", field])?;
    }
    Ok(joined)
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
