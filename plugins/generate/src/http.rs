//! One POST, one generation.

use corral_sdk::http::Frame;
use corral_sdk::{Error, Events, Request, Response};
use serde_json::json;

use crate::answer::{DONE, Report, piece_json};
use crate::generation::Generation;
use crate::request::parse;

pub async fn handle(mut request: Request) -> Result<Response, Error> {
    if request.method() != "POST" {
        return Err(Error::method_not_allowed(
            "POST",
            "expected POST with a JSON body, such as {\"prompt\": \"Once upon a time\"}",
        ));
    }
    // JSON of any declared type: `curl -d` says that it is a form.
    let request = parse(&request.body().await?)?;
    let mut generation = Generation::start(&request).await?;
    if request.stream {
        return stream(generation).await;
    }
    let whole = generation.rest().await?;
    let report = generation.finish().await?;
    Ok(Response::bytes("application/json", report.to_json(&whole)))
}

/// Answers with events. The head waits for the first piece, so that what fails before it (a full
/// queue, a deadline) still gets its own status.
async fn stream(generation: Generation) -> Result<Response, Error> {
    let mut generation = generation.begun().await?;
    if !generation.tells_likely() {
        let (running, teller) = generation.apart();
        let frame = Frame::json(|text| json!({"text": text}));
        return Ok(Response::forward(
            running,
            frame,
            async move |outcome, events| end(teller.report(outcome?), events).await,
        ));
    }
    Ok(Response::events(async move |events| {
        while let Some(piece) = generation.next().await? {
            if !piece.is_empty() {
                events.data(&piece_json(&piece)).await?;
            }
        }
        end(generation.finish().await?, events).await
    }))
}

async fn end(report: Report, events: &mut Events) -> Result<(), Error> {
    events.data(&report.last_json()).await?;
    events.data(DONE).await
}
