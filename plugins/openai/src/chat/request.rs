//! The request body of a chat completion.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, out_of_range};
use corral_sdk::template::Chat;
use serde_json::Value;

use super::messages;
use crate::conversation::{ChatRequest, Format, TemplateKwargs, Tools};
use crate::error::unsupported;
use crate::generation::{Settings, settings};

/// The host's limit for logprobs.
const LOGPROBS_LIMIT: u8 = 20;

/// Fields of the API that are not supported, with the reason.
const UNSUPPORTED: [(&str, &str); 6] = [
    ("audio", "models generate text only"),
    ("functions", "it was replaced by `tools`"),
    ("function_call", "it was replaced by `tool_choice`"),
    ("prediction", "predicted outputs are not available"),
    ("verbosity", "models have no such setting"),
    ("web_search_options", "there is no web search"),
];

/// Fields for the API's operator that do not change the response.
const IGNORED_FIELDS: [&str; 5] = [
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];

const FIELDS: [&str; 16] = [
    "model",
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "reasoning_effort",
    "chat_template_kwargs",
    "max_tokens",
    "max_completion_tokens",
    "logprobs",
    "top_logprobs",
    "stream",
    "stream_options",
    "service_tier",
    "modalities",
];

/// A chat completion request.
pub struct Request {
    pub chat: ChatRequest,
    /// `None` if not streamed; otherwise whether the stream ends with the usage.
    pub stream: Option<bool>,
}

pub fn read(mut fields: Fields) -> Result<Request, Error> {
    reject(&mut fields, &UNSUPPORTED)?;
    drop_operator_fields(&mut fields)?;
    let text = Value::from(vec!["text"]);
    reject_other_values(
        &mut fields,
        "modalities",
        &[text],
        "models generate text only",
    )?;

    let model = fields.text("model")?;
    let messages = fields.list("messages")?;
    let messages = messages.ok_or_else(|| fields.missing("messages", "a list of messages"))?;
    let tools = Tools::read(&mut fields)?;
    let format = match fields.object("response_format")? {
        Some(format) => response_format(format)?,
        None => Format::Text,
    };
    let effort = fields.text("reasoning_effort")?;
    let template_kwargs = TemplateKwargs::read(&mut fields, effort.as_deref(), "reasoning_effort")?;
    let mut settings = Settings::read(&mut fields)?;
    settings.max_tokens = length(&mut fields)?;
    settings.logprobs = logprobs(&mut fields)?;
    let stream = stream(&mut fields)?;
    fields.reject_unknown(&[&FIELDS[..], &settings::FIELDS].concat())?;

    let chat = Chat {
        messages: messages::read(messages)?,
        ..Chat::default()
    };
    Ok(Request {
        chat: ChatRequest {
            model,
            chat,
            template_kwargs,
            tools,
            format,
            settings,
            format_field: "response_format",
        },
        stream,
    })
}

/// Drops fields for the API's operator. Returns an error if their values request an unsupported
/// feature.
pub fn drop_operator_fields(fields: &mut Fields) -> Result<(), Error> {
    ignore(fields, &IGNORED_FIELDS);
    let reason = "responses are not stored";
    reject_other_values(fields, "store", &[false.into()], reason)?;
    let tiers = ["auto".into(), "default".into()];
    reject_other_values(fields, "service_tier", &tiers, "there is one service tier")
}

/// Returns an error if one of these fields is present.
pub fn reject(fields: &mut Fields, refused: &[(&str, &str)]) -> Result<(), Error> {
    match refused.iter().find(|(name, _)| fields.take(name).is_some()) {
        Some((name, why)) => Err(unsupported(&fields.path(name), why)),
        None => Ok(()),
    }
}

/// Returns an error if a field has a value other than the allowed ones.
pub fn reject_other_values(
    fields: &mut Fields,
    name: &str,
    allowed: &[Value],
    why: &str,
) -> Result<(), Error> {
    match fields.take(name) {
        Some(value) if !allowed.contains(&value) => {
            Err(unsupported(name, &format!("{why}, but it is {value}")))
        }
        _ => Ok(()),
    }
}

/// Drops fields that do not change the response.
pub fn ignore(fields: &mut Fields, names: &[&str]) {
    for name in names {
        fields.take(name);
    }
}

fn response_format(mut fields: Fields) -> Result<Format, Error> {
    let kind = fields.text("type")?;
    if kind.as_deref() != Some("json_schema") {
        let why = "it requires the type `json_schema`";
        reject(&mut fields, &[("json_schema", why)])?;
    }
    let format = match kind.as_deref() {
        Some("text") => Format::Text,
        Some("json_object") => Format::JsonObject,
        Some("json_schema") => {
            let schema = fields.object("json_schema")?;
            schema_format(schema.ok_or_else(|| fields.missing("json_schema", "an object"))?)?
        }
        _ => {
            let expected = "text, json_object or json_schema";
            return Err(out_of_range(&fields.path("type"), &kind.into(), expected));
        }
    };
    fields.reject_unknown(&["type", "json_schema"])?;
    Ok(format)
}

/// Reads a named schema. The answer always satisfies it, strict or not; `name` and `description`
/// are ignored.
pub fn schema_format(mut fields: Fields) -> Result<Format, Error> {
    let schema = fields.take("schema");
    let schema = schema.ok_or_else(|| fields.missing("schema", "a JSON schema"))?;
    fields.text("name")?;
    fields.text("description")?;
    fields.boolean("strict")?;
    fields.reject_unknown(&["name", "description", "schema", "strict"])?;
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(Format::Schema(schema)),
        other => Err(corral_sdk::fields::wrong_type(
            &fields.path("schema"),
            "a JSON schema",
            &other,
        )),
    }
}

/// Reads the old and the new field for the length.
fn length(fields: &mut Fields) -> Result<Option<u32>, Error> {
    let old = fields.integer("max_tokens", 1..=u32::MAX)?;
    let new = fields.integer("max_completion_tokens", 1..=u32::MAX)?;
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            let why = "it is another name of `max_completion_tokens`, which is present as well";
            Err(unsupported("max_tokens", why))
        }
        _ => Ok(new.or(old)),
    }
}

fn logprobs(fields: &mut Fields) -> Result<Option<u8>, Error> {
    let enabled = fields.flag("logprobs")?;
    let top = fields.integer("top_logprobs", 0..=LOGPROBS_LIMIT)?;
    match (enabled, top) {
        (false, Some(_)) => Err(unsupported("top_logprobs", "it requires `logprobs: true`")),
        (false, None) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0))),
    }
}

/// Reads `stream` and `stream_options`: `None` if not streamed; otherwise whether the stream ends
/// with the usage.
pub fn stream(fields: &mut Fields) -> Result<Option<bool>, Error> {
    let stream = fields.flag("stream")?;
    let Some(mut options) = fields.object("stream_options")? else {
        return Ok(stream.then_some(false));
    };
    if !stream {
        return Err(unsupported("stream_options", "it requires `stream: true`"));
    }
    let usage = options.flag("include_usage")?;
    // Padding against traffic analysis is not supported.
    let path = options.path("include_obfuscation");
    if options.flag("include_obfuscation")? {
        return Err(unsupported(&path, "events are not padded"));
    }
    options.reject_unknown(&["include_usage", "include_obfuscation"])?;
    Ok(Some(usage))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with(members: Value) -> Result<Request, Error> {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        body.as_object_mut()
            .unwrap()
            .extend(members.as_object().unwrap().clone());
        read(Fields::at(String::new(), body).unwrap())
    }

    #[test]
    fn unsupported_fields_are_named() {
        let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
        for (members, field, detail) in [
            (json!({"audio": {}}), "audio", "text only"),
            (json!({"functions": []}), "functions", "`tools`"),
            (json!({"prediction": {}}), "prediction", "predicted outputs"),
            (json!({"store": true}), "store", "not stored"),
            (
                json!({"service_tier": "flex"}),
                "service_tier",
                "one service tier",
            ),
            (json!({"modalities": ["audio"]}), "modalities", "text only"),
            (json!({"nope": 1}), "nope", "is unknown"),
            (json!({"messages": 1}), "messages", "a number"),
            (json!({"messages": null}), "messages", "is missing"),
            (json!({"max_tokens": 0}), "max_tokens", "from 1"),
            (
                json!({"max_tokens": 1, "max_completion_tokens": 2}),
                "max_tokens",
                "another name",
            ),
            (
                json!({"top_logprobs": 2}),
                "top_logprobs",
                "`logprobs: true`",
            ),
            (
                json!({"logprobs": true, "top_logprobs": 21}),
                "top_logprobs",
                "to 20",
            ),
            (
                json!({"stream_options": {}}),
                "stream_options",
                "`stream: true`",
            ),
            (
                json!({"stream": true, "stream_options": {"include_obfuscation": true}}),
                "stream_options.include_obfuscation",
                "not padded",
            ),
            (
                json!({"response_format": {"type": "xml"}}),
                "response_format.type",
                "json_schema",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {}}}),
                "response_format.json_schema.schema",
                "is missing",
            ),
            (
                json!({"response_format": {"type": "json_object", "json_schema": {"schema": {}}}}),
                "response_format.json_schema",
                "the type `json_schema`",
            ),
            (
                json!({"tools": [{"type": "custom"}]}),
                "tools[0].type",
                "function",
            ),
            (
                json!({"tools": [tool("a b")]}),
                "tools[0].function.name",
                "letters",
            ),
            (
                json!({"tool_choice": "required"}),
                "tool_choice",
                "not in `tools`",
            ),
            (json!({"tool_choice": "maybe"}), "tool_choice", "maybe"),
            (
                json!({"tools": [tool("f")], "tool_choice": tool("g")}),
                "tool_choice",
                "[\"f\"]",
            ),
            (
                json!({"tool_choice": {"type": "allowed_tools"}}),
                "tool_choice",
                "allowed_tools",
            ),
        ] {
            let error = with(members.clone()).err().unwrap();
            assert_eq!(
                (error.status(), error.field()),
                (400, Some(field)),
                "{members}: {error}"
            );
            assert!(error.to_string().contains(detail), "{members}: {error}");
        }
    }

    #[test]
    fn what_changes_nothing_is_taken() {
        for members in [
            json!({"user": "x", "metadata": {"a": "b"}, "safety_identifier": "x"}),
            json!({"store": false, "service_tier": "auto", "modalities": ["text"]}),
            json!({"prompt_cache_key": "x", "audio": null, "tool_choice": "auto"}),
            json!({"max_tokens": 5, "max_completion_tokens": 5}),
            json!({"tool_choice": "none", "tools": [], "parallel_tool_calls": false}),
            json!({"stream": true, "stream_options": {"include_usage": true}}),
        ] {
            assert!(with(members.clone()).is_ok(), "{members}");
        }
    }
}
