//! The body of a request.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, out_of_range};
use corral_sdk::template::Chat;
use serde_json::{Map, Value, json};

use super::input;
use crate::asking::{Settings, settings};
use crate::chat::request::{for_the_operator, refuse, refuse_other, schema_format};
use crate::error::unsupported;
use crate::talk::tools::{Tool, read_choice};
use crate::talk::{Arguments, Ask, Format, Tools};

/// Members of the API that can't be honoured, and why.
const REFUSED: [(&str, &str); 10] = [
    ("previous_response_id", KEPT),
    ("conversation", KEPT),
    ("prompt", "no prompts are kept here"),
    ("context_management", KEPT),
    (
        "max_tool_calls",
        "tools are called by the client, who can count",
    ),
    (
        "top_logprobs",
        "probabilities are told by /v1/chat/completions",
    ),
    ("n", "there is one answer"),
    ("stop", "the API has none; /v1/chat/completions has"),
    ("max_tokens", "it is called `max_output_tokens` here"),
    ("messages", "they are called `input` here"),
];

const KEPT: &str = "nothing is kept of answers; send the whole conversation as `input`";

const MEMBERS: [&str; 14] = [
    "model",
    "input",
    "instructions",
    "max_output_tokens",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "text",
    "reasoning",
    "chat_template_kwargs",
    "metadata",
    "stream",
    "store",
    "truncation",
];

/// A request.
pub struct Request {
    pub ask: Ask,
    /// What of the request is shown in the answer.
    pub shown: Map<String, Value>,
    pub stream: bool,
}

pub fn read(mut fields: Fields) -> Result<Request, Error> {
    let mut shown = Map::new();
    refuse(&mut fields, &REFUSED)?;
    for name in ["tools", "tool_choice", "metadata"] {
        if let Some(value) = fields.peek(name) {
            shown.insert(name.to_owned(), value.clone());
        }
    }
    for_the_operator(&mut fields)?;
    let kept = "nothing is kept of answers";
    refuse_other(&mut fields, "background", &[false.into()], kept)?;
    refuse_other(
        &mut fields,
        "truncation",
        &["disabled".into()],
        "no message is left out",
    )?;
    refuse_other(
        &mut fields,
        "include",
        &[json!([])],
        "there is nothing more to tell",
    )?;
    let plain = json!({"include_obfuscation": false});
    refuse_other(
        &mut fields,
        "stream_options",
        &[json!({}), plain],
        "events are not padded",
    )?;

    let instructions = fields.text("instructions")?;
    let input = fields.take("input");
    let input = input.ok_or_else(|| fields.missing("input", "a string or a list of items"))?;
    let tools = tools(&mut fields)?;
    let (format, format_shown) = text(&mut fields)?;
    let effort = reasoning(&mut fields)?;
    let arguments = Arguments::read(&mut fields, effort.as_deref(), "reasoning.effort")?;
    let mut settings = Settings::read(&mut fields)?;
    settings.max_tokens = fields.integer("max_output_tokens", 1..=u32::MAX)?;
    let stream = fields.flag("stream")?;
    let model = fields.text("model")?;
    fields.refuse_unknown(&[&MEMBERS[..], &settings::MEMBERS].concat())?;

    for (name, value) in [
        ("instructions", json!(instructions)),
        ("max_output_tokens", json!(settings.max_tokens)),
        ("parallel_tool_calls", tools.parallel.into()),
        ("reasoning", json!({"effort": effort, "summary": null})),
        ("temperature", settings.temperature.into()),
        ("text", json!({"format": format_shown})),
        ("top_p", settings.top_p.unwrap_or(1.0).into()),
    ] {
        shown.insert(name.to_owned(), value);
    }
    let mut messages = input::read(input)?;
    if let Some(text) = instructions {
        messages.insert(0, json!({"role": "developer", "content": text}));
    }
    Ok(Request {
        ask: Ask {
            model,
            chat: Chat {
                messages,
                ..Chat::default()
            },
            arguments,
            tools,
            format,
            settings,
            format_member: "text.format",
        },
        shown,
        stream,
    })
}

fn tools(fields: &mut Fields) -> Result<Tools, Error> {
    let list = Tools::list(fields, |mut tool| {
        let kind = tool.text("type")?;
        if kind.as_deref() == Some("function") {
            return Tool::read(tool, "parameters");
        }
        let why = format!(
            "tools of the type {} are not there; there are functions",
            Value::from(kind)
        );
        Err(unsupported(&tool.path("type"), &why))
    })?;
    let choice = read_choice(fields.take("tool_choice"), false)?;
    let parallel = fields.choice("parallel_tool_calls")?.unwrap_or(true);
    Tools::of(list, choice, parallel)
}

/// What the content looks like, and how the client said so.
fn text(fields: &mut Fields) -> Result<(Format, Value), Error> {
    let plain = (Format::Text, json!({"type": "text"}));
    let Some(mut text) = fields.object("text")? else {
        return Ok(plain);
    };
    if text.take("verbosity").is_some() {
        return Err(unsupported(
            "text.verbosity",
            "models here have no such setting",
        ));
    }
    let shown = text.peek("format").cloned();
    let format = text.object("format")?;
    text.refuse_unknown(&["format"])?;
    let (Some(mut format), Some(shown)) = (format, shown) else {
        return Ok(plain);
    };
    let kind = format.text("type")?;
    let read = match kind.as_deref() {
        Some("text") => Format::Text,
        Some("json_object") => Format::JsonObject,
        Some("json_schema") => return Ok((schema_format(format)?, shown)),
        _ => {
            let expected = "text, json_object or json_schema";
            return Err(out_of_range("text.format.type", &kind.into(), expected));
        }
    };
    format.refuse_unknown(&["type"])?;
    Ok((read, shown))
}

fn reasoning(fields: &mut Fields) -> Result<Option<String>, Error> {
    let Some(mut reasoning) = fields.object("reasoning")? else {
        return Ok(None);
    };
    for member in ["summary", "generate_summary"] {
        if reasoning.take(member).is_some() {
            let why = "thoughts are told as they are";
            return Err(unsupported(&reasoning.path(member), why));
        }
    }
    let effort = reasoning.text("effort")?;
    reasoning.refuse_unknown(&["effort"])?;
    Ok(effort)
}
