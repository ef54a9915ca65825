//! The events of a streamed completion in the format of llama.cpp's server.

use corral_sdk::{Error, EventWriter, Response};
use serde_json::{Value, json};

use super::response::{Generated, NativeResponseShape, probabilities};
use crate::sse;
use crate::timings::Stopwatch;
use conversation::generation::{ChoiceDelta, Choices};

pub fn respond(choices: Choices, shape: NativeResponseShape) -> Response {
    sse::native_events(async move |events| write(choices, shape, events).await)
}

/// A choice's progress.
struct Progress {
    made: Generated,
    stopwatch: Stopwatch,
    started: bool,
}

async fn write(
    mut choices: Choices,
    shape: NativeResponseShape,
    events: &mut EventWriter,
) -> Result<(), Error> {
    let all = (0..choices.count()).map(|index| Progress {
        made: Generated::default(),
        stopwatch: Stopwatch::start(u32::try_from(shape.prompt_tokens(index)).unwrap_or(u32::MAX)),
        started: false,
    });
    let mut all: Vec<_> = all.collect();
    while let Some(delta) = choices.next().await? {
        let progress = &mut all[delta.index];
        let index = delta.index;
        let end = delta.end;
        if !progress.started && shape.request.return_progress {
            let mut event = partial(index, "", progress, &shape);
            event["prompt_progress"] = progress.stopwatch.progress();
            events.json(&event).await?;
        }
        progress.started = true;
        for event in partials(delta, progress, &shape) {
            events.json(&event).await?;
        }
        if end.is_some() {
            let outcome = choices.outcome(index)?;
            let last = shape.last(index, &all[index].made, &outcome)?;
            events.json(&last).await?;
        }
    }
    Ok(())
}

/// The events of a delta: one, or one for each token with probabilities, as clients expect.
fn partials(
    delta: ChoiceDelta,
    progress: &mut Progress,
    shape: &NativeResponseShape,
) -> Vec<Value> {
    progress.made.count(&delta.text, &delta.tokens);
    let predicted = u32::try_from(progress.made.tokens.len()).unwrap_or(u32::MAX);
    let timings = progress.stopwatch.at(predicted);
    let mut events = Vec::new();
    if shape.request.settings.logprobs.is_some() {
        let whole: Vec<_> = delta
            .logprobs
            .iter()
            .flat_map(|entry| entry.token.bytes.clone())
            .collect();
        // A token may be a part of a character; the last event then has the text of all.
        let one_by_one = whole == delta.text.as_bytes()
            && delta
                .logprobs
                .iter()
                .all(|entry| std::str::from_utf8(&entry.token.bytes).is_ok());
        let last = delta.logprobs.len().saturating_sub(1);
        for (at, entry) in delta.logprobs.into_iter().enumerate() {
            let text = match (one_by_one, at == last) {
                (true, _) => entry.token.text().into_owned(),
                (false, true) => delta.text.clone(),
                (false, false) => String::new(),
            };
            let mut event = partial(delta.index, &text, progress, shape);
            event["tokens"] = json!([entry.token.id]);
            event["completion_probabilities"] = probabilities(&[entry]);
            events.push(event);
        }
    }
    if events.is_empty()
        && (!delta.text.is_empty()
            || (!delta.tokens.is_empty() && shape.request.settings.logprobs.is_none()))
    {
        let mut event = partial(delta.index, &delta.text, progress, shape);
        event["tokens"] = json!(delta.tokens);
        events.push(event);
    }
    if shape.request.timings_per_token {
        for event in &mut events {
            event["timings"] = timings.clone();
        }
    }
    events
}

fn partial(index: usize, text: &str, progress: &Progress, shape: &NativeResponseShape) -> Value {
    json!({
        "index": index,
        "content": text,
        "tokens": [],
        "stop": false,
        "id_slot": -1,
        "tokens_predicted": progress.made.tokens.len(),
        "tokens_evaluated": shape.prompt_tokens(index),
    })
}
