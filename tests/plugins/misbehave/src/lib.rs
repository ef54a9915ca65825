//! A handler with faulty and unusual behavior. The last segment of the path selects it.
//!
//! | segment | behavior |
//! |---|---|
//! | `ok` | responds with "ok" without a model |
//! | `state` | responds with the number of calls of this instance: 1 unless instances are reused |
//! | `echo` | responds with the request's body |
//! | `trap` | traps |
//! | `panic` | panics with a message on standard error |
//! | `spin` | loops forever without waiting |
//! | `hog` | allocates memory until that fails |
//! | `fields` | makes 3,800 lists of headers of 60 KB, holds them and responds with "ok" |
//! | `methods` | makes 100 requests with a method of 1 MB, holds them and responds with "ok" |
//! | `hoard` | keeps 16 lists of headers of 60 KB for ever and responds as `state` does |
//! | `sleeper` | waits on the clock for a year |
//! | `abandon` | starts a generation, reads one chunk, drops the rest and responds with "ok" |
//! | `keep` | keeps a sequence of some tokens for ever and responds as `state` does |
//! | `midtrap` | sends a head and a first piece of the body, then traps |
//! | `eventtrap` | sends the head of an event stream and an event, then traps |
//! | `linetrap` | sends the head of lines of JSON and a line, then traps |
//! | `midspin` | sends a head and a first piece of the body, then loops forever |
//! | `drip` | sends "drip" ten times a second forever |
//! | `flood` | sends an endless body as fast as it is read |
//! | `refuse` | returns an error instead of a response |
//! | `upgrade` | responds with the status 101 |
//! | `deaf` | responds with "ok" without reading the request's body |
//! | `hold` | sends its environment variables as `env` does, then the request's body as it arrives, then the variables again |
//! | `env` | responds with its environment variables, one per line, sorted |
//! | `headers` | responds with the request's headers, one per line, sorted |
//! | `models` | responds with the available models, the default first |
//! | `embed` | responds with the embeddings of the body's lines, one per line |
//! | `clocks` | responds with how far each clock moves while it computes and while it waits for 40 ms, see [`clocks`] |
//! | `random` | responds with a random number of WASI 0.3 |
//! | `keys` | responds with the hash of a text with the keys of the standard library, which it takes from WASI 0.2 |
//! | `insecure` | responds with insecure random numbers and the insecure seed |
//! | `log` | writes a line to standard output and one to standard error |
//!
//! Other segments get a 404.
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

mod faults;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use wasip3::clocks::{monotonic_clock, system_clock};
use wasip3::http::types::{ErrorCode, Fields, Method, Request, Response};
use wasip3::random::{insecure, insecure_seed, random};
use wasip3::wit_bindgen::StreamReader;
use wasip3::{spawn_local, wit_future, wit_stream};

use bindings::corral::inference::budget;
use bindings::corral::inference::inference::{Options, Sequence};
use bindings::corral::inference::inference_async::{embed as embed_tokens, generate, open_model};
use bindings::corral::inference::models::available;
use bindings::corral::inference::types::Error;
use faults::{hog, spin, trap};

#[allow(unsafe_code)]
mod bindings {
    wit_bindgen::generate!({ world: "imports", path: "../../../wit" });
}

struct Misbehave;

#[allow(unsafe_code)]
mod exports {
    use super::Misbehave;
    wasip3::http::service::export!(Misbehave);
}

const SECOND: u64 = 1_000_000_000;

static CALLS: AtomicU32 = AtomicU32::new(0);

impl wasip3::exports::http::handler::Guest for Misbehave {
    async fn handle(request: Request) -> Result<Response, ErrorCode> {
        let calls = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
        let path = request.get_path_with_query().unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        let text = match path.rsplit('/').next().unwrap_or_default() {
            "ok" | "deaf" => "ok".to_owned(),
            "state" => calls.to_string(),
            "echo" => return response(200, body(request)),
            "upgrade" => return response(101, body_of("switched")),
            "trap" => trap(),
            "panic" => panic!("misbehave panics on request"),
            "spin" => spin(),
            "hog" => hog(),
            "fields" => {
                let all: Vec<_> = (0..3800).map(|_| large_fields()).collect();
                std::hint::black_box(&all);
                "ok".to_owned()
            }
            "methods" => {
                let all: Vec<_> = (0..100).map(|_| large_request()).collect();
                std::hint::black_box(&all);
                "ok".to_owned()
            }
            "hoard" => {
                (0..16).for_each(|_| std::mem::forget(large_fields()));
                calls.to_string()
            }
            "sleeper" => {
                monotonic_clock::wait_for(365 * 24 * 3600 * SECOND).await;
                "awake".to_owned()
            }
            "abandon" => match abandon().await {
                Ok(()) => "ok".to_owned(),
                Err(error) => format!("{error:?}"),
            },
            "keep" => match keep().await {
                Ok(()) => calls.to_string(),
                Err(error) => format!("{error:?}"),
            },
            "midtrap" => return send_then(Fields::new(), b"begun\n", async { trap() }),
            "midspin" => return send_then(Fields::new(), b"begun\n", async { spin() }),
            "eventtrap" => {
                let headers = of_type("text/event-stream");
                return send_then(headers, b"data: begun\n\n", async { trap() });
            }
            "linetrap" => {
                let headers = of_type("application/x-ndjson");
                return send_then(headers, b"\"begun\"\n", async { trap() });
            }
            "drip" => return repeat("drip\n", SECOND / 10),
            "flood" => return repeat(&"flood\n".repeat(10_000), 0),
            "refuse" => {
                return Err(ErrorCode::InternalError(Some(
                    "refused on request".to_owned(),
                )));
            }
            "hold" => return hold(request),
            "env" => environment(),
            "headers" => {
                let headers = request.get_headers().copy_all();
                let mut lines: Vec<_> = headers
                    .iter()
                    .map(|(name, value)| {
                        format!(
                            "{name}: {}
",
                            String::from_utf8_lossy(value)
                        )
                    })
                    .collect();
                lines.sort();
                lines.concat()
            }
            "models" => available().join(","),
            "embed" => match embed(request).await {
                Ok(text) => text,
                Err(error) => format!("{error:?}"),
            },
            "clocks" => clocks().await,
            "random" => random::get_random_u64().to_string(),
            "keys" => RandomState::new().hash_one("text").to_string(),
            "insecure" => format!(
                "{} {:?} {:?}",
                insecure::get_insecure_random_u64(),
                insecure::get_insecure_random_bytes(4),
                insecure_seed::get_insecure_seed()
            ),
            "log" => {
                println!("a line on the standard output");
                eprintln!("a line on the standard error");
                "ok".to_owned()
            }
            _ => return response(404, body_of("unknown behavior\n")),
        };
        response(200, body_of(&text))
    }
}

fn environment() -> String {
    let variables = std::env::vars().map(|(key, value)| format!("{key}={value}\n"));
    let mut variables: Vec<_> = variables.collect();
    variables.sort();
    variables.concat()
}

/// Nanoseconds that pass on each clock: the monotonic clocks of WASI 0.3 and 0.2, both clocks of the time of day, and the time
/// of the budget. On the first line while this computes, on the second while it waits for 20 ms with a timer of each version.
/// Then the time of day, in milliseconds.
async fn clocks() -> String {
    let start = read_clocks();
    for number in 0..1_000_000_u32 {
        std::hint::black_box(number);
    }
    let computing = passed_since(start);
    let start = read_clocks();
    monotonic_clock::wait_for(SECOND / 50).await;
    std::thread::sleep(Duration::from_millis(20));
    let waiting = passed_since(start);
    let unix = SystemTime::now().duration_since(UNIX_EPOCH);
    let time = unix.unwrap_or_default().as_millis();
    format!("{computing}\n{waiting}\n{time}\n")
}

fn read_clocks() -> (u64, Instant, i128, SystemTime, u64) {
    let system = system_clock::now();
    (
        monotonic_clock::now(),
        Instant::now(),
        i128::from(system.seconds) * i128::from(SECOND) + i128::from(system.nanoseconds),
        SystemTime::now(),
        budget::remaining().time,
    )
}

fn passed_since(start: (u64, Instant, i128, SystemTime, u64)) -> String {
    let now = read_clocks();
    format!(
        "{} {} {} {} {}",
        now.0 - start.0,
        (now.1 - start.1).as_nanos(),
        now.2 - start.2,
        now.3.duration_since(start.3).unwrap_or_default().as_nanos(),
        start.4 - now.4,
    )
}

/// Embeds each line of the body.
async fn embed(request: Request) -> Result<String, Error> {
    let mut bytes = Vec::new();
    let mut body = body(request);
    while let Some(byte) = body.next().await {
        bytes.push(byte);
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let model = open_model(None).await?;
    let inputs = text.split('\n').map(|line| model.tokenize(line, false));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let vectors = embed_tokens(&model, inputs, None, None).await?;
    let line = |vector: &Vec<f32>| {
        let numbers: Vec<_> = vector.iter().map(f32::to_string).collect();
        numbers.join(" ")
    };
    Ok(vectors.iter().map(line).collect::<Vec<_>>().join("\n"))
}

/// Headers of 60 KB.
fn large_fields() -> Fields {
    let fields = Fields::new();
    let value = vec![b'x'; 60_000];
    fields
        .append("x", &value)
        .expect("within the limit of one list");
    fields
}

/// A request whose method has a megabyte. Nobody sends it.
fn large_request() -> Request {
    let (_, trailers) = wit_future::new(|| Ok(None));
    let (request, _) = Request::new(Fields::new(), None, trailers, None);
    let method = Method::Other("X".repeat(1 << 20));
    request.set_method(&method).expect("a valid method");
    request
}

async fn abandon() -> Result<(), Error> {
    let model = open_model(None).await?;
    let sequence = Sequence::create(&model)?;
    sequence.append(&model.tokenize("Once upon a time", false)?)?;
    let options = Options::new(10_000);
    options.ignore_eos();
    let (mut chunks, _) = generate(&sequence, &options)?;
    chunks.next().await;
    Ok(())
}

async fn keep() -> Result<(), Error> {
    let model = open_model(None).await?;
    let sequence = Sequence::create(&model)?;
    sequence.append(&model.tokenize("Once upon a time", false)?)?;
    std::mem::forget(sequence);
    Ok(())
}

/// The headers of a body of this type.
fn of_type(content_type: &str) -> Fields {
    let fields = Fields::new();
    let added = fields.append("content-type", content_type.as_bytes());
    added.expect("a valid header");
    fields
}

/// Responds with a head and `first`, then runs `rest`.
fn send_then(
    headers: Fields,
    first: &'static [u8],
    rest: impl Future<Output = ()> + 'static,
) -> Result<Response, ErrorCode> {
    let (mut writer, reader) = wit_stream::new();
    spawn_local(async move {
        writer.write_all(first.to_vec()).await;
        // Long enough for the host to send the piece.
        monotonic_clock::wait_for(SECOND / 10).await;
        rest.await;
    });
    response_with(headers, 200, reader)
}

/// Responds for as long as the request's body arrives.
fn hold(request: Request) -> Result<Response, ErrorCode> {
    let (mut writer, reader) = wit_stream::new();
    let mut body = body(request);
    spawn_local(async move {
        writer.write_all(environment().into_bytes()).await;
        while let Some(byte) = body.next().await {
            writer.write_all(vec![byte]).await;
        }
        writer.write_all(environment().into_bytes()).await;
    });
    response(200, reader)
}

/// Responds with `text` repeatedly until the client stops reading.
fn repeat(text: &str, pause: u64) -> Result<Response, ErrorCode> {
    let (mut writer, reader) = wit_stream::new();
    let text = text.as_bytes().to_vec();
    spawn_local(async move {
        while writer.write_all(text.clone()).await.is_empty() {
            if pause > 0 {
                monotonic_clock::wait_for(pause).await;
            }
        }
    });
    response(200, reader)
}

fn body(request: Request) -> StreamReader<u8> {
    let (_, processed) = wit_future::new(|| Ok(()));
    Request::consume_body(request, processed).0
}

fn body_of(text: &str) -> StreamReader<u8> {
    let (mut writer, reader) = wit_stream::new();
    let text = text.as_bytes().to_vec();
    spawn_local(async move { writer.write_all(text).await });
    reader
}

fn response(status: u16, body: StreamReader<u8>) -> Result<Response, ErrorCode> {
    response_with(Fields::new(), status, body)
}

fn response_with(
    headers: Fields,
    status: u16,
    body: StreamReader<u8>,
) -> Result<Response, ErrorCode> {
    let (_, trailers) = wit_future::new(|| Ok(None));
    let (response, _) = Response::new(headers, Some(body), trailers);
    response
        .set_status_code(status)
        .map_err(|()| ErrorCode::InternalError(None))?;
    Ok(response)
}
