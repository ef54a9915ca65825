//! Streams of events that end with an error of the API, where something fails.

use corral_sdk::http::Frame;
use corral_sdk::{Error, Events, Generation, Outcome, Response};

use crate::error::{Dialect, body};

/// Answers with events. An error becomes the last one of them, as clients of the API look for it.
pub fn answer(
    dialect: Dialect,
    send: impl AsyncFnOnce(&mut Events) -> Result<(), Error> + 'static,
) -> Response {
    Response::events(async move |events| {
        let sent = send(events).await;
        finish(dialect, sent, events).await
    })
}

/// The same, of a text that the host passes on, and what is sent after it.
pub fn forward(
    dialect: Dialect,
    generation: Generation,
    frame: Frame,
    end: impl AsyncFnOnce(Result<Outcome, Error>, &mut Events) -> Result<(), Error> + 'static,
) -> Response {
    Response::forward(generation, frame, async move |outcome, events| {
        let sent = end(outcome, events).await;
        finish(dialect, sent, events).await
    })
}

async fn finish(
    dialect: Dialect,
    sent: Result<(), Error>,
    events: &mut Events,
) -> Result<(), Error> {
    let Err(error) = sent else {
        return Ok(());
    };
    let data = body(dialect, &error).to_string();
    match dialect {
        Dialect::OpenAi => events.data(&data).await,
        Dialect::Anthropic => events.named("error", &data).await,
    }
}
