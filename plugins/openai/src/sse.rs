//! Streams of events that end with an error of the API, where something fails.

use corral_sdk::{Error, Events, Response};

use crate::error::{Dialect, body};

/// Answers with events. An error becomes the last one of them, as clients of the API look for it.
pub fn answer(
    dialect: Dialect,
    send: impl AsyncFnOnce(&mut Events) -> Result<(), Error> + 'static,
) -> Response {
    Response::events(async move |events| {
        let Err(error) = send(events).await else {
            return Ok(());
        };
        let data = body(dialect, &error).to_string();
        match dialect {
            Dialect::OpenAi => events.data(&data).await,
            Dialect::Anthropic => events.named("error", &data).await,
        }
    })
}
