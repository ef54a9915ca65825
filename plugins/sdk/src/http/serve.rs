//! What [`handler!`](crate::handler) exports.

use wasip3::http::types::{ErrorCode, Fields, Request as HostRequest, Response as HostResponse};
use wasip3::{spawn_local, wit_future, wit_stream};

use super::request::Broken;
use super::response::Body;
use super::{Events, Request, Response};

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
    let (mut writer, reader) = wit_stream::new();
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
    }
    let broken = |what: &str| ErrorCode::InternalError(Some(what.to_owned()));
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
