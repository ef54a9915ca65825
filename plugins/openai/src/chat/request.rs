//! The request body of a chat completion.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, out_of_range};
use corral_sdk::template::Chat;
use serde_json::Value;

use super::messages;
use crate::shared_fields::{
    drop_operator_fields, reject, reject_other_values, schema_format, stream,
};
use conversation::generation::{Settings, settings};
use conversation::unsupported;
use conversation::{ChatRequest, Format, TemplateKwargs, Tools};

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
pub struct ChatCompletionRequest {
    pub chat: ChatRequest,
    /// `None` if not streamed; otherwise whether the stream ends with the usage.
    pub stream: Option<bool>,
}

pub fn read(mut fields: Fields) -> Result<ChatCompletionRequest, Error> {
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
    let messages = fields.required_list("messages", "a list of messages")?;
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
    Ok(ChatCompletionRequest {
        chat: ChatRequest {
            model,
            chat,
            template_kwargs,
            tools,
            format,
            settings,
            messages_field: "messages",
            format_field: "response_format",
        },
        stream,
    })
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
        Some("json_schema") => schema_format(fields.required_object("json_schema")?)?,
        _ => {
            let expected = "text, json_object or json_schema";
            return Err(out_of_range(&fields.path("type"), &kind.into(), expected));
        }
    };
    fields.reject_unknown(&["type", "json_schema"])?;
    Ok(format)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::merged;
    use corral_sdk::testing::check_field_errors;
    use serde_json::json;

    fn with(members: Value) -> Result<ChatCompletionRequest, Error> {
        let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        read(Fields::at(String::new(), merged(body, &members))?)
    }

    /// Fields of a request, and the field and text of the error.
    const ERRORS: &str = r#"
{"audio": {}} => audio: text only
{"functions": []} => functions: `tools`
{"prediction": {}} => prediction: predicted outputs
{"store": true} => store: not stored
{"service_tier": "flex"} => service_tier: one service tier
{"modalities": ["audio"]} => modalities: text only
{"nope": 1} => nope: is unknown
{"messages": 1} => messages: a number
{"messages": null} => messages: is missing
{"max_tokens": 0} => max_tokens: from 1
{"max_tokens": 1, "max_completion_tokens": 2} => max_tokens: another name
{"top_logprobs": 2} => top_logprobs: `logprobs: true`
{"logprobs": true, "top_logprobs": 21} => top_logprobs: to 20
{"stream_options": {}} => stream_options: `stream: true`
{"stream": true, "stream_options": {"include_obfuscation": true}} => stream_options.include_obfuscation: not padded
{"response_format": {"type": "xml"}} => response_format.type: json_schema
{"response_format": {"type": "json_schema", "json_schema": {}}} => response_format.json_schema.schema: is missing
{"response_format": {"type": "json_object", "json_schema": {"schema": {}}}} => response_format.json_schema: the type `json_schema`
{"tools": [{"type": "custom"}]} => tools[0].type: function
{"tools": [{"type": "function", "function": {"name": "a b"}}]} => tools[0].function.name: letters
{"tool_choice": "required"} => tool_choice: not in `tools`
{"tool_choice": "maybe"} => tool_choice: maybe
{"tool_choice": {"type": "allowed_tools"}} => tool_choice: allowed_tools
{"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": {"type": "function", "function": {"name": "g"}}} => tool_choice: ["f"]
"#;

    #[test]
    fn errors_name_the_field() {
        check_field_errors(ERRORS, with);
    }

    #[test]
    fn fields_without_effect_are_accepted() {
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
