//! Event streams whose errors have the API's format.
//!
//! A stream begins before its first token, so that a client knows early that its request runs; the host keeps it alive.
//! An error is therefore an event, followed by the event that ends the API's streams.

use corral_sdk::http::EventFormat;
use corral_sdk::{Error, EventWriter, Generation, Outcome, Response};

use crate::error::{ApiFormat, body};

/// The last event of a stream in OpenAI's older APIs.
pub const DONE: &str = "[DONE]";

/// Streams events. An error ends them.
pub fn events(
    api: ApiFormat,
    send: impl AsyncFnOnce(&mut EventWriter) -> Result<(), Error> + 'static,
) -> Response {
    Response::events(async move |events| {
        let result = send(events).await;
        finish(api, result, events).await
    })
}

/// Streams events in the format of llama.cpp's server, which ends without a last event.
pub fn native_events(
    send: impl AsyncFnOnce(&mut EventWriter) -> Result<(), Error> + 'static,
) -> Response {
    Response::events(async move |events| match send(events).await {
        Ok(()) => Ok(()),
        Err(error) => events.json(&body(ApiFormat::OpenAi, &error)).await,
    })
}

/// Streams a generation's text through the host, then the events that `end` writes.
pub fn text_events(
    api: ApiFormat,
    generation: Generation,
    format: EventFormat,
    end: impl AsyncFnOnce(Result<Outcome, Error>, &mut EventWriter) -> Result<(), Error> + 'static,
) -> Response {
    Response::text_events(generation, format, async move |outcome, events| {
        let result = end(outcome, events).await;
        finish(api, result, events).await
    })
}

async fn finish(
    api: ApiFormat,
    result: Result<(), Error>,
    events: &mut EventWriter,
) -> Result<(), Error> {
    let Err(error) = result else {
        return Ok(());
    };
    let data = body(api, &error).to_string();
    match api {
        ApiFormat::OpenAi => {
            events.data(&data).await?;
            events.data(DONE).await
        }
        // The API ends a stream with this event.
        ApiFormat::Anthropic => events.named("error", &data).await,
    }
}
