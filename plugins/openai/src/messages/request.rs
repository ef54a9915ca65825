//! The body of a request.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, NOT_NEGATIVE, SHARE, out_of_range, wrong_type};
use corral_sdk::template::Chat;
use serde_json::{Map, Value, json};

use crate::asking::{Settings, settings};
use crate::chat::messages::{call, text};
use crate::chat::request::{ignore, refuse, refuse_other};
use crate::error::unsupported;
use crate::talk::tools::{Choice, Tool};
use crate::talk::{Argument, Arguments, Ask, Format, Tools};

/// Members of the API that can't be honoured, and why.
const REFUSED: [(&str, &str); 4] = [
    ("container", "no code is run here"),
    ("context_management", "no message is left out"),
    ("mcp_servers", "tools are called by the client"),
    (
        "output_config",
        "use `response_format` of /v1/chat/completions",
    ),
];

const MEMBERS: [&str; 12] = [
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

/// A request.
pub struct Request {
    pub ask: Ask,
    pub stream: bool,
}

pub fn read(mut fields: Fields) -> Result<Request, Error> {
    refuse(&mut fields, &REFUSED)?;
    // It names the client's own user to nobody else.
    ignore(&mut fields, &["metadata"]);
    let tiers = ["auto".into(), "standard_only".into()];
    refuse_other(&mut fields, "service_tier", &tiers, "there is one tier")?;

    let mut messages = Vec::new();
    if let Some(system) = fields.take("system") {
        let text = text("system", system, &["text"])?;
        messages.push(json!({"role": "system", "content": text}));
    }
    let said = fields.list("messages")?;
    let said = said.ok_or_else(|| fields.missing("messages", "a list of messages"))?;
    check_last(&said)?;
    for (index, message) in said.into_iter().enumerate() {
        add(
            Fields::of(format!("messages[{index}]"), message)?,
            &mut messages,
        )?;
    }
    let tools = tools(&mut fields)?;
    let arguments = thinking(&mut fields)?;
    let usual = Settings::default();
    let length = fields.integer("max_tokens", 1..=u32::MAX)?;
    let length = length.ok_or_else(|| fields.missing("max_tokens", "an integer from 1"))?;
    let settings = Settings {
        max_tokens: Some(length),
        stop: settings::stop(&mut fields, "stop_sequences")?,
        temperature: fields
            .number("temperature", &NOT_NEGATIVE)?
            .unwrap_or(usual.temperature),
        top_p: fields.number("top_p", &SHARE)?,
        top_k: fields.integer("top_k", 0..=u32::MAX)?,
        ..usual
    };
    let stream = fields.flag("stream")?;
    let model = fields.text("model")?;
    fields.refuse_unknown(&MEMBERS)?;
    Ok(Request {
        ask: Ask {
            model,
            chat: Chat {
                messages,
                ..Chat::default()
            },
            arguments,
            tools,
            format: Format::Text,
            settings,
            format_member: "",
        },
        stream,
    })
}

/// There is something to answer.
fn check_last(said: &[Value]) -> Result<(), Error> {
    match said.split_last() {
        None => {
            let text = "`messages` is empty; expected at least one message";
            Err(Error::bad_request("empty-prompt", text).about("messages"))
        }
        Some((last, before)) if last["role"] == "assistant" => {
            let why =
                "an answer is not begun by the client; expected the user's message as the last";
            Err(unsupported(&format!("messages[{}]", before.len()), why))
        }
        Some(_) => Ok(()),
    }
}

/// Adds a message, and before it the results of tools that it brings.
fn add(mut fields: Fields, messages: &mut Vec<Value>) -> Result<(), Error> {
    let role = fields.text("role")?;
    let content = fields.take("content");
    let content =
        content.ok_or_else(|| fields.missing("content", "a string or a list of blocks"))?;
    fields.refuse_unknown(&["role", "content"])?;
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
        Value::String(text) if text.is_empty() => return Err(silent(&path)),
        Value::String(text) => {
            messages.push(json!({"role": role, "content": text}));
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        other => return Err(wrong_type(&path, "a string or a list of blocks", &other)),
    };
    let (mut said, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
    let mut results = 0;
    for (index, block) in blocks.into_iter().enumerate() {
        let mut block = Fields::of(format!("{path}[{index}]"), block)?;
        // A mark for caches, which find what they have by themselves here.
        ignore(&mut block, &["cache_control", "citations"]);
        let kind = block.text("type")?;
        let known: &[&str] = match (role, kind.as_deref()) {
            (_, Some("text")) => {
                said += &needed(&mut block, "text")?;
                &["type", "text"]
            }
            ("user", Some("tool_result")) => {
                messages.push(result(&mut block)?);
                results += 1;
                &["type", "tool_use_id", "content", "is_error"]
            }
            ("assistant", Some("tool_use")) => {
                let (id, name) = (needed(&mut block, "id")?, needed(&mut block, "name")?);
                let input = block
                    .object("input")?
                    .map_or_else(|| json!({}), Fields::into_value);
                calls.push(call(Some(id), &name, input));
                &["type", "id", "name", "input"]
            }
            ("assistant", Some("thinking")) => {
                thought += &needed(&mut block, "thinking")?;
                // Nothing is signed here.
                block.text("signature")?;
                &["type", "thinking", "signature"]
            }
            _ => {
                let why = format!(
                    "blocks of the type {} are not known; known are {kinds}",
                    Value::from(kind)
                );
                return Err(unsupported(&block.path("type"), &why));
            }
        };
        block.refuse_unknown(known)?;
    }
    if said.is_empty() && calls.is_empty() {
        return match results {
            0 => Err(silent(&path)),
            _ => Ok(()),
        };
    }
    let mut message = Map::new();
    message.insert("role".to_owned(), role.into());
    let said = Some(said).filter(|said| !said.is_empty());
    message.insert("content".to_owned(), said.into());
    if !thought.is_empty() {
        message.insert("reasoning_content".to_owned(), thought.into());
    }
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), calls.into());
    }
    messages.push(message.into());
    Ok(())
}

/// The problem that a message says nothing, thoughts left aside.
fn silent(path: &str) -> Error {
    let text =
        format!("`{path}` says nothing; expected a text, or calls of tools or their results");
    Error::bad_request("empty-message", text).about(path)
}

fn needed(block: &mut Fields, name: &str) -> Result<String, Error> {
    let text = block.text(name)?;
    text.ok_or_else(|| block.missing(name, "a string"))
}

/// What a tool answered; that it failed stands before it, as templates have no other place for it.
fn result(block: &mut Fields) -> Result<Value, Error> {
    let id = needed(block, "tool_use_id")?;
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
                    "tools of the type {other:?} are not there; there are the client's own"
                );
                Err(unsupported(&tool.path("type"), &why))
            }
        }
    })?;
    let Some(mut choice) = fields.object("tool_choice")? else {
        return Tools::of(list, None, true);
    };
    let kind = choice.text("type")?;
    let parallel = !choice.flag("disable_parallel_tool_use")?;
    if kind.as_deref() != Some("tool") {
        refuse(&mut choice, &[("name", "without the type `tool`")])?;
    }
    let chosen = match kind.as_deref() {
        Some("auto") => Choice::Auto,
        Some("any") => Choice::Required,
        Some("none") => Choice::None,
        Some("tool") => Choice::Named(needed(&mut choice, "name")?),
        _ => {
            let expected = "auto, any, tool or none";
            return Err(out_of_range("tool_choice.type", &kind.into(), expected));
        }
    };
    choice.refuse_unknown(&["type", "name", "disable_parallel_tool_use"])?;
    Tools::of(list, Some(chosen), parallel)
}

/// What templates are told of whether to think.
fn thinking(fields: &mut Fields) -> Result<Arguments, Error> {
    let mut arguments = Arguments::default();
    if let Some(mut thinking) = fields.object("thinking")? {
        let kind = thinking.text("type")?;
        if kind.as_deref() != Some("disabled") {
            let why = "a model thinks as it was trained to, and no budget is held";
            return Err(unsupported("thinking", why));
        }
        thinking.refuse_unknown(&["type"])?;
        arguments.0.push(Argument {
            name: "enable_thinking".to_owned(),
            value: false.into(),
            member: "thinking".to_owned(),
        });
    }
    Ok(arguments)
}
