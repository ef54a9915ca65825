//! The events of a streamed completion.

use corral_sdk::http::EventFormat;
use corral_sdk::{Error, EventWriter, Outcome, Response};
use serde_json::{Value, json};

use super::response::Format;
use crate::chat::DONE;
use crate::error::ApiFormat;
use crate::generation::Choices;
use crate::ids::{now, unique_id};
use crate::sse;

pub fn respond(mut choices: Choices, format: Format, usage: bool) -> Response {
    let mut chunk = json!({
        "id": unique_id("cmpl-"),
        "object": "text_completion",
        "created": now(),
        "model": choices.model().name(),
        "choices": [],
    });
    if usage {
        chunk["usage"] = Value::Null;
    }
    if format.echo.is_empty()
        && let Some(generation) = choices.take_generation()
    {
        let events = EventFormat::json(|text| {
            let mut event = chunk.clone();
            event["choices"] = json!([format.choice(0, text, &[], &[], None)]);
            event
        });
        return sse::text_events(
            ApiFormat::OpenAi,
            generation,
            events,
            async move |outcome, events| end(outcome?, choices, format, chunk, usage, events).await,
        );
    }
    sse::events(ApiFormat::OpenAi, async move |events| {
        write(choices, format, chunk, usage, events).await
    })
}

/// Writes the events after text that the host streamed.
async fn end(
    outcome: Outcome,
    mut choices: Choices,
    format: Format,
    mut chunk: Value,
    usage: bool,
    events: &mut EventWriter,
) -> Result<(), Error> {
    choices.set_outcome(outcome);
    chunk["choices"] = json!([format.choice(0, "", &[], &[], Some(outcome.finish))]);
    events.json(&chunk).await?;
    close(&choices, chunk, usage, events).await
}

async fn write(
    mut choices: Choices,
    format: Format,
    mut chunk: Value,
    usage: bool,
    events: &mut EventWriter,
) -> Result<(), Error> {
    for index in 0..choices.len() {
        if let Some(echo) = format.echo_of(index) {
            chunk["choices"] = json!([format.choice(index, &echo.text, &echo.logprobs, &[], None)]);
            events.json(&chunk).await?;
        }
    }
    while let Some(delta) = choices.next().await? {
        let finish = delta.end.map(|end| end.finish);
        if delta.text.is_empty() && delta.logprobs.is_empty() && finish.is_none() {
            continue;
        }
        let choice = format.choice(delta.index, &delta.text, &[], &delta.logprobs, finish);
        chunk["choices"] = json!([choice]);
        events.json(&chunk).await?;
    }
    close(&choices, chunk, usage, events).await
}

/// Writes the events after all choices.
async fn close(
    choices: &Choices,
    mut chunk: Value,
    usage: bool,
    events: &mut EventWriter,
) -> Result<(), Error> {
    if usage {
        chunk["choices"] = json!([]);
        chunk["usage"] = choices.usage().to_json();
        events.json(&chunk).await?;
    }
    events.data(DONE).await
}
