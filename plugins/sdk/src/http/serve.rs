//! What [`handler!`](crate::handler) exports.

use wasip3::http::types::{ErrorCode, Fields, Request as HostRequest, Response as HostResponse};
use wasip3::wit_bindgen::StreamReader;
use wasip3::{spawn_local, wit_future, wit_stream};

use super::forward::{Forward, ended};
use super::request::Broken;
use super::response::Body;
use super::{Events, Request, Response};
use crate::{Error, backend};

/// Hands a request to a handler, and its answer to the host.
pub async fn serve<E: Into<Response>>(
    request: HostRequest,
    handle: impl AsyncFnOnce(Request) -> Result<Response, E>,
) -> Result<HostResponse, ErrorCode> {
    let broken = Broken::default();
    let response = match handle(Request::from_host(request, &broken)).await {
        Ok(response) => response,
        Err(error) => match broken.take() {
            // The request did not arrive whole, so there is nobody to tell.
            Some(code) => return Err(code),
            None => error.into(),
        },
    };
    answer(response)
}

fn answer(response: Response) -> Result<HostResponse, ErrorCode> {
    let Response {
        status,
        mut headers,
        body,
    } = response;
    let broken = |what: &str| ErrorCode::InternalError(Some(what.to_owned()));
    let (mut writer, mut reader) = wit_stream::new();
    match body {
        Body::Whole(bytes) => {
            // 204 has no body, and says no length.
            if status != 204 {
                headers.push(("content-length".to_owned(), bytes.len().to_string()));
            }
            spawn_local(async move { writer.write_all(bytes).await });
        }
        Body::Events(write) => {
            spawn_local(write(Events::to_client(writer)));
        }
        Body::Forward(forward) => {
            let events = Events::to_client(writer);
            reader =
                forwarded(*forward, reader, events).map_err(|error| broken(&error.to_string()))?;
        }
    }
    let headers = headers.into_iter();
    let headers: Vec<_> = headers
        .map(|(name, value)| (name, value.into_bytes()))
        .collect();
    let fields = Fields::from_list(&headers).map_err(|_| broken("the host refused a header"))?;
    let (_, trailers) = wit_future::new(|| Ok(None));
    let (response, _) = HostResponse::new(fields, Some(reader), trailers);
    response
        .set_status_code(status)
        .map_err(|()| broken("the host refused the status"))?;
    Ok(response)
}

/// The bytes of a generation, which the host makes, and of what is written to `events` after it.
fn forwarded(
    forward: Forward,
    rest: StreamReader<u8>,
    events: Events,
) -> Result<StreamReader<u8>, Error> {
    let framing = forward.frame.framing(forward.generation.read());
    let Some(framing) = framing.filter(|_| !forward.generation.has_ended()) else {
        // There is nothing that the host could pass on.
        spawn_local(forward.write(events));
        return Ok(rest);
    };
    let Forward {
        generation, end, ..
    } = forward;
    let (Some(chunks), ending) = generation.apart() else {
        return Err(Error::Failed("the text was taken before".to_owned()));
    };
    let bytes = backend::frame(chunks, &framing, rest)?;
    spawn_local(async move { ended(end, ending.outcome().await, events).await });
    Ok(bytes)
}
