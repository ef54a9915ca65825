//! A handler of WASI 0.2 (`wasi:http/incoming-handler`), whose export can't await. It uses models
//! through `corral:inference/inference-sync`. The last segment of the path selects the operation; the
//! body is text.
//!
//! | segment | body | response |
//! |---|---|---|
//! | `generate` | a prompt | the host's generation, chunk by chunk |
//! | `outcome` | a prompt | the same, without reading chunks |
//! | `rest` | a prompt | the same, with all but the first chunk at once |
//! | `outlived` | a prompt | the same, but drops the sequence before it reads |
//! | `next` | a prompt | the same with a greedy guest loop |
//! | `many` | prompts, one per line | the same for all of them with `next-many`, one per line |
//! | `sampled` | a sampling plugin's name, its settings and a prompt, one per line | its generation |
//! | `match` | a regular expression and a prompt | a generation under this constraint |
//! | `embed` | texts, one per line | their vectors, one per line |
//! | `keep` | a name and a prompt | snapshots the prompt; its generation |
//! | `kept` | a name | the generation after this snapshot |
//! | `forget` | a name | "ok" |
//! | `drop` | a prompt | drops a generation midway; then the prompt's generation |
//! | `endless` | a prompt | generates 16,000 tokens |
//! | `errors` | | a line with the result of each invalid call |
//! | `full` | | the error of the token that exceeds the limit on all sequences |
//! | `long` | a prompt | tokenizes 17 MiB; then the prompt's generation |
//! | `lost` | a prompt | the error of a generation whose session has ended; then the prompt's generation |
//!
//! Errors are responses with status 400.
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

mod errors;
mod operations;
mod sessions;

use wasip2::http::types::{
    ErrorCode, Fields, IncomingRequest, OutgoingBody, OutgoingResponse, ResponseOutparam,
};
use wasip2::io::streams::StreamError;

use bindings::corral::inference::types::Error;

#[allow(unsafe_code)]
mod bindings {
    wit_bindgen::generate!({
        world: "corral:inference/imports-sync",
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
        let (status, text) = match run(which, &body) {
            Ok(text) => (200, text),
            Err(error) => (400, format!("{error:?}")),
        };
        let response = OutgoingResponse::new(Fields::new());
        let set = response.set_status_code(status);
        let (Ok(()), Ok(body)) = (set, response.body()) else {
            return ResponseOutparam::set(answer, Err(ErrorCode::InternalError(None)));
        };
        ResponseOutparam::set(answer, Ok(response));
        // The client sees a later error as a body that ends early.
        if write(&body, &text).is_some() {
            let _ = OutgoingBody::finish(body, None);
        }
    }
}

fn run(which: &str, body: &str) -> Result<String, Error> {
    match which {
        "generate" => operations::generate(body),
        "outcome" => operations::outcome(body),
        "rest" => operations::rest(body),
        "outlived" => operations::outlived(body),
        "next" => operations::next(body),
        "many" => operations::many(body),
        "sampled" => operations::sampled(body),
        "see" => operations::see(body),
        "match" => operations::matched(body),
        "embed" => operations::embed(body),
        "keep" => operations::keep(body),
        "kept" => operations::kept(body),
        "forget" => operations::forget(body),
        "drop" => operations::leave(body),
        "endless" => operations::endless(body),
        "errors" => errors::errors(),
        "full" => sessions::full(),
        "long" => sessions::long(body),
        "lost" => sessions::lost(body),
        other => Ok(format!("there is no operation {other}")),
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
