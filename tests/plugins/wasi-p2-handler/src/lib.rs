//! A handler of WASI 0.2: `wasi:http/incoming-handler`. Responds with the path and the body of the
//! request, in the pieces in which it reads them. If the path ends with `/fetch?http://HOST:PORT/PATH`, it posts the
//! body there and adds the status and the body of the response, or the error code.
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

use wasip2::http::outgoing_handler;
use wasip2::http::types::{
    ErrorCode, Fields, IncomingBody, IncomingRequest, Method, OutgoingBody, OutgoingRequest,
    OutgoingResponse, ResponseOutparam, Scheme,
};
use wasip2::io::streams::{OutputStream, StreamError};

struct WasiP2Handler;

#[allow(unsafe_code)]
mod exports {
    use super::WasiP2Handler;
    wasip2::http::proxy::export!(WasiP2Handler);
}

impl wasip2::exports::http::incoming_handler::Guest for WasiP2Handler {
    fn handle(request: IncomingRequest, answer: ResponseOutparam) {
        let response = OutgoingResponse::new(Fields::new());
        let Ok(body) = response.body() else {
            return ResponseOutparam::set(answer, Err(ErrorCode::InternalError(None)));
        };
        ResponseOutparam::set(answer, Ok(response));
        // The client sees a later error as a body that ends early.
        if write(&request, &body).is_some() {
            let _ = OutgoingBody::finish(body, None);
        }
    }
}

fn write(request: &IncomingRequest, body: &OutgoingBody) -> Option<()> {
    let out = body.write().ok()?;
    let path = request.path_with_query().unwrap_or_default();
    let line = format!("{path}\n");
    out.blocking_write_and_flush(line.as_bytes()).ok()?;
    let incoming = request.consume().ok()?;
    if let Some((_, url)) = path.split_once("/fetch?http://") {
        let line = match fetch(url, &incoming, &out) {
            Ok(()) => String::new(),
            Err(error) => format!("{error:?}\n"),
        };
        return out.blocking_write_and_flush(line.as_bytes()).ok();
    }
    copy(&incoming, &out)
}

/// Writes a body as it is read.
fn copy(incoming: &IncomingBody, out: &OutputStream) -> Option<()> {
    let input = incoming.stream().ok()?;
    loop {
        match input.blocking_read(4096) {
            Ok(piece) => out.blocking_write_and_flush(&piece).ok()?,
            Err(StreamError::Closed) => return Some(()),
            Err(_) => return None,
        }
    }
}

/// Posts the body, and writes the status and the body of the response.
fn fetch(url: &str, body: &IncomingBody, out: &OutputStream) -> Result<(), ErrorCode> {
    let invalid = |()| ErrorCode::HttpRequestUriInvalid;
    let (authority, path) = url.split_at(url.find('/').unwrap_or(url.len()));
    let request = OutgoingRequest::new(Fields::new());
    request.set_method(&Method::Post).map_err(invalid)?;
    request.set_scheme(Some(&Scheme::Http)).map_err(invalid)?;
    request.set_authority(Some(authority)).map_err(invalid)?;
    request.set_path_with_query(Some(path)).map_err(invalid)?;
    let sent = request.body().map_err(invalid)?;
    let future = outgoing_handler::handle(request, None)?;
    let written = sent.write().map_err(invalid)?;
    let copied = copy(body, &written).ok_or(ErrorCode::ConnectionTerminated);
    drop(written);
    let finished = OutgoingBody::finish(sent, None);
    future.subscribe().block();
    let Some(Ok(response)) = future.get() else {
        return Err(ErrorCode::InternalError(None));
    };
    // A refused request has no reader for its body. Its own error says why.
    let response = response?;
    copied?;
    finished?;
    let line = format!("{}\n", response.status());
    let broken = |_| ErrorCode::ConnectionTerminated;
    out.blocking_write_and_flush(line.as_bytes())
        .map_err(broken)?;
    let body = response.consume().map_err(invalid)?;
    copy(&body, out).ok_or(ErrorCode::HttpResponseIncomplete)
}
