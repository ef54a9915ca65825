//! Answers, at once and as events.

use corral_sdk::{Error, Events, Response};
use serde_json::{Value, json};

use crate::asking::Usage;
use crate::error::Dialect;
use crate::identity::unique;
use crate::sse;
use crate::talk::{Answers, Finish, Part};

/// Waits for all of it.
pub async fn whole(mut answers: Answers, stops: Vec<String>) -> Result<Response, Error> {
    let mut blocks = Vec::new();
    let answer = answers.whole().await?.pop().unwrap_or_default();
    if !answer.reasoning.is_empty() {
        blocks.push(json!({"type": "thinking", "thinking": answer.reasoning, "signature": ""}));
    }
    if !answer.content.is_empty() {
        blocks.push(json!({"type": "text", "text": answer.content}));
    }
    for call in answer.calls {
        // One that was cut off is no JSON.
        let input = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
        blocks.push(json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input}));
    }
    let mut message = head(&answers);
    message["content"] = blocks.into();
    for (name, value) in end(&answers, answer.finish, &stops)? {
        message[name] = value;
    }
    message["usage"] = usage(answers.usage()?);
    Ok(Response::json(&message))
}

/// Tells it as it comes.
pub fn stream(answers: Answers, stops: Vec<String>) -> Response {
    sse::answer(Dialect::Anthropic, async move |events| {
        tell(answers, &stops, events).await
    })
}

async fn tell(mut answers: Answers, stops: &[String], events: &mut Events) -> Result<(), Error> {
    let mut message = head(&answers);
    message["usage"] = usage(Usage {
        prompt: answers.prompt_tokens(),
        ..Usage::default()
    });
    send(events, json!({"type": "message_start", "message": message})).await?;
    let (mut index, mut open) = (0_usize, None);
    let mut finish = None;
    while let Some(said) = answers.next().await? {
        for part in said.parts {
            let (kind, block, delta) = written(part, &answers);
            if let Some(block) = block
                && (open != Some(kind) || kind == "tool_use")
            {
                if open.is_some() {
                    send(
                        events,
                        json!({"type": "content_block_stop", "index": index}),
                    )
                    .await?;
                    index += 1;
                }
                open = Some(kind);
                let start =
                    json!({"type": "content_block_start", "index": index, "content_block": block});
                send(events, start).await?;
            }
            if let Some(delta) = delta {
                let delta = json!({"type": "content_block_delta", "index": index, "delta": delta});
                send(events, delta).await?;
            }
        }
        finish = said.finish.or(finish);
    }
    if open.is_some() {
        send(
            events,
            json!({"type": "content_block_stop", "index": index}),
        )
        .await?;
    }
    let delta: serde_json::Map<_, _> = end(&answers, finish, stops)?
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect();
    let usage = usage(answers.usage()?);
    send(
        events,
        json!({"type": "message_delta", "delta": delta, "usage": usage}),
    )
    .await?;
    send(events, json!({"type": "message_stop"})).await
}

/// A part's kind of block, the block if the part may begin one, and what it adds to it.
fn written(part: Part, answers: &Answers) -> (&'static str, Option<Value>, Option<Value>) {
    match part {
        Part::Reasoning(text) => (
            "thinking",
            Some(json!({"type": "thinking", "thinking": "", "signature": ""})),
            Some(json!({"type": "thinking_delta", "thinking": text})),
        ),
        Part::Content(text) => (
            "text",
            Some(json!({"type": "text", "text": ""})),
            Some(json!({"type": "text_delta", "text": text})),
        ),
        Part::Call(name) => (
            "tool_use",
            Some(
                json!({"type": "tool_use", "id": answers.name_for_call(), "name": name, "input": {}}),
            ),
            None,
        ),
        Part::Arguments(text) => (
            "tool_use",
            None,
            Some(json!({"type": "input_json_delta", "partial_json": text})),
        ),
    }
}

async fn send(events: &mut Events, event: Value) -> Result<(), Error> {
    let name = event["type"].as_str().unwrap_or_default().to_owned();
    events.named(&name, &event.to_string()).await
}

fn head(answers: &Answers) -> Value {
    json!({
        "id": unique("msg_"),
        "type": "message",
        "role": "assistant",
        "model": answers.model().name(),
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
        "usage": null,
    })
}

/// Why it ended.
fn end(
    answers: &Answers,
    finish: Option<Finish>,
    stops: &[String],
) -> Result<[(&'static str, Value); 2], Error> {
    let (reason, stop) = match finish {
        None => (None, None),
        Some(Finish::End) => (Some("end_turn"), None),
        Some(Finish::Length) => (Some("max_tokens"), None),
        Some(Finish::Calls) => (Some("tool_use"), None),
        Some(Finish::Stop) => (Some("stop_sequence"), answers.stopped_by(0, stops)?),
    };
    Ok([
        ("stop_reason", reason.into()),
        ("stop_sequence", stop.into()),
    ])
}

/// Here the tokens that did not need to be computed count apart.
fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.generated,
    })
}
