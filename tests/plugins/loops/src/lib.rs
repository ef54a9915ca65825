//! Loops that the guest runs over `next` and `next-many`, and every wrong thing that can be asked of
//! them. The last segment of the path says which; the body is text. With `?most=N` so many tokens are
//! generated, ends or not.
//!
//! | segment | body | answer |
//! |---|---|---|
//! | `generate` | a prompt | what the host generates, greedily |
//! | `next` | a prompt | the same by a loop over the likeliest token |
//! | `logits` | a prompt | the same by a loop over whole rows |
//! | `only` | a prompt | the same by a loop over the digits and the end |
//! | `many` | prompts, a line each | the same for all of them, by `next-many`, a line each |
//! | `beam` | a prompt | the likeliest text of three beams |
//! | `again` | a prompt, with a bar for each line's end, then others, a line each | what comes after each of them in place of the one before, by `truncate` |
//! | `match` | a regular expression, and a prompt | a text that the expression matches, with its mask checked |
//! | `statistics` | a prompt | checks the statistics against the row; "ok" |
//! | `keep` | a name and a prompt | keeps the prompt's sequence; what comes after it |
//! | `kept` | a name | what comes after what was kept |
//! | `forget` | a name | "ok" |
//! | `budget` | a prompt | tokens left, before and after a loop over it |
//! | `info` | | the tokens that begin and end a text |
//! | `errors` | | a line for each wrong call, with what came of it |
//! | `bomb` | | how many sequences, forks and matchers it could hold |
//! | `rows` | | how many rows of logits it could wait for |
//! | `giant` | | appends ten million tokens in a call |
//! | `forged` | | uses a sequence that it does not have |
//! | `closed` | | drops a sequence twice |
//! | `collect` | a prompt | the same as `generate`, all but the first piece by `collect` |
//! | `frame` | a prompt | the same in bytes that `frame` makes and the guest reads: `<[1][9]>3` |
//! | `late` | a prompt | the same in JSON, where one piece was read before |
//! | `dropped` | a prompt | makes such bytes of another text and drops them; then as `generate` |
//! | `leaked` | a prompt | the same, and forgets them |
//! | `body` | a prompt | answers with such bytes in JSON: `<["1"]["9"]` |
//! | `forgotten` | a prompt | the same, with an end that never comes |
//! | `held` | a prompt | the same, with an end that the guest waits with for ever |
//! | `broken` | a prompt | the same of a long text, and traps when some of it is there |
//! | `leave` | a prompt | begins a `next` and drops it; then what comes after the prompt |
// Not forbid: the bindings are generated, with unsafe code.
#![deny(unsafe_code)]

mod handed;
mod loops;
mod wrong;

use std::sync::atomic::Ordering;

use wasip3::http::types::{ErrorCode, Fields, Request, Response};
use wasip3::{spawn_local, wit_future, wit_stream};

use bindings::corral::inference::types::Error;
use handed::Wrong;

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
            loops::MOST.store(most.parse().unwrap_or(1), Ordering::Relaxed);
        }
        let body = read(request).await;
        match path.rsplit('/').next() {
            Some("body") => return handed::body(&body, Wrong::Nothing).await,
            Some("held") => return handed::body(&body, Wrong::Held).await,
            Some("forgotten") => return handed::body(&body, Wrong::Forgotten).await,
            Some("broken") => return handed::body(&body, Wrong::Trap).await,
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
        "next" => loops::next(body).await,
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
        "collect" => handed::collected(body).await,
        "frame" => handed::framed(body, false, 0).await,
        "late" => handed::framed(body, true, 1).await,
        "dropped" => handed::dropped(body).await,
        "leaked" => handed::leaked(body).await,
        "info" => loops::info().await,
        "errors" => wrong::errors().await,
        "bomb" => wrong::bomb().await,
        "rows" => wrong::rows().await,
        "giant" => wrong::giant().await,
        "forged" => wrong::forged().await,
        "closed" => wrong::closed().await,
        other => Ok(format!("there is no loop {other}")),
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
