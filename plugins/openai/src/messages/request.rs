//! The request body of the Messages API.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, NON_NEGATIVE, ZERO_TO_ONE, out_of_range, wrong_type};
use corral_sdk::template::Chat;
use serde_json::{Map, Value, json};

use crate::shared_fields::{ignore, reject, reject_other_values};
use conversation::generation::Settings;
use conversation::message::{call, text};
use conversation::tools::{Tool, ToolChoice};
use conversation::unsupported;
use conversation::{ChatRequest, Format, TemplateKwarg, TemplateKwargs, Tools};

/// Fields of the API that are not supported, with the reason.
const UNSUPPORTED: [(&str, &str); 4] = [
    ("container", "code is not executed"),
    ("context_management", "messages are never dropped"),
    ("mcp_servers", "the client calls the tools"),
    (
        "output_config",
        "use `response_format` of /v1/chat/completions",
    ),
];

const FIELDS: [&str; 12] = [
    "model",
    "messages",
    "system",
    "max_tokens",
    "stop_sequences",
    "temperature",
    "top_p",
    "top_k",
    "tools",
    "tool_choice",
    "thinking",
    "stream",
];

/// A Messages API request.
pub struct MessagesRequest {
    pub chat: ChatRequest,
    pub stream: bool,
}

pub fn read(mut fields: Fields) -> Result<MessagesRequest, Error> {
    reject(&mut fields, &UNSUPPORTED)?;
    // Accepted and ignored.
    ignore(&mut fields, &["metadata"]);
    let tiers = ["auto".into(), "standard_only".into()];
    reject_other_values(
        &mut fields,
        "service_tier",
        &tiers,
        "there is one service tier",
    )?;

    let mut messages = Vec::new();
    if let Some(system) = fields.take("system") {
        let text = text("system", system, &["text"])?;
        messages.push(json!({"role": "system", "content": text}));
    }
    let list = fields.required_list("messages", "a list of messages")?;
    check_last(&list)?;
    for (index, message) in list.into_iter().enumerate() {
        add_message(
            Fields::at(format!("messages[{index}]"), message)?,
            &mut messages,
        )?;
    }
    let tools = tools(&mut fields)?;
    let template_kwargs = thinking(&mut fields)?;
    let defaults = Settings::default();
    let length = fields.integer("max_tokens", 1..=u32::MAX)?;
    let length = length.ok_or_else(|| fields.missing("max_tokens", "an integer from 1"))?;
    let settings = Settings {
        max_tokens: Some(length),
        stop: fields.stop_strings("stop_sequences")?,
        temperature: fields
            .number("temperature", &NON_NEGATIVE)?
            .unwrap_or(defaults.temperature),
        top_p: fields.number("top_p", &ZERO_TO_ONE)?,
        top_k: fields.integer("top_k", 0..=u32::MAX)?,
        ..defaults
    };
    let stream = fields.flag("stream")?;
    let model = fields.text("model")?;
    fields.ignore_unknown(&FIELDS)?;
    Ok(MessagesRequest {
        chat: ChatRequest {
            model,
            chat: Chat {
                messages,
                ..Chat::default()
            },
            template_kwargs,
            tools,
            format: Format::Text,
            settings,
            messages_field: "messages",
            continue_final: false,
            format_field: "",
        },
        stream,
    })
}

/// Checks that the last message is the user's.
fn check_last(messages: &[Value]) -> Result<(), Error> {
    match messages.split_last() {
        None => {
            let text = "`messages` is empty; expected at least one message";
            Err(Error::bad_request("empty-prompt", text).with_field("messages"))
        }
        Some((last, before)) if last["role"] == "assistant" => {
            let why =
                "prefilled answers are not available; expected the last message to be the user's";
            Err(unsupported(&format!("messages[{}]", before.len()), why))
        }
        Some(_) => Ok(()),
    }
}

/// Adds a message, preceded by the tool results that it contains.
fn add_message(mut fields: Fields, messages: &mut Vec<Value>) -> Result<(), Error> {
    let role = fields.text("role")?;
    let content = fields.required("content", "a string or a list of blocks")?;
    fields.ignore_unknown(&["role", "content"])?;
    let (role, kinds) = match role.as_deref() {
        Some("user") => ("user", "text and tool_result"),
        Some("assistant") => ("assistant", "text, thinking and tool_use"),
        _ => {
            return Err(out_of_range(
                &fields.path("role"),
                &role.into(),
                "user or assistant",
            ));
        }
    };
    let path = fields.path("content");
    let blocks = match content {
        Value::String(text) if text.is_empty() => return Err(empty_message(&path)),
        Value::String(text) => {
            messages.push(json!({"role": role, "content": text}));
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        other => return Err(wrong_type(&path, "a string or a list of blocks", &other)),
    };
    let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    let mut results = 0;
    for (index, block) in blocks.into_iter().enumerate() {
        let mut block = Fields::at(format!("{path}[{index}]"), block)?;
        // Cache marks are not needed: prefixes are always cached.
        ignore(&mut block, &["cache_control", "citations"]);
        let kind = block.text("type")?;
        let known: &[&str] = match (role, kind.as_deref()) {
            (_, Some("text")) => {
                text += &block.required_text("text")?;
                &["type", "text"]
            }
            ("user", Some("tool_result")) => {
                messages.push(tool_result(&mut block)?);
                results += 1;
                &["type", "tool_use_id", "content", "is_error"]
            }
            ("assistant", Some("tool_use")) => {
                let id = block.required_text("id")?;
                let name = block.required_text("name")?;
                let input = block.object("input")?.map(Fields::into_map);
                calls.push(call(Some(id), &name, input.unwrap_or_default().into()));
                &["type", "id", "name", "input"]
            }
            ("assistant", Some("thinking")) => {
                reasoning += &block.required_text("thinking")?;
                // Reasoning is not signed.
                block.text("signature")?;
                &["type", "thinking", "signature"]
            }
            _ => {
                let why = format!(
                    "blocks of the type {} are unknown; expected {kinds}",
                    Value::from(kind)
                );
                return Err(unsupported(&block.path("type"), &why));
            }
        };
        block.ignore_unknown(known)?;
    }
    if text.is_empty() && calls.is_empty() {
        return match results {
            0 => Err(empty_message(&path)),
            _ => Ok(()),
        };
    }
    let mut message = Map::new();
    message.insert("role".to_owned(), role.into());
    let text = Some(text).filter(|text| !text.is_empty());
    message.insert("content".to_owned(), text.into());
    if !reasoning.is_empty() {
        message.insert("reasoning_content".to_owned(), reasoning.into());
    }
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), calls.into());
    }
    messages.push(message.into());
    Ok(())
}

/// Creates the error for a message without content.
fn empty_message(path: &str) -> Error {
    let text = format!("`{path}` has no content; expected text, tool calls or tool results");
    Error::bad_request("empty-message", text).with_field(path)
}

/// Reads a tool result. Templates have no field for a failure, so it becomes a prefix of the
/// content.
fn tool_result(block: &mut Fields) -> Result<Value, Error> {
    let id = block.required_text("tool_use_id")?;
    let failed = block.flag("is_error")?;
    let mut content = match block.take("content") {
        None => String::new(),
        Some(content) => text(&block.path("content"), content, &["text"])?,
    };
    if failed {
        content = format!("Error: {content}").trim_end().to_owned();
    }
    Ok(json!({"role": "tool", "tool_call_id": id, "content": content}))
}

fn tools(fields: &mut Fields) -> Result<Tools, Error> {
    let list = Tools::list(fields, |mut tool| {
        ignore(&mut tool, &["cache_control"]);
        match tool.text("type")?.as_deref() {
            None | Some("custom") => Tool::read(tool, "input_schema"),
            Some(other) => {
                let why = format!(
                    "tools of the type {other:?} are not available; expected the client's own"
                );
                Err(unsupported(&tool.path("type"), &why))
            }
        }
    })?;
    let Some(mut choice) = fields.object("tool_choice")? else {
        return Tools::new(list, None, true);
    };
    let kind = choice.text("type")?;
    let parallel = !choice.flag("disable_parallel_tool_use")?;
    if kind.as_deref() != Some("tool") {
        reject(&mut choice, &[("name", "it requires the type `tool`")])?;
    }
    let chosen = match kind.as_deref() {
        Some("auto") => ToolChoice::Auto,
        Some("any") => ToolChoice::Required,
        Some("none") => ToolChoice::None,
        Some("tool") => ToolChoice::Named(choice.required_text("name")?),
        _ => {
            let expected = "auto, any, tool or none";
            return Err(out_of_range("tool_choice.type", &kind.into(), expected));
        }
    };
    choice.ignore_unknown(&["type", "name", "disable_parallel_tool_use"])?;
    Tools::new(list, Some(chosen), parallel)
}

/// Reads the template variables for `thinking`.
fn thinking(fields: &mut Fields) -> Result<TemplateKwargs, Error> {
    let mut kwargs = TemplateKwargs::default();
    if let Some(mut thinking) = fields.object("thinking")? {
        let kind = thinking.text("type")?;
        if kind.as_deref() != Some("disabled") {
            let why = "reasoning budgets are not available; expected the type disabled";
            return Err(unsupported("thinking", why));
        }
        thinking.ignore_unknown(&["type"])?;
        kwargs.0.push(TemplateKwarg {
            name: "enable_thinking".to_owned(),
            value: false.into(),
            field: "thinking".to_owned(),
        });
    }
    Ok(kwargs)
}
