//! A handler of WASI 0.2: `wasi:http/incoming-handler`. Responds with the path and the body of the
//! request, in the pieces in which it reads them.
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

use wasip2::http::types::{
    ErrorCode, Fields, IncomingRequest, OutgoingBody, OutgoingResponse, ResponseOutparam,
};
use wasip2::io::streams::StreamError;

struct Classic;

#[allow(unsafe_code)]
mod exports {
    use super::Classic;
    wasip2::http::proxy::export!(Classic);
}

impl wasip2::exports::http::incoming_handler::Guest for Classic {
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
    let line = format!("{}\n", request.path_with_query().unwrap_or_default());
    out.blocking_write_and_flush(line.as_bytes()).ok()?;
    let incoming = request.consume().ok()?;
    let input = incoming.stream().ok()?;
    loop {
        match input.blocking_read(4096) {
            Ok(piece) => out.blocking_write_and_flush(&piece).ok()?,
            Err(StreamError::Closed) => return Some(()),
            Err(_) => return None,
        }
    }
}
