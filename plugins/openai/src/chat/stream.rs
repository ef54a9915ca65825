//! The events of a streamed chat completion.

use corral_sdk::http::EventFormat;
use corral_sdk::{Error, EventWriter, Response};
use serde_json::{Value, json};

use super::response::{Logprobs, finish_reason};
use crate::completion_chunks::CompletionChunks;
use crate::error::ApiFormat;
use crate::shared_fields::StreamOptions;
use crate::sse;
use crate::timings::Stopwatch;
use conversation::generation::LogprobEntry;
use conversation::{AnswerDelta, AnswerStream, FinishReason, OutputPart};

struct Stream {
    chunks: CompletionChunks,
    /// Whether the request has `logprobs`.
    logprobs: bool,
    /// For each choice: whether it has started, and the number of tool calls so far.
    progress: Vec<(bool, usize)>,
    options: StreamOptions,
    stopwatch: Stopwatch,
    /// The fields of llama.cpp's server that the next events have.
    extra: Vec<(&'static str, Value)>,
}

pub fn respond(mut answers: AnswerStream, logprobs: bool, options: StreamOptions) -> Response {
    let object = "chat.completion.chunk";
    let stream = Stream {
        chunks: CompletionChunks::new("chatcmpl-", object, answers.model(), options.usage),
        logprobs,
        progress: vec![(false, 0); answers.count()],
        options,
        stopwatch: Stopwatch::start(answers.prompt_tokens()),
        extra: Vec::new(),
    };
    if !options.need_events()
        && let Some(generation) = answers.take_generation()
    {
        let event = |delta| stream.event(0, delta, &[]);
        let format = EventFormat::json(|text| event(json!({"content": text})));
        let format = format.with_first(&event(role()));
        return sse::text_events(
            ApiFormat::OpenAi,
            generation,
            format,
            async move |outcome, events| {
                let outcome = outcome?;
                answers.set_outcome(outcome);
                let finish = outcome.finish.into();
                let finish = stream.finish_event(0, finish);
                let usage = answers.usage()?;
                let chunks = &stream.chunks;
                chunks.close(Some(&finish), usage, &outcome, events).await
            },
        );
    }
    sse::events(ApiFormat::OpenAi, async move |events| {
        stream.write(answers, events).await
    })
}

/// The first delta of a choice. Its content is null, as clients of llama.cpp's server expect.
fn role() -> Value {
    json!({"role": "assistant", "content": null, "refusal": null})
}

impl Stream {
    async fn write(
        mut self,
        mut answers: AnswerStream,
        events: &mut EventWriter,
    ) -> Result<(), Error> {
        while let Some(delta) = answers.next().await? {
            self.write_delta(delta, &answers, events).await?;
        }
        let first = answers.outcome(0)?;
        let usage = answers.usage()?;
        self.chunks.close(None, usage, &first, events).await
    }

    async fn write_delta(
        &mut self,
        answer: AnswerDelta,
        answers: &AnswerStream,
        events: &mut EventWriter,
    ) -> Result<(), Error> {
        let index = answer.index;
        if !self.progress[index].0 {
            self.progress[index].0 = true;
            if self.options.progress {
                self.extra = vec![("prompt_progress", self.stopwatch.progress())];
            }
            events.json(&self.event(index, role(), &[])).await?;
            self.extra.clear();
        }
        if self.options.timings {
            let timings = self.stopwatch.at(answers.generated_tokens(index));
            self.extra = vec![("timings", timings)];
        }
        // The logprobs belong to the whole delta; send them with its first event.
        let mut logprobs = &answer.logprobs[..];
        for part in answer.parts {
            let delta = self.part_delta(index, part, answers);
            events.json(&self.event(index, delta, logprobs)).await?;
            logprobs = &[];
        }
        if !logprobs.is_empty() {
            let delta = json!({"content": ""});
            events.json(&self.event(index, delta, logprobs)).await?;
        }
        if let Some(finish) = answer.finish {
            events.json(&self.finish_event(index, finish)).await?;
        }
        Ok(())
    }

    /// The last event of a choice.
    fn finish_event(&self, index: usize, finish: FinishReason) -> Value {
        let mut last = self.choice(index, json!({}), &[]);
        last["finish_reason"] = finish_reason(finish).into();
        self.with_extra(self.chunks.chunk(&[last]))
    }

    fn part_delta(&mut self, index: usize, part: OutputPart, answers: &AnswerStream) -> Value {
        let calls = &mut self.progress[index].1;
        match part {
            OutputPart::Content(text) => json!({"content": text}),
            OutputPart::Reasoning(text) => json!({"reasoning_content": text}),
            OutputPart::ToolCall(name) => {
                let call = json!({
                    "index": *calls,
                    "id": answers.new_call_id(),
                    "type": "function",
                    "function": {"name": name, "arguments": ""},
                });
                *calls += 1;
                json!({"tool_calls": [call]})
            }
            OutputPart::Arguments(text) => json!({"tool_calls": [{
                "index": calls.saturating_sub(1),
                "function": {"arguments": text},
            }]}),
        }
    }

    fn event(&self, index: usize, delta: Value, logprobs: &[LogprobEntry]) -> Value {
        self.with_extra(self.chunks.chunk(&[self.choice(index, delta, logprobs)]))
    }

    fn with_extra(&self, mut event: Value) -> Value {
        for (name, value) in &self.extra {
            event[*name] = value.clone();
        }
        event
    }

    fn choice(&self, index: usize, delta: Value, logprobs: &[LogprobEntry]) -> Value {
        let logprobs = (self.logprobs && !logprobs.is_empty()).then_some(Logprobs(logprobs));
        json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": null})
    }
}
