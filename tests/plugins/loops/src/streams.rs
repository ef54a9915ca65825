//! Streams that the guest does not read: `collect` and `frame`.

use wasip3::http::types::{ErrorCode, Fields, Response};
use wasip3::wit_bindgen::StreamReader;
use wasip3::{spawn_local, wit_future, wit_stream};

use crate::bindings::corral::inference::inference::Options;
use crate::bindings::corral::inference::inference_async::{Framing, collect, frame, generate};
use crate::bindings::corral::inference::types::Error;
use crate::loops::{OpenModel, max_tokens};

/// Greedy options, as in `loops::generate`.
fn options(tokens: u32) -> Options {
    let options = Options::new(tokens);
    if tokens != max_tokens() || tokens > 24 {
        options.ignore_eos();
    }
    options
}

fn framing(json: bool) -> Framing {
    Framing {
        first: b"<".to_vec(),
        before: b"[".to_vec(),
        after: b"]".to_vec(),
        json,
    }
}

/// Reads the first chunk and `collect`s the rest.
pub async fn collected(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let sequence = model.sequence(prompt)?;
    let from = sequence.length();
    let (mut chunks, outcome) = generate(&sequence, &options(max_tokens()))?;
    let first = chunks.next().await.map(|chunk| chunk.text);
    let rest = collect(chunks).await?;
    let outcome = outcome.await?;
    // Collected tokens are part of the sequence.
    let tokens = sequence.length() - from;
    match tokens == outcome.generated_tokens {
        true => Ok(first.unwrap_or_default() + &rest.text),
        false => Err(Error::Failed(format!("{tokens} tokens"))),
    }
}

/// Drops the sequence before it reads the generation.
pub async fn outlived(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let sequence = model.sequence(prompt)?;
    let (mut chunks, outcome) = generate(&sequence, &options(max_tokens()))?;
    drop(sequence);
    let mut text = String::new();
    while let Some(chunk) = chunks.next().await {
        text += &chunk.text;
    }
    outcome.await?;
    Ok(text)
}

/// Drops sequences while their generations run, until it may hold no more. Then ends the generations and
/// generates after the prompt. Returns the number of generations, the error and the text.
pub async fn outliving(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let mut generations = Vec::new();
    let error = loop {
        let sequence = match model.sequence("1+1=") {
            Ok(sequence) => sequence,
            Err(error) => break error,
        };
        generations.push(generate(&sequence, &options(1))?.0);
    };
    let count = generations.len();
    drop(generations);
    let text = outlived(prompt).await?;
    Ok(format!("{count} {error:?}\n{text}"))
}

/// Reads the bytes that `frame` makes after `read` chunks.
pub async fn framed(prompt: &str, json: bool, read: usize) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let sequence = model.sequence(prompt)?;
    let (mut chunks, outcome) = generate(&sequence, &options(max_tokens()))?;
    let mut text = String::new();
    for _ in 0..read {
        text += &chunks
            .next()
            .await
            .map(|chunk| chunk.text)
            .unwrap_or_default();
    }
    let (mut writer, rest) = wit_stream::new();
    let mut bytes = frame(chunks, &framing(json), rest)?;
    spawn_local(async move {
        let end = match outcome.await {
            Ok(outcome) => format!(">{}", outcome.generated_tokens),
            Err(error) => format!("{error:?}"),
        };
        writer.write_all(end.into_bytes()).await;
    });
    let mut read = Vec::new();
    while let Some(byte) = bytes.next().await {
        read.push(byte);
    }
    Ok(text + &String::from_utf8_lossy(&read))
}

/// Drops a byte stream; then generates after the prompt.
pub async fn dropped(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let sequence = model.sequence("1+1=")?;
    let (chunks, outcome) = generate(&sequence, &options(2_000))?;
    let (_, rest) = wit_stream::new();
    drop(frame(chunks, &framing(false), rest)?);
    match outcome.await {
        Err(Error::Cancelled) => crate::loops::generate(prompt).await,
        other => Err(Error::Failed(format!("{other:?}"))),
    }
}

/// Leaks an unread byte stream; then generates after the prompt.
pub async fn leaked(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let sequence = model.sequence("1+1=")?;
    let (chunks, _) = generate(&sequence, &options(100))?;
    std::mem::forget(frame(chunks, &framing(false), wit_stream::new().1)?);
    crate::loops::generate(prompt).await
}

/// The failure in [`body`].
#[derive(Clone, Copy, PartialEq)]
pub enum BodyFault {
    None,
    /// The guest leaks its end of `rest`.
    Forgotten,
    /// The guest holds its end of `rest` forever.
    Held,
    /// The guest traps after part of the text.
    Trap,
}

/// Responds with the byte stream.
pub async fn body(prompt: &str, fault: BodyFault) -> Result<Response, ErrorCode> {
    let traps = fault == BodyFault::Trap;
    let stream = async {
        let model = OpenModel::new().await?;
        let sequence = model.sequence(prompt)?;
        let tokens = if traps { 4_000 } else { max_tokens() };
        let (chunks, outcome) = generate(&sequence, &options(tokens))?;
        let (writer, rest) = wit_stream::new();
        let bytes = frame(chunks, &framing(true), rest)?;
        Ok::<_, Error>((sequence, outcome, writer, bytes))
    };
    let started = stream.await.map_err(|_| ErrorCode::InternalError(None))?;
    let (sequence, outcome, writer, bytes) = started;
    spawn_local(async move {
        while traps && sequence.length() < 100 {
            wasip3::clocks::monotonic_clock::wait_for(1_000_000).await;
        }
        // The generation continues without its sequence.
        drop(sequence);
        let complete = !traps && outcome.await.is_ok();
        assert!(complete, "the response must not look complete");
        match fault {
            BodyFault::Forgotten => std::mem::forget(writer),
            BodyFault::Held => loop {
                wasip3::clocks::monotonic_clock::wait_for(1_000_000_000).await;
            },
            BodyFault::None | BodyFault::Trap => drop(writer),
        }
    });
    answer(bytes)
}

fn answer(bytes: StreamReader<u8>) -> Result<Response, ErrorCode> {
    let (_, trailers) = wit_future::new(|| Ok(None));
    Ok(Response::new(Fields::new(), Some(bytes), trailers).0)
}

/// A chunk stream that the guest created.
pub fn guest_stream() -> StreamReader<crate::bindings::corral::inference::inference::Chunk> {
    crate::bindings::wit_stream::new().1
}
