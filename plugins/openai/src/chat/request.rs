//! The request body of a chat completion.

use corral_sdk::Error;
use corral_sdk::fields::Fields;
use corral_sdk::template::Chat;
use serde_json::Value;

use super::messages;
use crate::shared_fields::{
    HINTS, STREAM_FIELDS, StreamOptions, drop_operator_fields, ignore, ignore_without_effect,
    reject, reject_other_values, stream_options,
};
use crate::structured;
use conversation::generation::{Settings, settings};
use conversation::unsupported;
use conversation::{ChatRequest, TemplateKwargs, Tools};

/// The host's limit for logprobs.
const LOGPROBS_LIMIT: u8 = 20;

/// Fields of the API that are not supported, with the reason.
const UNSUPPORTED: [(&str, &str); 5] = [
    ("audio", "models generate text only"),
    ("functions", "it was replaced by `tools`"),
    ("function_call", "it was replaced by `tool_choice`"),
    ("prediction", "predicted outputs are not available"),
    ("web_search_options", "there is no web search"),
];

/// Fields of the API that have no effect, with the reason.
const WITHOUT_EFFECT: [(&str, &str); 1] = [("verbosity", "models have no such setting")];

const FIELDS: [&str; 16] = [
    "model",
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "continue_final_message",
    "add_generation_prompt",
    "reasoning_effort",
    "chat_template_kwargs",
    "max_tokens",
    "max_completion_tokens",
    "logprobs",
    "top_logprobs",
    "n_predict",
    "service_tier",
    "modalities",
];

/// A chat completion request.
pub struct ChatCompletionRequest {
    pub chat: ChatRequest,
    /// `None` if not streamed.
    pub stream: Option<StreamOptions>,
}

pub fn read(mut fields: Fields) -> Result<ChatCompletionRequest, Error> {
    reject(&mut fields, &UNSUPPORTED)?;
    ignore_without_effect(&mut fields, &WITHOUT_EFFECT)?;
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
    let (format, format_field) = structured::read(&mut fields)?;
    let continue_final = fields.flag("continue_final_message")?;
    let begin_answer = fields.boolean("add_generation_prompt")?;
    if continue_final && begin_answer == Some(true) {
        let why = "`continue_final_message` is true as well, and the prompt ends once";
        return Err(unsupported("add_generation_prompt", why));
    }
    let effort = fields.text("reasoning_effort")?;
    let template_kwargs = TemplateKwargs::read(&mut fields, effort.as_deref(), "reasoning_effort")?;
    let mut settings = Settings::read(&mut fields)?;
    settings.max_tokens = length(&mut fields)?;
    settings.logprobs = logprobs(&mut fields)?;
    let stream = stream_options(&mut fields)?;
    ignore(&mut fields, &HINTS);
    let known = [
        &FIELDS[..],
        &settings::FIELDS,
        &structured::FIELDS,
        &STREAM_FIELDS,
    ];
    fields.ignore_unknown(&known.concat())?;

    let chat = Chat {
        messages: messages::read(messages)?,
        begin_answer: begin_answer.unwrap_or(true),
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
            format_field,
            continue_final,
        },
        stream,
    })
}

/// Reads the old and the new field for the length.
fn length(fields: &mut Fields) -> Result<Option<u32>, Error> {
    // llama.cpp's clients send -1 for the remaining context.
    for name in ["max_tokens", "max_completion_tokens", "n_predict"] {
        if fields.peek(name).and_then(Value::as_i64) == Some(-1) {
            fields.take(name);
        }
    }
    let other = fields.integer("n_predict", 1..=u32::MAX)?;
    let old = fields.integer("max_tokens", 1..=u32::MAX)?;
    let new = fields.integer("max_completion_tokens", 1..=u32::MAX)?;
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            let why = "it is another name of `max_completion_tokens`, which is present as well";
            Err(unsupported("max_tokens", why))
        }
        _ => Ok(new.or(old).or(other)),
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
    use corral_sdk::testing::{check_field_errors, check_ignored_fields};
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
{"messages": 1} => messages: a number
{"messages": null} => messages: is missing
{"max_tokens": 0} => max_tokens: from 1
{"max_tokens": 1, "max_completion_tokens": 2} => max_tokens: another name
{"top_logprobs": 2} => top_logprobs: `logprobs: true`
{"logprobs": true, "top_logprobs": 21} => top_logprobs: to 20
{"stream_options": {}} => stream_options: `stream: true`
{"stream": true, "stream_options": {"include_obfuscation": true}} => stream_options.include_obfuscation: not padded
{"response_format": {"type": "xml"}} => response_format.type: json_schema
{"add_generation_prompt": true, "continue_final_message": true} => add_generation_prompt: ends once
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

    /// Fields of a request without effect, and the field and text of the error if it is strict.
    const IGNORED: &str = r#"
{"verbosity": "low"} => verbosity: no such setting
{"nope": 1} => nope: is unknown
{"tools": [{"type": "function", "function": {"name": "f", "pace": 1}}]} => tools[0].function.pace: is unknown
"#;

    #[test]
    fn ignored_fields_are_named() {
        check_ignored_fields(IGNORED, with);
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
