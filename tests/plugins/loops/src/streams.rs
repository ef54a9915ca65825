//! Text that the guest does not look at: what `collect` and `frame` are given.

use wasip3::http::types::{ErrorCode, Fields, Response};
use wasip3::wit_bindgen::StreamReader;
use wasip3::{spawn_local, wit_future, wit_stream};

use crate::bindings::corral::inference::inference::{Framing, Options, collect, frame};
use crate::bindings::corral::inference::types::Error;
use crate::loops::{Opened, most};

/// Greedy, as `loops::generate`.
fn options(tokens: u32) -> Options {
    let options = Options::new(tokens);
    if tokens != most() || tokens > 24 {
        options.ignore_end();
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

/// What is generated: the first chunk, and all that is left, by `collect`.
pub async fn collected(prompt: &str) -> Result<String, Error> {
    let opened = Opened::new().await?;
    let sequence = opened.sequence(prompt)?;
    let from = sequence.length();
    let (mut chunks, outcome) = sequence.generate(&options(most()))?;
    let first = chunks.next().await.map(|chunk| chunk.text);
    let rest = collect(chunks).await?;
    let outcome = outcome.await?;
    // What was collected stands in the sequence.
    let tokens = sequence.length() - from;
    match tokens == outcome.generated_tokens {
        true => Ok(first.unwrap_or_default() + &rest.text),
        false => Err(Error::Failed(format!("{tokens} tokens"))),
    }
}

/// The bytes that `frame` makes, read here; `read` chunks were read before.
pub async fn framed(prompt: &str, json: bool, read: usize) -> Result<String, Error> {
    let opened = Opened::new().await?;
    let sequence = opened.sequence(prompt)?;
    let (mut chunks, outcome) = sequence.generate(&options(most()))?;
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

/// Makes bytes of it, and drops them; then what comes after the prompt.
pub async fn dropped(prompt: &str) -> Result<String, Error> {
    let opened = Opened::new().await?;
    let sequence = opened.sequence("1+1=")?;
    let (chunks, outcome) = sequence.generate(&options(2_000))?;
    let (_, rest) = wit_stream::new();
    drop(frame(chunks, &framing(false), rest)?);
    match outcome.await {
        Err(Error::Cancelled) => crate::loops::generate(prompt).await,
        other => Err(Error::Failed(format!("{other:?}"))),
    }
}

/// Forgets a stream of bytes that nobody reads; then what comes after the prompt.
pub async fn leaked(prompt: &str) -> Result<String, Error> {
    let opened = Opened::new().await?;
    let sequence = opened.sequence("1+1=")?;
    let (chunks, _) = sequence.generate(&options(100))?;
    std::mem::forget(frame(chunks, &framing(false), wit_stream::new().1)?);
    crate::loops::generate(prompt).await
}

/// What is to go wrong with [`body`].
#[derive(Clone, Copy, PartialEq)]
pub enum Wrong {
    Nothing,
    /// The guest forgets its end of the rest.
    Forgotten,
    /// It holds it, and is never over.
    Held,
    /// It traps when some of the text is there.
    Trap,
}

/// Answers with the bytes.
pub async fn body(prompt: &str, wrong: Wrong) -> Result<Response, ErrorCode> {
    let traps = wrong == Wrong::Trap;
    let stream = async {
        let opened = Opened::new().await?;
        let sequence = opened.sequence(prompt)?;
        let tokens = if traps { 4_000 } else { most() };
        let (chunks, outcome) = sequence.generate(&options(tokens))?;
        let (writer, rest) = wit_stream::new();
        let bytes = frame(chunks, &framing(true), rest)?;
        Ok::<_, Error>((sequence, outcome, writer, bytes))
    };
    let begun = stream.await.map_err(|_| ErrorCode::InternalError(None))?;
    let (sequence, outcome, writer, bytes) = begun;
    spawn_local(async move {
        while traps && sequence.length() < 100 {
            wasip3::clocks::monotonic_clock::wait_for(1_000_000).await;
        }
        // What it generates goes on as long as its sequence is there.
        let whole = !traps && outcome.await.is_ok();
        assert!(whole, "the answer must not look whole");
        match wrong {
            Wrong::Forgotten => std::mem::forget(writer),
            Wrong::Held => loop {
                wasip3::clocks::monotonic_clock::wait_for(1_000_000_000).await;
            },
            Wrong::Nothing | Wrong::Trap => drop(writer),
        }
    });
    answer(bytes)
}

fn answer(bytes: StreamReader<u8>) -> Result<Response, ErrorCode> {
    let (_, trailers) = wit_future::new(|| Ok(None));
    Ok(Response::new(Fields::new(), Some(bytes), trailers).0)
}

/// A stream of chunks of the guest's own.
pub fn own() -> StreamReader<crate::bindings::corral::inference::inference::Chunk> {
    crate::bindings::wit_stream::new().1
}
