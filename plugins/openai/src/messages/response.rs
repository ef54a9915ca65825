//! Responses of the Messages API, whole and streamed.

use corral_sdk::{Error, EventWriter, Response};
use serde_json::{Value, json};

use crate::error::ApiFormat;
use crate::sse;
use conversation::generation::Usage;
use conversation::ids::unique_id;
use conversation::{AnswerStream, FinishReason, OutputPart};

/// The signature of reasoning, which signs nothing: clients do not send back reasoning without one.
const SIGNATURE: &str = "corral";

/// Waits for the end and builds the response.
pub async fn respond(mut answers: AnswerStream, stops: Vec<String>) -> Result<Response, Error> {
    let mut blocks = Vec::new();
    let answer = answers.collect().await?.pop().unwrap_or_default();
    if !answer.reasoning.is_empty() {
        blocks.push(json!({
            "type": "thinking",
            "thinking": answer.reasoning,
            "signature": SIGNATURE,
        }));
    }
    if !answer.content.is_empty() {
        blocks.push(json!({"type": "text", "text": answer.content}));
    }
    for call in answer.calls {
        // The arguments of a call that was cut off are not JSON.
        let input = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
        blocks.push(json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input}));
    }
    let mut message = empty_message(&answers);
    message["content"] = blocks.into();
    let (reason, stop) = stop_fields(&answers, answer.finish, &stops)?;
    message["stop_reason"] = reason.into();
    message["stop_sequence"] = stop.into();
    message["usage"] = usage(answers.usage()?);
    Ok(Response::json(&message))
}

/// Streams the events.
pub fn stream(answers: AnswerStream, stops: Vec<String>) -> Response {
    sse::events(ApiFormat::Anthropic, async move |events| {
        write(answers, &stops, events).await
    })
}

async fn write(
    mut answers: AnswerStream,
    stops: &[String],
    events: &mut EventWriter,
) -> Result<(), Error> {
    let mut message = empty_message(&answers);
    message["usage"] = usage(Usage {
        prompt: answers.prompt_tokens(),
        ..Usage::default()
    });
    send(events, json!({"type": "message_start", "message": message})).await?;
    let (mut index, mut open) = (0_usize, None);
    let mut finish = None;
    while let Some(delta) = answers.next().await? {
        for part in delta.parts {
            let (kind, block, content_delta) = block_event(part, &answers);
            if let Some(block) = block
                && (open != Some(kind) || kind == "tool_use")
            {
                if let Some(open) = open {
                    close(open, index, events).await?;
                    index += 1;
                }
                open = Some(kind);
                let start =
                    json!({"type": "content_block_start", "index": index, "content_block": block});
                send(events, start).await?;
            }
            if let Some(delta) = content_delta {
                let delta = json!({"type": "content_block_delta", "index": index, "delta": delta});
                send(events, delta).await?;
            }
        }
        finish = delta.finish.or(finish);
    }
    if let Some(open) = open {
        close(open, index, events).await?;
    }
    let (reason, stop) = stop_fields(&answers, finish, stops)?;
    let delta = json!({"stop_reason": reason, "stop_sequence": stop});
    let usage = usage(answers.usage()?);
    send(
        events,
        json!({"type": "message_delta", "delta": delta, "usage": usage}),
    )
    .await?;
    send(events, json!({"type": "message_stop"})).await
}

/// The type of the part's content block, the block that the part may start, and the delta.
fn block_event(
    part: OutputPart,
    answers: &AnswerStream,
) -> (&'static str, Option<Value>, Option<Value>) {
    match part {
        OutputPart::Reasoning(text) => (
            "thinking",
            Some(json!({"type": "thinking", "thinking": "", "signature": ""})),
            Some(json!({"type": "thinking_delta", "thinking": text})),
        ),
        OutputPart::Content(text) => (
            "text",
            Some(json!({"type": "text", "text": ""})),
            Some(json!({"type": "text_delta", "text": text})),
        ),
        OutputPart::ToolCall(name) => (
            "tool_use",
            Some(
                json!({"type": "tool_use", "id": answers.new_call_id(), "name": name, "input": {}}),
            ),
            None,
        ),
        OutputPart::Arguments(text) => (
            "tool_use",
            None,
            Some(json!({"type": "input_json_delta", "partial_json": text})),
        ),
    }
}

/// Ends a block of this type. The signature of reasoning comes last.
async fn close(kind: &str, index: usize, events: &mut EventWriter) -> Result<(), Error> {
    if kind == "thinking" {
        let delta = json!({"type": "signature_delta", "signature": SIGNATURE});
        let delta = json!({"type": "content_block_delta", "index": index, "delta": delta});
        send(events, delta).await?;
    }
    let stop = json!({"type": "content_block_stop", "index": index});
    send(events, stop).await
}

async fn send(events: &mut EventWriter, event: Value) -> Result<(), Error> {
    let name = event["type"].as_str().unwrap_or_default().to_owned();
    events.named(&name, &event.to_string()).await
}

fn empty_message(answers: &AnswerStream) -> Value {
    json!({
        "id": unique_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": answers.model().name(),
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
        "usage": null,
    })
}

/// The stop reason and stop sequence.
fn stop_fields<'a>(
    answers: &AnswerStream,
    finish: Option<FinishReason>,
    stops: &'a [String],
) -> Result<(Option<&'static str>, Option<&'a str>), Error> {
    Ok(match finish {
        None => (None, None),
        Some(FinishReason::End) => (Some("end_turn"), None),
        Some(FinishReason::Length) => (Some("max_tokens"), None),
        Some(FinishReason::ToolCalls) => (Some("tool_use"), None),
        Some(FinishReason::Stop) => (Some("stop_sequence"), answers.stopped_by(0, stops)?),
    })
}

/// Cached tokens are counted separately in this API.
fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.generated,
    })
}
