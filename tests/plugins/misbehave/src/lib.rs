//! Everything a handler can do wrong, or oddly: the last segment of the path says which.
//!
//! | segment | what it does |
//! |---|---|
//! | `ok` | answers "ok" straight away, without a model |
//! | `state` | answers how often this instance was called: 1, unless instances are reused |
//! | `echo` | answers with the body of the request |
//! | `trap` | traps |
//! | `panic` | panics, with a message on the standard error |
//! | `spin` | never ends and never waits |
//! | `hog` | allocates until it cannot |
//! | `sleeper` | waits on the clock for a year |
//! | `abandon` | begins a generation, reads one chunk, drops the rest and answers "ok" |
//! | `midtrap` | sends a head and a first piece of the body, then traps |
//! | `midspin` | sends a head and a first piece of the body, then never ends |
//! | `drip` | sends "drip" ten times a second for ever |
//! | `flood` | sends a body without end as fast as it is read |
//! | `refuse` | returns an error instead of a response |
//! | `deaf` | answers "ok" and never reads the body of the request |
//! | `hold` | sends its environment variables as `env` does, then the body of the request as it comes, then the variables again |
//! | `env` | answers with its environment variables, each on a line, sorted |
//! | `headers` | answers with the headers of the request, each on a line, sorted |
//! | `models` | answers with the models that it may open, the default one first |
//! | `embed` | answers with the embeddings of two texts that are the body's two lines, a line of numbers each |
//! | `log` | writes a line to the standard output and one to the standard error |
//!
//! Anything else is answered by 404.
// Not forbid: the bindings are generated, with unsafe code.
#![deny(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

use wasip3::clocks::monotonic_clock;
use wasip3::http::types::{ErrorCode, Fields, Request, Response};
use wasip3::wit_bindgen::StreamReader;
use wasip3::{spawn_local, wit_future, wit_stream};

use bindings::corral::inference::inference::{Options, Sequence};
use bindings::corral::inference::models::{Model, available};
use bindings::corral::inference::types::Error;

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
            "trap" => trap(),
            "panic" => panic!("misbehave panics, as it was told to"),
            "spin" => spin(),
            "hog" => hog(),
            "sleeper" => {
                monotonic_clock::wait_for(365 * 24 * 3600 * SECOND).await;
                "awake".to_owned()
            }
            "abandon" => match abandon().await {
                Ok(()) => "ok".to_owned(),
                Err(error) => format!("{error:?}"),
            },
            "midtrap" => return begin_then(async { trap() }),
            "midspin" => return begin_then(async { spin() }),
            "drip" => return repeat("drip\n", SECOND / 10),
            "flood" => return repeat(&"flood\n".repeat(10_000), 0),
            "refuse" => {
                return Err(ErrorCode::InternalError(Some(
                    "as it was told to".to_owned(),
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
            "log" => {
                println!("a line on the standard output");
                eprintln!("a line on the standard error");
                "ok".to_owned()
            }
            _ => return response(404, whole("no such misbehaviour\n")),
        };
        response(200, whole(&text))
    }
}

fn environment() -> String {
    let mut variables: Vec<_> = std::env::vars()
        .map(|(key, value)| format!("{key}={value}\n"))
        .collect();
    variables.sort();
    variables.concat()
}

/// The embeddings of the body's lines, one line of numbers for each.
async fn embed(request: Request) -> Result<String, Error> {
    let mut bytes = Vec::new();
    let mut body = body(request);
    while let Some(byte) = body.next().await {
        bytes.push(byte);
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let model = Model::open(None).await?;
    let inputs = text.split('\n').map(|line| model.tokenize(line, false));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let vectors = model.embed(inputs, None, None).await?;
    let line = |vector: &Vec<f32>| {
        let numbers: Vec<_> = vector.iter().map(f32::to_string).collect();
        numbers.join(" ")
    };
    Ok(vectors.iter().map(line).collect::<Vec<_>>().join("\n"))
}

/// `unreachable` without a message, as a bug in a guest without a panic handler is.
fn trap() -> ! {
    std::process::abort()
}

fn spin() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

/// Takes memory in pieces that are written to, so that it is really taken.
fn hog() -> ! {
    let mut pieces = Vec::new();
    loop {
        pieces.push(vec![1_u8; 1024 * 1024]);
        std::hint::black_box(&pieces);
    }
}

async fn abandon() -> Result<(), Error> {
    let model = Model::open(None).await?;
    let sequence = Sequence::create(&model)?;
    sequence.append(&model.tokenize("Once upon a time", false)?)?;
    let options = Options::new(10_000);
    options.ignore_end();
    let (mut chunks, _) = sequence.generate(&options)?;
    chunks.next().await;
    Ok(())
}

/// Answers with a head and "begun", and then does what `rest` does.
fn begin_then(rest: impl Future<Output = ()> + 'static) -> Result<Response, ErrorCode> {
    let (mut writer, reader) = wit_stream::new();
    spawn_local(async move {
        writer.write_all(b"begun\n".to_vec()).await;
        // Long enough for the piece to leave the host.
        monotonic_clock::wait_for(SECOND / 10).await;
        rest.await;
    });
    response(200, reader)
}

/// Answers for as long as the body of the request comes.
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

/// Answers with `text` over and over, until nobody reads it any more.
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

fn whole(text: &str) -> StreamReader<u8> {
    let (mut writer, reader) = wit_stream::new();
    let text = text.as_bytes().to_vec();
    spawn_local(async move { writer.write_all(text).await });
    reader
}

fn response(status: u16, body: StreamReader<u8>) -> Result<Response, ErrorCode> {
    let (_, trailers) = wit_future::new(|| Ok(None));
    let (response, _) = Response::new(Fields::new(), Some(body), trailers);
    response
        .set_status_code(status)
        .map_err(|()| ErrorCode::InternalError(None))?;
    Ok(response)
}
