//! Guest loops over `next` and `next-many`, and invalid calls. The last segment of the path selects
//! the operation; the body is text. With `?most=N` it generates exactly N tokens, ignoring
//! end-of-generation tokens.
//!
//! | segment | body | response |
//! |---|---|---|
//! | `generate` | a prompt | the host's greedy generation |
//! | `next` | a prompt | the same with a guest loop |
//! | `logits` | a prompt | the same with a loop over all logits |
//! | `only` | a prompt | the same with a loop over the digits and end tokens |
//! | `many` | prompts, one per line | the same for all of them with `next-many`, one per line |
//! | `beam` | a prompt | the best of three beams |
//! | `again` | a prompt with `|` for line breaks, then suffixes, one per line | the generation after each suffix, with `truncate` between them |
//! | `match` | a regular expression and a prompt | a text that the expression matches; checks the mask |
//! | `statistics` | a prompt | checks the statistics against the logits; "ok" |
//! | `keep` | a name and a prompt | snapshots the prompt; its generation |
//! | `kept` | a name | the generation after this snapshot |
//! | `forget` | a name | "ok" |
//! | `budget` | a prompt | remaining tokens before and after a loop |
//! | `info` | | the begin and end tokens |
//! | `errors` | | a line with the result of each invalid call |
//! | `bomb` | | the number of sequences, forks and matchers that it could hold |
//! | `rows` | | the number of pending requests for all logits |
//! | `giant` | | appends ten million tokens in one call |
//! | `forged` | | uses a sequence handle that it does not own |
//! | `closed` | | drops a sequence twice |
//! | `collect` | a prompt | as `generate`, with all but the first chunk by `collect` |
//! | `outlived` | a prompt | as `generate`, but drops the sequence before it reads the text |
//! | `outliving` | a prompt | the number of generations that it could hold without their sequences; then as `outlived` |
//! | `frame` | a prompt | as `generate`, as bytes of `frame` that the guest reads: `<[1][9]>3` |
//! | `late` | a prompt | the same as JSON, after reading one chunk |
//! | `dropped` | a prompt | drops such bytes of another text; then as `generate` |
//! | `leaked` | a prompt | the same, but leaks them |
//! | `body` | a prompt | responds with such bytes as JSON: `<["1"]["9"]` |
//! | `forgotten` | a prompt | the same, with an end that never comes |
//! | `held` | a prompt | the same, with an end that the guest withholds |
//! | `broken` | a prompt | the same with a long text, and traps midway |
//! | `leave` | a prompt | drops a `next`; then the prompt's generation |
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

mod errors;
mod loops;
mod streams;

use std::sync::atomic::Ordering;

use wasip3::http::types::{ErrorCode, Fields, Request, Response};
use wasip3::{spawn_local, wit_future, wit_stream};

use bindings::corral::inference::types::Error;
use streams::BodyFault;

#[allow(unsafe_code)]
mod bindings {
    wit_bindgen::generate!({ world: "imports", path: "../../../wit" });
}

struct Loops;

#[allow(unsafe_code)]
mod exports {
    use super::Loops;
    wasip3::http::service::export!(Loops);
}

impl wasip3::exports::http::handler::Guest for Loops {
    async fn handle(request: Request) -> Result<Response, ErrorCode> {
        let path = request.get_path_with_query().unwrap_or_default();
        let (path, query) = path.split_once('?').unwrap_or((&path, ""));
        if let Some(most) = query.strip_prefix("most=") {
            loops::TOKENS.store(most.parse().unwrap_or(1), Ordering::Relaxed);
        }
        let body = read(request).await;
        match path.rsplit('/').next() {
            Some("body") => return streams::body(&body, BodyFault::None).await,
            Some("held") => return streams::body(&body, BodyFault::Held).await,
            Some("forgotten") => return streams::body(&body, BodyFault::Forgotten).await,
            Some("broken") => return streams::body(&body, BodyFault::Trap).await,
            _ => {}
        }
        match answer(path.rsplit('/').next().unwrap_or_default(), &body).await {
            Ok(text) => response(200, &text),
            Err(error) => response(400, &format!("{error:?}")),
        }
    }
}

async fn answer(which: &str, body: &str) -> Result<String, Error> {
    match which {
        "generate" => loops::generate(body).await,
        "next" => loops::next_loop(body).await,
        "logits" => loops::logits(body).await,
        "only" => loops::only(body).await,
        "many" => loops::many(body).await,
        "beam" => loops::beam(body).await,
        "again" => loops::again(body).await,
        "match" => loops::matched(body).await,
        "statistics" => loops::statistics(body).await,
        "keep" => loops::keep(body).await,
        "kept" => loops::kept(body).await,
        "forget" => loops::forget(body).await,
        "budget" => loops::budget(body).await,
        "leave" => loops::leave(body).await,
        "collect" => streams::collected(body).await,
        "outlived" => streams::outlived(body).await,
        "outliving" => streams::outliving(body).await,
        "frame" => streams::framed(body, false, 0).await,
        "late" => streams::framed(body, true, 1).await,
        "dropped" => streams::dropped(body).await,
        "leaked" => streams::leaked(body).await,
        "info" => loops::info().await,
        "errors" => errors::errors().await,
        "bomb" => errors::bomb().await,
        "rows" => errors::rows().await,
        "giant" => errors::giant().await,
        "forged" => errors::forged().await,
        "closed" => errors::closed().await,
        other => Ok(format!("there is no operation {other}")),
    }
}

async fn read(request: Request) -> String {
    let (_, processed) = wit_future::new(|| Ok(()));
    let mut body = Request::consume_body(request, processed).0;
    let mut bytes = Vec::new();
    while let Some(byte) = body.next().await {
        bytes.push(byte);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn response(status: u16, text: &str) -> Result<Response, ErrorCode> {
    let (mut writer, reader) = wit_stream::new();
    let text = text.as_bytes().to_vec();
    spawn_local(async move { writer.write_all(text).await });
    let (_, trailers) = wit_future::new(|| Ok(None));
    let (response, _) = Response::new(Fields::new(), Some(reader), trailers);
    response
        .set_status_code(status)
        .map_err(|()| ErrorCode::InternalError(None))?;
    Ok(response)
}
