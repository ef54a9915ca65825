//! The request body of the Responses API.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, out_of_range};
use corral_sdk::template::Chat;
use serde_json::{Map, Value, json};

use super::input;
use crate::shared_fields::{reject, reject_other_values, schema_format};
use conversation::generation::{Settings, settings};
use conversation::hints;
use conversation::tools::{Tool, read_choice};
use conversation::unsupported;
use conversation::{ChatRequest, Format, TemplateKwargs, Tools};

/// Fields of the API that are not supported, with the reason.
const UNSUPPORTED: [(&str, &str); 10] = [
    ("previous_response_id", NOT_STORED),
    ("conversation", NOT_STORED),
    ("prompt", "prompts are not stored"),
    ("context_management", NOT_STORED),
    (
        "max_tool_calls",
        "the client calls the tools and can count them",
    ),
    (
        "top_logprobs",
        "use /v1/chat/completions for log probabilities",
    ),
    ("n", "a request has one answer"),
    (
        "stop",
        "the API has no stop strings; use /v1/chat/completions",
    ),
    ("max_tokens", "use `max_output_tokens`"),
    ("messages", "use `input`"),
];

const NOT_STORED: &str = "responses are not stored; send the whole conversation as `input`";

const FIELDS: [&str; 14] = [
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

/// A Responses API request.
pub struct ResponsesRequest {
    pub chat: ChatRequest,
    /// Fields of the request that the response repeats.
    pub repeated: Map<String, Value>,
    pub stream: bool,
}

pub fn read(mut fields: Fields) -> Result<ResponsesRequest, Error> {
    let mut repeated = Map::new();
    reject(&mut fields, &UNSUPPORTED)?;
    for name in ["tools", "tool_choice", "metadata"] {
        if let Some(value) = fields.peek(name) {
            repeated.insert(name.to_owned(), value.clone());
        }
    }
    hints::drop(&mut fields, &hints::OF_REQUEST);
    let plain = json!({"include_obfuscation": false});
    for (name, allowed, why) in [
        (
            "background",
            &[false.into()][..],
            "responses are not stored",
        ),
        (
            "truncation",
            &["disabled".into()],
            "messages are never dropped",
        ),
        ("include", &[json!([])], "there is no further output"),
        (
            "stream_options",
            &[json!({}), plain],
            "events are not padded",
        ),
    ] {
        reject_other_values(&mut fields, name, allowed, why)?;
    }

    let instructions = fields.text("instructions")?;
    let input = fields.required("input", "a string or a list of items")?;
    let tools = tools(&mut fields)?;
    let (format, format_value) = text(&mut fields)?;
    let effort = reasoning(&mut fields)?;
    let template_kwargs = TemplateKwargs::read(&mut fields, effort.as_deref(), "reasoning.effort")?;
    let mut settings = Settings::read(&mut fields)?;
    settings.max_tokens = fields.integer("max_output_tokens", 1..=u32::MAX)?;
    let stream = fields.flag("stream")?;
    let model = fields.text("model")?;
    fields.ignore_unknown(&[&FIELDS[..], &settings::FIELDS].concat())?;

    for (name, value) in [
        ("instructions", json!(instructions)),
        ("max_output_tokens", json!(settings.max_tokens)),
        ("parallel_tool_calls", tools.parallel.into()),
        ("reasoning", json!({"effort": effort, "summary": null})),
        ("temperature", settings.temperature.into()),
        ("text", json!({"format": format_value})),
        ("top_p", settings.top_p.unwrap_or(1.0).into()),
    ] {
        repeated.insert(name.to_owned(), value);
    }
    let mut messages = input::read(input)?;
    if let Some(text) = instructions {
        messages.insert(0, json!({"role": "developer", "content": text}));
    }
    Ok(ResponsesRequest {
        chat: ChatRequest {
            model,
            chat: Chat {
                messages,
                ..Chat::default()
            },
            template_kwargs,
            tools,
            format,
            settings,
            messages_field: "input",
            continue_final: false,
            format_field: "text.format",
        },
        repeated,
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
            "tools of the type {} are not available; expected function",
            Value::from(kind)
        );
        Err(unsupported(&tool.path("type"), &why))
    })?;
    let choice = read_choice(fields.take("tool_choice"), false)?;
    let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    Tools::new(list, choice, parallel)
}

/// Reads the output format, and its form for the response.
fn text(fields: &mut Fields) -> Result<(Format, Value), Error> {
    let plain = (Format::Text, json!({"type": "text"}));
    let Some(mut text) = fields.object("text")? else {
        return Ok(plain);
    };
    if text.take("verbosity").is_some() {
        return Err(unsupported("text.verbosity", "models have no such setting"));
    }
    let value = text.peek("format").cloned();
    let format = text.object("format")?;
    text.ignore_unknown(&["format"])?;
    let (Some(mut format), Some(value)) = (format, value) else {
        return Ok(plain);
    };
    let kind = format.text("type")?;
    let read = match kind.as_deref() {
        Some("text") => Format::Text,
        Some("json_object") => Format::JsonObject,
        Some("json_schema") => return Ok((schema_format(format)?, value)),
        _ => {
            let expected = "text, json_object or json_schema";
            return Err(out_of_range("text.format.type", &kind.into(), expected));
        }
    };
    format.ignore_unknown(&["type"])?;
    Ok((read, value))
}

fn reasoning(fields: &mut Fields) -> Result<Option<String>, Error> {
    let Some(mut reasoning) = fields.object("reasoning")? else {
        return Ok(None);
    };
    for name in ["summary", "generate_summary"] {
        if reasoning.take(name).is_some() {
            let why = "reasoning is not summarized";
            return Err(unsupported(&reasoning.path(name), why));
        }
    }
    let effort = reasoning.text("effort")?;
    reasoning.ignore_unknown(&["effort"])?;
    Ok(effort)
}
