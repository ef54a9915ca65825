//! The events of a streamed chat completion.

use corral_sdk::http::EventFormat;
use corral_sdk::{Error, EventWriter, Outcome, Response};
use serde_json::{Value, json};

use super::response::{Logprobs, finish_reason};
use crate::conversation::{AnswerDelta, AnswerStream, FinishReason, OutputPart};
use crate::error::ApiFormat;
use crate::ids::{now, unique_id};
use crate::{generation::LogprobEntry, sse};

/// The last event.
pub const DONE: &str = "[DONE]";

/// The fields that all events share.
struct Stream {
    id: String,
    created: u64,
    model: String,
    /// Whether the request has `logprobs`.
    logprobs: bool,
    /// Whether the last event has the usage; in the others the field is then null.
    usage: bool,
    /// For each choice: whether it has started, and the number of tool calls so far.
    progress: Vec<(bool, usize)>,
}

pub fn respond(mut answers: AnswerStream, logprobs: bool, usage: bool) -> Response {
    let stream = Stream {
        id: unique_id("chatcmpl-"),
        created: now(),
        model: answers.model().name().to_owned(),
        logprobs,
        usage,
        progress: vec![(false, 0); answers.len()],
    };
    if let Some(generation) = answers.take_generation() {
        let event = |delta| stream.chunk(vec![stream.choice(0, delta, &[])]);
        let format = EventFormat::json(|text| event(json!({"content": text})));
        let format = format.with_first(&event(role()));
        return sse::text_events(
            ApiFormat::OpenAi,
            generation,
            format,
            async move |outcome, events| stream.end(answers, outcome?, events).await,
        );
    }
    sse::events(ApiFormat::OpenAi, async move |events| {
        stream.write(answers, events).await
    })
}

/// The first delta of a choice.
fn role() -> Value {
    json!({"role": "assistant", "content": "", "refusal": null})
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
        self.close(&answers, events).await
    }

    /// Writes the events after text that the host streamed.
    async fn end(
        self,
        mut answers: AnswerStream,
        outcome: Outcome,
        events: &mut EventWriter,
    ) -> Result<(), Error> {
        answers.set_outcome(outcome);
        self.write_finish(0, outcome.finish.into(), events).await?;
        self.close(&answers, events).await
    }

    /// Writes the events after all choices.
    async fn close(&self, answers: &AnswerStream, events: &mut EventWriter) -> Result<(), Error> {
        if self.usage {
            let mut last = self.chunk(Vec::new());
            last["usage"] = answers.usage()?.to_json();
            events.json(&last).await?;
        }
        events.data(DONE).await
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
            self.write_choice(index, role(), &[], events).await?;
        }
        // The logprobs belong to the whole delta; send them with its first event.
        let mut logprobs = &answer.logprobs[..];
        for part in answer.parts {
            let delta = self.part_delta(index, part, answers);
            self.write_choice(index, delta, logprobs, events).await?;
            logprobs = &[];
        }
        if !logprobs.is_empty() {
            self.write_choice(index, json!({"content": ""}), logprobs, events)
                .await?;
        }
        if let Some(finish) = answer.finish {
            self.write_finish(index, finish, events).await?;
        }
        Ok(())
    }

    /// Writes the last event of a choice.
    async fn write_finish(
        &self,
        index: usize,
        finish: FinishReason,
        events: &mut EventWriter,
    ) -> Result<(), Error> {
        let mut last = self.choice(index, json!({}), &[]);
        last["finish_reason"] = finish_reason(finish).into();
        events.json(&self.chunk(vec![last])).await
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

    async fn write_choice(
        &self,
        index: usize,
        delta: Value,
        logprobs: &[LogprobEntry],
        events: &mut EventWriter,
    ) -> Result<(), Error> {
        events
            .json(&self.chunk(vec![self.choice(index, delta, logprobs)]))
            .await
    }

    fn choice(&self, index: usize, delta: Value, logprobs: &[LogprobEntry]) -> Value {
        let logprobs = (self.logprobs && !logprobs.is_empty()).then_some(Logprobs(logprobs));
        json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": null})
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        });
        if self.usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}
