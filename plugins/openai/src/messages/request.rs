//! The request body of the Messages API.

use corral_sdk::Error;
use corral_sdk::fields::{Fields, NON_NEGATIVE, ZERO_TO_ONE, ignored, out_of_range};
use corral_sdk::template::Chat;
use serde_json::{Value, json};

use super::conversation::Conversation;
use crate::offered_tools::OfferedTools;
use crate::shared_fields::{
    ignore_without_effect, length, reject, reject_fields_of_other_servers, schema_format,
};
use conversation::generation::Settings;
use conversation::generation::settings::top_k;
use conversation::tools::{Tool, ToolChoice};
use conversation::{ChatRequest, Format, TemplateKwargs, Tools};
use conversation::{check_unconstrained, message, silently_ignored};

/// Fields of the API that have no effect, with the reason.
const WITHOUT_EFFECT: [(&str, &str); 4] = [
    ("context_management", "messages are never dropped"),
    ("inference_geo", "there is one place"),
    ("speed", "there is one speed"),
    ("betas", "features are fields of the request"),
];

/// The first words of a block that Claude Code sends before the system prompt. It is for the operator of
/// the usual server, and its text differs from conversation to conversation, so it would keep them from
/// sharing a cached prefix.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

const FIELDS: [&str; 14] = [
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
    "output_config",
    "output_format",
    "stream",
];

/// A Messages API request.
pub struct MessagesRequest {
    pub chat: ChatRequest,
    pub stream: bool,
}

/// Reads a request. A request that only counts tokens needs no `max_tokens`.
pub fn read(mut fields: Fields, generates: bool) -> Result<MessagesRequest, Error> {
    if fields.peek("mcp_servers") != Some(&json!([])) {
        reject(
            &mut fields,
            &[("mcp_servers", "the client calls the tools")],
        )?;
    }
    fields.take("mcp_servers");
    reject(&mut fields, &[("container", "code is not executed")])?;
    silently_ignored::drop(&mut fields, &silently_ignored::OF_REQUEST);
    ignore_without_effect(&mut fields, &WITHOUT_EFFECT)?;

    let tools = tools(&mut fields)?;
    let mut conversation = Conversation::new(&tools);
    if let Some(text) = system(&mut fields)? {
        conversation.push("system", text);
    }
    let list = fields.required_list("messages", "a list of messages")?;
    if list.is_empty() {
        let text = "`messages` is empty; expected at least one message";
        return Err(Error::bad_request("empty-prompt", text).with_field("messages"));
    }
    for (index, message) in list.into_iter().enumerate() {
        conversation.add(Fields::at(format!("messages[{index}]"), message)?)?;
    }
    let mut template_kwargs = TemplateKwargs::default();
    template_kwargs.read_thinking(&mut fields)?;
    let format = output(&mut fields, &mut template_kwargs)?;
    let (messages, prefill) = conversation.end();
    if prefill.is_some() {
        check_unconstrained(&format, &tools, "messages")?;
    }

    let defaults = Settings::default();
    let max_tokens = length(&mut fields, &["max_tokens"], 1)?;
    if max_tokens.is_none() && generates {
        return Err(fields.missing("max_tokens", "an integer from 1"));
    }
    let settings = Settings {
        max_tokens: max_tokens.flatten(),
        stop: fields.stop_strings("stop_sequences")?,
        temperature: fields
            .number("temperature", &NON_NEGATIVE)?
            .unwrap_or(defaults.temperature),
        top_p: fields.number("top_p", &ZERO_TO_ONE)?,
        top_k: top_k(&mut fields)?,
        ..defaults
    };
    let stream = fields.flag("stream")?;
    let model = fields.text("model")?;
    reject_fields_of_other_servers(&mut fields)?;
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
            format,
            settings,
            prefill,
            messages_field: "messages",
            format_field: "output_config.format",
        },
        stream,
    })
}

/// Reads the system prompt without the billing header.
fn system(fields: &mut Fields) -> Result<Option<String>, Error> {
    let Some(mut system) = fields.take("system") else {
        return Ok(None);
    };
    if let Value::Array(blocks) = &mut system {
        let is_header = |block: &Value| {
            let text = block["text"].as_str();
            text.is_some_and(|text| {
                text.starts_with(BILLING_HEADER) && !text.trim_end().contains('\n')
            })
        };
        let count = blocks.len();
        blocks.retain(|block| !is_header(block));
        if blocks.len() < count {
            ignored::add("system[].x-anthropic-billing-header");
        }
    }
    let mut text = message::text("system", system, &["text"])?;
    if text.starts_with(BILLING_HEADER) {
        let end = text.find('\n').map_or(text.len(), |end| end + 1);
        text.drain(..end);
        ignored::add("system.x-anthropic-billing-header");
    }
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// Reads the effort, and the format of the answer.
fn output(fields: &mut Fields, template_kwargs: &mut TemplateKwargs) -> Result<Format, Error> {
    let mut format = fields.object("output_format")?;
    if let Some(mut config) = fields.object("output_config")? {
        if let Some(effort) = config.text("effort")? {
            template_kwargs.add("reasoning_effort", effort.into(), "output_config.effort")?;
        }
        format = config.object("format")?.or(format);
        config.ignore_unknown(&["effort", "format"])?;
    }
    let Some(mut format) = format else {
        return Ok(Format::Text);
    };
    match format.text("type")?.as_deref() {
        Some("json_schema") => schema_format(format),
        other => {
            let path = format.path("type");
            Err(out_of_range(&path, &other.into(), "json_schema"))
        }
    }
}

fn tools(fields: &mut Fields) -> Result<Tools, Error> {
    let mut offered = OfferedTools::read(fields, |mut tool, own| {
        match tool.text("type")?.as_deref() {
            None | Some("custom") => {
                let deferred = tool.flag("defer_loading")?;
                tool.take("allowed_callers");
                own.push(Tool {
                    deferred,
                    ..Tool::read(tool, "input_schema")?
                });
                Ok(None)
            }
            Some(other) => Ok(Some(other.to_owned())),
        }
    })?;
    // Deferred tools reach the prompt with the result of the client's search. Without one, they are in the list.
    let all = offered.own.iter().all(|tool| tool.deferred);
    if all || offered.leaves_out("tool_search_tool") {
        for tool in &mut offered.own {
            tool.deferred = false;
        }
    }
    let Some(mut choice) = fields.object("tool_choice")? else {
        return offered.choose(None, true);
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
    offered.choose(Some(chosen), parallel)
}
