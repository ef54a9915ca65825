//! The entry point that [`handler!`](crate::handler) exports.

use wasip3::http::types::{ErrorCode, Fields};
pub use wasip3::http::types::{Request as HostRequest, Response as HostResponse};
use wasip3::wit_bindgen::StreamReader;
use wasip3::{spawn_local, wit_future, wit_stream};

use super::request::BodyError;
use super::response::Body;
use super::text_events::{TextEvents, finish};
use super::{EventWriter, Request, Response};
use crate::{Error, backend};

/// Passes a request to the handler and its response to the host.
pub async fn serve<E: Into<Response>>(
    request: HostRequest,
    handle: impl AsyncFnOnce(Request) -> Result<Response, E>,
) -> Result<HostResponse, ErrorCode> {
    serve_with_error(request, async |request, _| handle(request).await).await
}

/// Like [`serve`]. The handler can set the error that the host gets if it returns one.
pub(crate) async fn serve_with_error<E: Into<Response>>(
    request: HostRequest,
    handle: impl AsyncFnOnce(Request, &BodyError) -> Result<Response, E>,
) -> Result<HostResponse, ErrorCode> {
    let body_error = BodyError::default();
    let response = match handle(Request::from_host(request, &body_error), &body_error).await {
        Ok(response) => response,
        Err(error) => match body_error.take() {
            // The request was cut off: the client is gone.
            Some(code) => return Err(code),
            None => error.into(),
        },
    };
    into_host_response(response)
}

fn into_host_response(response: Response) -> Result<HostResponse, ErrorCode> {
    let response = match response.body {
        Body::Forwarded(forwarded) if !response.is_changed => return Ok(forwarded),
        _ => response,
    };
    let Response {
        status,
        mut headers,
        body,
        ..
    } = response;
    let internal_error = |what: &str| ErrorCode::InternalError(Some(what.to_owned()));
    let (mut writer, mut reader) = wit_stream::new();
    let (ending, mut trailers) = wit_future::new(|| Ok(None));
    match body {
        Body::Forwarded(forwarded) => {
            let (_, processed) = wit_future::new(|| Ok(()));
            (reader, trailers) = HostResponse::consume_body(forwarded, processed);
        }
        Body::Stream(write) => {
            spawn_local(async move {
                if let Err(error) = write(EventWriter::to_client(writer)).await {
                    let code = ErrorCode::InternalError(Some(error.to_string()));
                    // The client may be gone.
                    let _ = ending.write(Err(code)).await;
                }
            });
        }
        Body::Whole(bytes) => {
            // A 204 has neither a body nor a length.
            if status != 204 {
                let length = bytes.len().to_string();
                headers.push(("content-length".to_owned(), length.into_bytes()));
            }
            spawn_local(async move { writer.write_all(bytes).await });
        }
        Body::TextEvents(text_events) => {
            let events = EventWriter::to_client(writer);
            reader = combine(*text_events, reader, events)
                .map_err(|error| internal_error(&error.to_string()))?;
        }
    }
    let fields =
        Fields::from_list(&headers).map_err(|_| internal_error("the host refused a header"))?;
    let (response, _) = HostResponse::new(fields, Some(reader), trailers);
    response
        .set_status_code(status)
        .map_err(|()| internal_error("the host refused the status"))?;
    Ok(response)
}

/// Combines the events that the host makes of the text with those written to `events` afterwards.
fn combine(
    text_events: TextEvents,
    rest: StreamReader<u8>,
    events: EventWriter,
) -> Result<StreamReader<u8>, Error> {
    let framing = text_events
        .format
        .framing(text_events.generation.buffered_text());
    let Some(framing) = framing.filter(|_| !text_events.generation.has_ended()) else {
        // The host has nothing to frame.
        spawn_local(text_events.write(events));
        return Ok(rest);
    };
    let TextEvents {
        generation, end, ..
    } = text_events;
    let (Some(chunks), outcome) = generation.into_parts() else {
        return Err(Error::Failed(
            "the generation's chunks were read before".to_owned(),
        ));
    };
    let bytes = backend::frame(chunks, &framing, rest)?;
    spawn_local(async move { finish(end, outcome.await, events).await });
    Ok(bytes)
}
