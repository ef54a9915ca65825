//! The request body of a chat completion.

use corral_sdk::Error;
use corral_sdk::fields::Fields;
use corral_sdk::template::Chat;
use serde_json::json;

use super::messages;
use crate::constraint_fields;
use crate::shared_fields::{
    STREAM_FIELDS, StreamOptions, ignore_without_effect, length, reject,
    reject_fields_of_other_servers, reject_other_values, stream_options,
};
use conversation::generation::{Settings, settings};
use conversation::{ChatRequest, TemplateKwargs, Tools};
use conversation::{check_unconstrained, silently_ignored, take_final_text, unsupported};

/// Fields of the API that are not supported, with the reason.
const UNSUPPORTED: [(&str, &str); 2] = [
    ("audio", "models generate text only"),
    ("web_search_options", "there is no web search"),
];

/// Fields of the API that have no effect, with the reason.
const WITHOUT_EFFECT: [(&str, &str); 1] = [("verbosity", "models have no such setting")];

/// The names of the length in several APIs.
const LENGTHS: [&str; 3] = ["max_completion_tokens", "max_tokens", "n_predict"];

const FIELDS: [&str; 18] = [
    "model",
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "continue_final_message",
    "add_generation_prompt",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "enable_thinking",
    "chat_template_kwargs",
    "max_tokens",
    "max_completion_tokens",
    "logprobs",
    "top_logprobs",
    "n_predict",
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
    silently_ignored::drop(&mut fields, &silently_ignored::OF_REQUEST);
    for (name, allowed, why) in [
        (
            "modalities",
            &[json!(["text"])][..],
            "models generate text only",
        ),
        ("functions", &[json!([])], "it was replaced by `tools`"),
        (
            "function_call",
            &["none".into(), "auto".into()],
            "it was replaced by `tool_choice`",
        ),
        ("echo", &[false.into()], "an answer is a new message"),
    ] {
        reject_other_values(&mut fields, name, allowed, why)?;
    }

    let model = fields.text("model")?;
    let messages = fields.required_list("messages", "a list of messages")?;
    let tools = Tools::read(&mut fields)?;
    let (format, format_field) = constraint_fields::read(&mut fields)?;
    let continue_final = fields.flag("continue_final_message")?;
    let add_generation_prompt = fields.boolean("add_generation_prompt")?;
    if continue_final && add_generation_prompt == Some(true) {
        let why = "`continue_final_message` is true as well, and the prompt ends once";
        return Err(unsupported("add_generation_prompt", why));
    }
    let template_kwargs = template_kwargs(&mut fields)?;
    let mut settings = Settings::read(&mut fields)?;
    settings.max_tokens = length(&mut fields, &LENGTHS, 1)?.flatten();
    settings.logprobs = settings::logprobs(&mut fields)?;
    let stream = stream_options(&mut fields)?;
    reject_fields_of_other_servers(&mut fields)?;
    let known = [
        &FIELDS[..],
        &settings::FIELDS,
        &constraint_fields::FIELDS,
        &STREAM_FIELDS,
    ];
    fields.ignore_unknown(&known.concat())?;

    let mut chat = Chat {
        messages: messages::read(messages)?,
        add_generation_prompt: add_generation_prompt.unwrap_or(true),
        ..Chat::default()
    };
    let prefill = match continue_final {
        true => {
            check_unconstrained(&format, &tools, "continue_final_message")?;
            Some(take_final_text(&mut chat, "messages")?)
        }
        false => None,
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
            prefill,
        },
        stream,
    })
}

/// Reads template variables, and the fields of several APIs that set some of them.
fn template_kwargs(fields: &mut Fields) -> Result<TemplateKwargs, Error> {
    let effort = fields.text("reasoning_effort")?;
    let mut kwargs = TemplateKwargs::read(fields, effort.as_deref(), "reasoning_effort")?;
    if let Some(mut reasoning) = fields.object("reasoning")? {
        if let Some(effort) = reasoning.text("effort")? {
            kwargs.add("reasoning_effort", effort.into(), "reasoning.effort")?;
        }
        reasoning.ignore_unknown(&["effort"])?;
    }
    if let Some(enabled) = fields.boolean("enable_thinking")? {
        kwargs.add("enable_thinking", enabled.into(), "enable_thinking")?;
    }
    kwargs.read_thinking(fields)?;
    Ok(kwargs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::merged;
    use conversation::Format;
    use corral_sdk::fields::ignored;
    use corral_sdk::testing::{check_field_errors, check_ignored_fields};
    use serde_json::Value;

    fn with(request_fields: Value) -> Result<ChatCompletionRequest, Error> {
        let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        read(Fields::at(String::new(), merged(body, &request_fields))?)
    }

    /// Fields of a request, and the field and text of the error.
    const ERRORS: &str = r#"
{"audio": {}} => audio: text only
{"functions": [{"name": "f"}]} => functions: `tools`
{"function_call": {"name": "f"}} => function_call: `tool_choice`
{"web_search_options": {}} => web_search_options: no web search
{"min_tokens": 5} => min_tokens: least length
{"guided_json": 1} => guided_json: a JSON schema
{"skip_special_tokens": false} => skip_special_tokens: never part
{"chat_template_kwargs": {"enable_thinking": true}, "enable_thinking": false} => chat_template_kwargs.enable_thinking: sets the same
{"modalities": ["audio"]} => modalities: text only
{"messages": 1} => messages: a number
{"messages": null} => messages: is missing
{"max_tokens": 0} => max_tokens: from 1
{"max_tokens": 1, "max_completion_tokens": 2} => max_tokens: another name
{"max_tokens": 1, "n_predict": -1} => n_predict: another name
{"logprobs": true, "top_logprobs": 21} => top_logprobs: to 20
{"stream_options": 1} => stream_options: a number
{"response_format": {"type": "xml"}} => response_format.type: json_schema
{"add_generation_prompt": true, "continue_final_message": true} => add_generation_prompt: ends once
{"continue_final_message": true, "response_format": {"type": "json_object"}} => continue_final_message: be constrained
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
{"top_logprobs": 2} => top_logprobs: `logprobs: true`
{"stream": true, "stream_options": {"include_obfuscation": true}} => stream_options.include_obfuscation: not padded
{"reasoning": {"effort": "low", "exclude": true}} => reasoning.exclude: is unknown
{"thinking": {"type": "enabled", "budget_tokens": 1024}} => thinking.budget_tokens: is unknown
{"messages": [{"role": "user", "content": "Hi", "mood": 1}]} => messages[0].mood: is unknown
{"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "size": 1}]}]} => messages[0].content[0].size: is unknown
{"nope": 1} => nope: is unknown
{"tools": [{"type": "function", "function": {"name": "f", "pace": 1}}]} => tools[0].function.pace: is unknown
"#;

    #[test]
    fn ignored_fields_are_named() {
        check_ignored_fields(IGNORED, with);
    }

    #[test]
    fn fields_without_effect_are_accepted() {
        for request_fields in [
            json!({"user": "x", "metadata": {"a": "b"}, "safety_identifier": "x"}),
            json!({"store": true, "service_tier": "flex", "modalities": ["text"]}),
            json!({"prompt_cache_key": "x", "audio": null, "tool_choice": "auto"}),
            json!({"prediction": {"type": "content", "content": "x"}, "thread": "x"}),
            json!({"functions": [], "function_call": "none", "cache_control": {}}),
            json!({"max_tokens": 5, "max_completion_tokens": 5}),
            json!({"min_tokens": 0, "use_beam_search": false, "skip_special_tokens": true}),
            json!({"stream_options": {"include_usage": true}}),
            json!({"response_format": {"type": "json_object", "json_schema": null}}),
            json!({"tools": [{"type": "function", "cache_control": {}, "function": {
                "name": "f", "defer_loading": true, "eager_input_streaming": true, "input_examples": [],
                "parameters": null, "description": null, "strict": null,
            }}]}),
            json!({"tool_choice": "none", "tools": [], "parallel_tool_calls": false}),
            json!({"stream": true, "stream_options": {"include_usage": true}}),
        ] {
            ignored::begin(true);
            assert!(with(request_fields.clone()).is_ok(), "{request_fields}");
        }
        for (name, _) in [&silently_ignored::OF_REQUEST[..]].concat() {
            ignored::begin(true);
            assert!(with(json!({name: {"a": 1}})).is_ok(), "{name}");
        }
    }

    #[test]
    fn null_counts_as_absent() {
        for name in [&FIELDS[..], &settings::FIELDS].concat() {
            if name != "messages" {
                ignored::begin(true);
                assert!(with(json!({name: null})).is_ok(), "{name}");
            }
        }
    }

    #[test]
    fn length_of_minus_1_is_unlimited() {
        for (request_fields, expected) in [
            (json!({"max_tokens": -1}), None),
            (json!({"max_tokens": -1, "max_completion_tokens": -1}), None),
            (json!({"max_completion_tokens": 7}), Some(7)),
            (json!({"n_predict": 7, "max_tokens": 7}), Some(7)),
        ] {
            let request = with(request_fields.clone()).unwrap();
            assert_eq!(
                request.chat.settings.max_tokens, expected,
                "{request_fields}"
            );
        }
    }

    #[test]
    fn several_fields_set_template_variables() {
        for request_fields in [
            json!({"reasoning_effort": "low", "thinking": {"type": "disabled"}}),
            json!({"reasoning": {"effort": "low"}, "enable_thinking": false}),
            json!({"chat_template_kwargs": {"reasoning_effort": "low", "enable_thinking": false}}),
        ] {
            let variables = with(request_fields.clone()).unwrap().chat.template_kwargs.0;
            let variables = variables.into_iter().map(|one| (one.name, one.value));
            let variables: serde_json::Map<_, _> = variables.collect();
            let expected = json!({"reasoning_effort": "low", "enable_thinking": false});
            assert_eq!(Value::from(variables), expected, "{request_fields}");
        }
    }

    #[test]
    fn schema_of_llama_cpp_is_read() {
        let schema = json!({"type": "object"});
        let format = json!({"type": "json_object", "schema": schema});
        let request = with(json!({"response_format": format})).unwrap();
        let strict = false;
        assert_eq!(request.chat.format, Format::Schema { schema, strict });
    }
}
