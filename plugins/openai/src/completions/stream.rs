//! The events of a streamed completion.

use corral_sdk::http::EventFormat;
use corral_sdk::{Error, EventWriter, Response};

use super::response::ResponseShape;
use crate::completion_chunks::CompletionChunks;
use crate::error::ApiFormat;
use crate::sse;
use conversation::generation::Choices;

pub fn respond(mut choices: Choices, format: ResponseShape, usage: bool) -> Response {
    let chunks = CompletionChunks::new("cmpl-", "text_completion", choices.model(), usage);
    if format.echo.is_empty()
        && let Some(generation) = choices.take_generation()
    {
        let event = |text: &str| chunks.chunk(&[format.choice(0, text, &[], &[], None)]);
        return sse::text_events(
            ApiFormat::OpenAi,
            generation,
            EventFormat::json(event),
            async move |outcome, events| {
                let outcome = outcome?;
                choices.set_outcome(outcome);
                let last = format.choice(0, "", &[], &[], Some(outcome.finish));
                events.json(&chunks.chunk(&[last])).await?;
                chunks.close(choices.usage(), events).await
            },
        );
    }
    sse::events(ApiFormat::OpenAi, async move |events| {
        write(choices, format, chunks, events).await
    })
}

async fn write(
    mut choices: Choices,
    format: ResponseShape,
    chunks: CompletionChunks,
    events: &mut EventWriter,
) -> Result<(), Error> {
    for index in 0..choices.count() {
        if let Some(echo) = format.echo_of(index) {
            let choice = format.choice(index, &echo.text, &echo.logprobs, &[], None);
            events.json(&chunks.chunk(&[choice])).await?;
        }
    }
    while let Some(delta) = choices.next().await? {
        let finish = delta.end.map(|end| end.finish);
        if delta.text.is_empty() && delta.logprobs.is_empty() && finish.is_none() {
            continue;
        }
        let choice = format.choice(delta.index, &delta.text, &[], &delta.logprobs, finish);
        events.json(&chunks.chunk(&[choice])).await?;
    }
    chunks.close(choices.usage(), events).await
}
