//! A handler of WASI 0.2 (`wasi:http/incoming-handler`), whose export can't await: it uses models through
//! `corral:inference/blocking`. The last segment of the path says how; the body is text.
//!
//! | segment | body | answer |
//! |---|---|---|
//! | `generate` | a prompt | what the host generates, chunk by chunk |
//! | `outcome` | a prompt | the same, without a look at the chunks |
//! | `rest` | a prompt | the same, all but the first chunk at once |
//! | `next` | a prompt | the same by a loop over the likeliest token |
//! | `many` | prompts, a line each | the same for all of them, by `next-many`, a line each |
//! | `sampled` | the name of a sampling plugin, its settings and a prompt, a line each | what it makes of it |
//! | `match` | a regular expression, and a prompt | what is generated under it |
//! | `embed` | texts, a line each | their vectors, a line of numbers each |
//! | `keep` | a name and a prompt | keeps the prompt's sequence; what comes after it |
//! | `kept` | a name | what comes after what was kept |
//! | `forget` | a name | "ok" |
//! | `drop` | a prompt | drops a generation midway; then what comes after the prompt |
//! | `endless` | a prompt | generates 16,000 tokens |
//! | `errors` | | a line for each wrong call, with what came of it |
//!
//! What fails is answered with 400.
// Not forbid: the bindings are generated, with unsafe code.
#![deny(unsafe_code)]

mod ways;
mod wrong;

use wasip2::http::types::{
    ErrorCode, Fields, IncomingRequest, OutgoingBody, OutgoingResponse, ResponseOutparam,
};
use wasip2::io::streams::StreamError;

use bindings::corral::inference::types::Error;

#[allow(unsafe_code)]
mod bindings {
    wit_bindgen::generate!({
        world: "corral:inference/imports-blocking",
        path: "../../../wit",
    });
}

struct Blocking;

#[allow(unsafe_code)]
mod exports {
    use super::Blocking;
    wasip2::http::proxy::export!(Blocking);
}

impl wasip2::exports::http::incoming_handler::Guest for Blocking {
    fn handle(request: IncomingRequest, answer: ResponseOutparam) {
        let path = request.path_with_query().unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        let which = path.rsplit('/').next().unwrap_or_default();
        let Some(body) = read(&request) else {
            return ResponseOutparam::set(answer, Err(ErrorCode::InternalError(None)));
        };
        let (status, text) = match ways(which, &body) {
            Ok(text) => (200, text),
            Err(error) => (400, format!("{error:?}")),
        };
        let response = OutgoingResponse::new(Fields::new());
        let set = response.set_status_code(status);
        let (Ok(()), Ok(body)) = (set, response.body()) else {
            return ResponseOutparam::set(answer, Err(ErrorCode::InternalError(None)));
        };
        ResponseOutparam::set(answer, Ok(response));
        // The client sees what fails from here on as a body that ends early.
        if write(&body, &text).is_some() {
            let _ = OutgoingBody::finish(body, None);
        }
    }
}

fn ways(which: &str, body: &str) -> Result<String, Error> {
    match which {
        "generate" => ways::generate(body),
        "outcome" => ways::outcome(body),
        "rest" => ways::rest(body),
        "next" => ways::next(body),
        "many" => ways::many(body),
        "sampled" => ways::sampled(body),
        "match" => ways::matched(body),
        "embed" => ways::embed(body),
        "keep" => ways::keep(body),
        "kept" => ways::kept(body),
        "forget" => ways::forget(body),
        "drop" => ways::leave(body),
        "endless" => ways::endless(body),
        "errors" => wrong::errors(),
        other => Ok(format!("there is no way {other}")),
    }
}

fn read(request: &IncomingRequest) -> Option<String> {
    let incoming = request.consume().ok()?;
    let input = incoming.stream().ok()?;
    let mut bytes = Vec::new();
    loop {
        match input.blocking_read(4096) {
            Ok(piece) => bytes.extend(piece),
            Err(StreamError::Closed) => return String::from_utf8(bytes).ok(),
            Err(_) => return None,
        }
    }
}

fn write(body: &OutgoingBody, text: &str) -> Option<()> {
    let out = body.write().ok()?;
    for piece in text.as_bytes().chunks(4096) {
        out.blocking_write_and_flush(piece).ok()?;
    }
    Some(())
}
