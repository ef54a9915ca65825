//! The request body of the Responses API.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, out_of_range};
use corral_sdk::template::Chat;
use serde_json::{Map, Value, json};

use super::input;
use super::items::ItemOptions;
use super::tool_names::{ToolNames, joined};
use crate::offered_tools::OfferedTools;
use crate::shared_fields::{
    STREAM_FIELDS, StreamOptions, ignore_without_effect, length, reject,
    reject_fields_of_other_servers, reject_other_values, schema_format, stream_options,
};
use conversation::generation::{Settings, settings};
use conversation::silently_ignored;
use conversation::tools::{ToolChoice, read_choice};
use conversation::{ChatRequest, Format, TemplateKwargs, Tools};
use conversation::{unsupported, without_effect};

/// Fields of the API that are not supported, with the reason.
const UNSUPPORTED: [(&str, &str); 6] = [
    ("previous_response_id", NOT_STORED),
    ("conversation", NOT_STORED),
    ("prompt", "prompts are not stored"),
    ("n", "a request has one answer"),
    ("max_tokens", "use `max_output_tokens`"),
    ("messages", "use `input`"),
];

/// Fields that have no effect, with the reason.
const WITHOUT_EFFECT: [(&str, &str); 2] = [
    (
        "context_management",
        "the client drops or compacts messages",
    ),
    (
        "max_tool_calls",
        "the client calls the tools and can count them",
    ),
];

/// The values of `include` that have an effect.
const LOGPROBS: &str = "message.output_text.logprobs";
const ENCRYPTED_REASONING: &str = "reasoning.encrypted_content";

const NOT_STORED: &str = "responses are not stored; send the whole conversation as `input`";

const FIELDS: [&str; 13] = [
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
    "store",
    "truncation",
];

/// A Responses API request.
pub struct ResponsesRequest {
    pub chat: ChatRequest,
    /// Fields of the request that the response repeats.
    pub repeated: Map<String, Value>,
    pub items: ItemOptions,
    /// `None` if not streamed.
    pub stream: Option<StreamOptions>,
}

/// Reads the request, whose input begins with this many items of the stored conversation.
pub fn read(mut fields: Fields, earlier: usize) -> Result<ResponsesRequest, Error> {
    let mut repeated = Map::new();
    reject(&mut fields, &UNSUPPORTED)?;
    for name in ["tools", "tool_choice", "metadata"] {
        if let Some(value) = fields.peek(name) {
            repeated.insert(name.to_owned(), value.clone());
        }
    }
    silently_ignored::drop(&mut fields, &silently_ignored::OF_REQUEST);
    let allowed = [false.into()];
    reject_other_values(
        &mut fields,
        "background",
        &allowed,
        "responses are not stored",
    )?;
    let truncation = fields.text("truncation")?;
    match truncation.as_deref() {
        None | Some("disabled") => {}
        Some("auto") => without_effect("truncation", "messages are never dropped")?,
        Some(_) => {
            return Err(out_of_range(
                "truncation",
                &truncation.into(),
                "auto or disabled",
            ));
        }
    }
    ignore_without_effect(&mut fields, &WITHOUT_EFFECT)?;

    let instructions = fields.text("instructions")?;
    let input = fields.required("input", "a string or a list of items")?;
    let mut names = ToolNames::default();
    let mut tools = tools(&mut fields, &mut names)?;
    let mut messages = input::read(input, earlier, &mut tools, &mut names)?;
    let (format, format_value) = text(&mut fields)?;
    let effort = reasoning(&mut fields)?;
    let template_kwargs = TemplateKwargs::read(&mut fields, effort.as_deref(), "reasoning.effort")?;
    let mut settings = Settings::read(&mut fields)?;
    let included = included(&mut fields)?;
    settings.logprobs = logprobs(&mut fields, &included)?;
    settings.max_tokens = length(&mut fields, &["max_output_tokens"], 1)?.flatten();
    // Streams of this API always end with the usage.
    let stream = stream_options(&mut fields)?;
    let model = fields.text("model")?;
    reject_fields_of_other_servers(&mut fields)?;
    fields.ignore_unknown(&[&FIELDS[..], &settings::FIELDS, &STREAM_FIELDS].concat())?;

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
            prefill: None,
            messages_field: "input",
            format_field: "text.format",
        },
        repeated,
        items: ItemOptions {
            names,
            encodes_reasoning: includes(&included, ENCRYPTED_REASONING),
        },
        stream,
    })
}

/// Reads `include`. The response names values that ask for output that there is not, such as results of tools that
/// servers run.
fn included(fields: &mut Fields) -> Result<Vec<String>, Error> {
    let included = fields.text_list("include")?.unwrap_or_default();
    for other in &included {
        if ![LOGPROBS, ENCRYPTED_REASONING].contains(&other.as_str()) {
            without_effect(&format!("include.{other}"), "there is no such output")?;
        }
    }
    Ok(included)
}

/// Whether `include` asks for this output.
fn includes(included: &[String], output: &str) -> bool {
    included.iter().any(|included| included == output)
}

fn logprobs(fields: &mut Fields, included: &[String]) -> Result<Option<u8>, Error> {
    let top = fields.integer("top_logprobs", 0..=settings::LOGPROBS_LIMIT)?;
    if includes(included, LOGPROBS) {
        return Ok(Some(top.unwrap_or(0)));
    }
    if top > Some(0) {
        without_effect(
            "top_logprobs",
            "it requires `message.output_text.logprobs` in `include`",
        )?;
    }
    Ok(None)
}

fn tools(fields: &mut Fields, names: &mut ToolNames) -> Result<Tools, Error> {
    let offered = OfferedTools::read(fields, |tool, own| names.read(tool, own))?;
    let choice = choice(fields, &offered)?;
    let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    offered.choose(choice, parallel)
}

/// Reads `tool_choice`. Custom tools are functions here.
fn choice(fields: &mut Fields, offered: &OfferedTools) -> Result<Option<ToolChoice>, Error> {
    let Some(mut value) = fields.take("tool_choice") else {
        return Ok(None);
    };
    match value["type"].as_str() {
        Some("custom") => value["type"] = "function".into(),
        Some(kind) if kind != "function" && offered.leaves_out(kind) => {
            let why = format!("no tool of the type {kind:?} runs here");
            return Err(unsupported("tool_choice", &why));
        }
        _ => {}
    }
    if let Some(namespace) = value["namespace"].as_str() {
        let name = joined(namespace, value["name"].as_str().unwrap_or_default());
        value = json!({"type": "function", "name": name});
    }
    read_choice(Some(value), false)
}

/// Reads the output format, and its form for the response.
fn text(fields: &mut Fields) -> Result<(Format, Value), Error> {
    let plain = (Format::Text, json!({"type": "text"}));
    let Some(mut text) = fields.object("text")? else {
        return Ok(plain);
    };
    ignore_without_effect(&mut text, &[("verbosity", "models have no such setting")])?;
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
    // Reasoning is shown whole, so clients need no summary.
    for name in ["summary", "generate_summary", "context"] {
        reasoning.take(name);
    }
    let effort = reasoning.text("effort")?;
    reasoning.ignore_unknown(&["effort"])?;
    Ok(effort)
}
