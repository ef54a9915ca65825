//! `/api/chat`.

use std::time::Instant;

use corral_sdk::fields::Fields;
use corral_sdk::template::Chat;
use corral_sdk::{Error, EventWriter, Model, Response};
use serde_json::{Map, Value, json};

use conversation::generation::LogprobEntry;
use conversation::tools::Tool;
use conversation::{AnswerStream, ChatRequest, OutputPart, Tools};

use crate::answer::{self, Frame, with_logprobs};
use crate::options::{SharedMembers, reasoning_variables};
use crate::{messages, models};

pub async fn respond(mut fields: Fields) -> Result<Response, Error> {
    let start = Instant::now();
    let shared = SharedMembers::read(&mut fields)?;
    let messages = messages::read(fields.list("messages")?.unwrap_or_default())?;
    let tools = Tools::new(Tools::list(&mut fields, tool)?, None, true)?;
    fields.ignore_unknown(&[])?;
    let model = Model::open(&models::resolve(&shared.name)?).await?;
    let frame = Frame::new(shared.name, start);
    if messages.is_empty() {
        return Ok(frame.loaded(json!({"message": {"role": "assistant", "content": ""}})));
    }
    let template_kwargs = reasoning_variables(shared.think.as_ref(), model.name(), &model)?;
    let request = ChatRequest {
        model: Some(model.name().to_owned()),
        chat: Chat {
            messages,
            ..Chat::default()
        },
        template_kwargs,
        tools,
        format: shared.format,
        settings: shared.settings,
        prefill: None,
        messages_field: "messages",
        format_field: "format",
    };
    let answers = request.start().await?;
    match shared.stream {
        true => Ok(answer::lines(async move |lines| {
            stream(answers, &frame, lines).await
        })),
        false => whole(answers, &frame).await,
    }
}

/// Reads a tool, without fields that the API does not define.
fn tool(mut tool: Fields) -> Result<Tool, Error> {
    let mut function = tool.required_object("function")?;
    let path = function.path("");
    let mut known = Map::new();
    for name in ["name", "description", "parameters"] {
        if let Some(value) = function.take(name) {
            known.insert(name.to_owned(), value);
        }
    }
    let path = path.trim_end_matches('.').to_owned();
    Tool::read(Fields::at(path, known.into())?, "parameters")
}

async fn whole(mut answers: AnswerStream, frame: &Frame) -> Result<Response, Error> {
    let collected = answers.collect().await?;
    let found = collected.into_iter().next().unwrap_or_default();
    let mut message = json!({"role": "assistant", "content": found.content});
    if !found.reasoning.is_empty() {
        message["thinking"] = found.reasoning.into();
    }
    let calls = found.calls.iter();
    let calls: Vec<_> = calls
        .filter_map(|one| call(&one.name, &one.arguments))
        .collect();
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    let last = frame.last(json!({"message": message}), &answers.outcome(0)?);
    Ok(Response::json(&with_logprobs(last, &found.logprobs)))
}

async fn stream(
    mut answers: AnswerStream,
    frame: &Frame,
    lines: &mut EventWriter,
) -> Result<(), Error> {
    // The API has no parts of calls: a call is sent when it is complete.
    let mut pending: Option<(String, String)> = None;
    // Those of the next line.
    let mut logprobs = Vec::new();
    while let Some(delta) = answers.next().await? {
        logprobs.extend(delta.logprobs);
        for part in delta.parts {
            let ended = match (&part, &mut pending) {
                (OutputPart::Arguments(text), Some((_, arguments))) => {
                    arguments.push_str(text);
                    None
                }
                (_, pending) => pending.take(),
            };
            if let Some((name, arguments)) = ended {
                send_call(&name, &arguments, &mut logprobs, frame, lines).await?;
            }
            let message = match part {
                OutputPart::Content(text) => json!({"role": "assistant", "content": text}),
                OutputPart::Reasoning(text) => {
                    json!({"role": "assistant", "content": "", "thinking": text})
                }
                OutputPart::ToolCall(name) => {
                    pending = Some((name, String::new()));
                    continue;
                }
                OutputPart::Arguments(_) => continue,
            };
            let line = frame.object(json!({"message": message}), false);
            lines.json_line(&with_logprobs(line, &logprobs)).await?;
            logprobs.clear();
        }
    }
    if let Some((name, arguments)) = pending {
        send_call(&name, &arguments, &mut logprobs, frame, lines).await?;
    }
    let message = json!({"role": "assistant", "content": ""});
    let last = frame.last(json!({"message": message}), &answers.outcome(0)?);
    lines.json_line(&with_logprobs(last, &logprobs)).await
}

async fn send_call(
    name: &str,
    arguments: &str,
    logprobs: &mut Vec<LogprobEntry>,
    frame: &Frame,
    lines: &mut EventWriter,
) -> Result<(), Error> {
    let Some(call) = call(name, arguments) else {
        return Ok(());
    };
    let calls = [call];
    let message = json!({"role": "assistant", "content": "", "tool_calls": calls});
    let line = frame.object(json!({"message": message}), false);
    lines.json_line(&with_logprobs(line, logprobs)).await?;
    logprobs.clear();
    Ok(())
}

/// A call, whose arguments are an object here, not text. `None` if they are none: the length limit cut them
/// off, and clients cannot read another value.
fn call(name: &str, arguments: &str) -> Option<Value> {
    let arguments = conversation::message::parse_arguments(arguments);
    let function = json!({"name": name, "arguments": arguments});
    arguments.is_object().then(|| json!({"function": function}))
}
