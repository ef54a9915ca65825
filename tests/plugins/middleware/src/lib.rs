//! Middleware whose behavior a request selects. It takes the first word off the header `x-middleware`, so that the next
//! middleware of a chain has the second word, and adds the word to the response as `x-passed`. Without that header, it passes
//! the request on as it is.
//!
//! | word | behavior |
//! |---|---|
//! | `pass` | only that |
//! | `deny` | responds with 401 |
//! | `environment` | responds with its environment variables, one per line |
//! | `folder` | responds with the file `/docs/file`, or nothing if it cannot read it |
//! | `clock` | responds with the nanoseconds that pass while it computes |
//! | `keys` | responds with the hash of a text with the keys of the standard library, which are random |
//! | `upper` | responds with the handler's body in upper case, piece by piece |
//! | `rewrite` | sends the handler the request's body in upper case |
//! | `stand-in` | responds with "stand-in" if the handler does not answer |
//! | `trap` | panics |
//! | `trap-late` | panics after the first piece of the response |
//! | `spin` | loops forever |

use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use corral_sdk::middleware::Next;
use corral_sdk::{Error, Request, Response};

corral_sdk::middleware!(stand_before);

const WORDS: &str = "x-middleware";

async fn stand_before(request: Request, next: Next) -> Result<Response, Error> {
    let Some(words) = request.header(WORDS) else {
        return next.handle(request).await;
    };
    let (word, rest) = words.split_once(' ').unwrap_or((words, ""));
    let (word, rest) = (word.to_owned(), rest.to_owned());
    let mut request = request.without_header(WORDS);
    if !rest.is_empty() {
        request = request.with_header(WORDS, &rest);
    }
    let response = match word.as_str() {
        "pass" => next.handle(request).await?,
        "deny" => return Err(Error::new(401, "denied", "this request was denied")),
        "environment" => {
            let variables = std::env::vars().map(|(name, value)| format!("{name}={value}\n"));
            return Ok(Response::text(variables.collect::<String>()));
        }
        "folder" => {
            let text = std::fs::read_to_string("/docs/file");
            return Ok(Response::text(text.unwrap_or_default()));
        }
        "clock" => {
            let start = Instant::now();
            for number in 0..1_000_000_u32 {
                std::hint::black_box(number);
            }
            return Ok(Response::text(start.elapsed().as_nanos().to_string()));
        }
        "keys" => {
            let hash = RandomState::new().hash_one("text");
            return Ok(Response::text(hash.to_string()));
        }
        "upper" => in_pieces(next.handle(request).await?, false),
        "trap-late" => in_pieces(next.handle(request).await?, true),
        "rewrite" => {
            let body = request.text().await?.to_uppercase();
            next.handle(request.with_body(body)).await?
        }
        "stand-in" => {
            let answered = next.handle(request).await;
            answered.unwrap_or_else(|_| Response::text("stand-in"))
        }
        "trap" => panic!("as requested"),
        "spin" => loop {
            std::hint::black_box(0);
        },
        other => {
            let detail = format!("there is no behavior '{other}'");
            return Err(Error::bad_request("no-behavior", detail));
        }
    };
    Ok(response.with_header("x-passed", &word))
}

fn in_pieces(mut response: Response, traps: bool) -> Response {
    let mut body = response.take_body();
    response.with_stream(async move |to| {
        while let Some(piece) = body.read().await? {
            to.bytes(piece.to_ascii_uppercase()).await?;
            assert!(!traps, "as requested");
        }
        Ok(())
    })
}
