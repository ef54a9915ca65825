//! The HTTP handler: one POST, one generation.

use corral_sdk::http::EventFormat;
use corral_sdk::{Error, EventWriter, Request, Response};
use serde_json::json;

use crate::generation::Generation;
use crate::request::parse;
use crate::response::{DONE, Report, chunk_event};

pub async fn handle(mut request: Request) -> Result<Response, Error> {
    if request.method() != "POST" {
        return Err(Error::method_not_allowed(
            "POST",
            "expected POST with a JSON body, such as {\"prompt\": \"Once upon a time\"}",
        ));
    }
    // Any content type: `curl -d` declares a form.
    let request = parse(&request.body().await?)?;
    let mut generation = Generation::start(&request).await?;
    if request.stream {
        return stream(generation).await;
    }
    let output = generation.rest().await?;
    let report = generation.finish().await?;
    let body = report.to_json(&output);
    Ok(Response::bytes("application/json", body))
}

/// Waits for the first chunk, so that an earlier error (a full queue, a deadline) sets the status.
async fn stream(generation: Generation) -> Result<Response, Error> {
    let mut generation = generation.wait_for_start().await?;
    if !generation.has_logprobs() {
        let (generation, formatter) = generation.into_parts();
        let format = EventFormat::json(|text| json!({"text": text}));
        return Ok(Response::text_events(
            generation,
            format,
            async move |outcome, events| end(formatter.report(outcome?), events).await,
        ));
    }
    Ok(Response::events(async move |events| {
        while let Some(chunk) = generation.next().await? {
            if !chunk.is_empty() {
                events.data(&chunk_event(&chunk)).await?;
            }
        }
        end(generation.finish().await?, events).await
    }))
}

async fn end(report: Report, events: &mut EventWriter) -> Result<(), Error> {
    let all = [report.last_event(), DONE.to_owned()];
    events.data_events(&all).await
}
