//! Texts as events.

use corral_sdk::http::Frame;
use corral_sdk::{Error, Events, Outcome, Response};
use serde_json::{Value, json};

use super::answer::Told;
use crate::asking::Choices;
use crate::chat::DONE;
use crate::error::Dialect;
use crate::identity::{now, unique};
use crate::sse;

pub fn answer(mut choices: Choices, told: Told, usage: bool) -> Response {
    let mut head = json!({
        "id": unique("cmpl-"),
        "object": "text_completion",
        "created": now(),
        "model": choices.model().name(),
        "choices": [],
    });
    if usage {
        head["usage"] = Value::Null;
    }
    if told.echo.is_empty()
        && let Some(generation) = choices.unseen()
    {
        let frame = Frame::json(|text| {
            let mut chunk = head.clone();
            chunk["choices"] = json!([told.choice(0, text, &[], &[], None)]);
            chunk
        });
        return sse::forward(
            Dialect::OpenAi,
            generation,
            frame,
            async move |outcome, events| end(outcome?, choices, told, head, usage, events).await,
        );
    }
    sse::answer(Dialect::OpenAi, async move |events| {
        tell(choices, told, head, usage, events).await
    })
}

/// What follows the text of an answer that the host passed on.
async fn end(
    outcome: Outcome,
    mut choices: Choices,
    told: Told,
    mut chunk: Value,
    usage: bool,
    events: &mut Events,
) -> Result<(), Error> {
    choices.ended(outcome);
    chunk["choices"] = json!([told.choice(0, "", &[], &[], Some(outcome.finish))]);
    events.json(&chunk).await?;
    close(&choices, chunk, usage, events).await
}

async fn tell(
    mut choices: Choices,
    told: Told,
    mut chunk: Value,
    usage: bool,
    events: &mut Events,
) -> Result<(), Error> {
    for index in 0..choices.len() {
        if let Some(echo) = told.beginning(index) {
            chunk["choices"] = json!([told.choice(index, &echo.text, &echo.likely, &[], None)]);
            events.json(&chunk).await?;
        }
    }
    while let Some(piece) = choices.next().await? {
        let finish = piece.end.map(|end| end.finish);
        if piece.text.is_empty() && piece.likely.is_empty() && finish.is_none() {
            continue;
        }
        let choice = told.choice(piece.index, &piece.text, &[], &piece.likely, finish);
        chunk["choices"] = json!([choice]);
        events.json(&chunk).await?;
    }
    close(&choices, chunk, usage, events).await
}

/// What follows all texts.
async fn close(
    choices: &Choices,
    mut chunk: Value,
    usage: bool,
    events: &mut Events,
) -> Result<(), Error> {
    if usage {
        chunk["choices"] = json!([]);
        chunk["usage"] = choices.usage().to_json();
        events.json(&chunk).await?;
    }
    events.data(DONE).await
}
