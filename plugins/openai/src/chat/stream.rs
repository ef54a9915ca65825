//! An answer as events.

use corral_sdk::http::Frame;
use corral_sdk::{Error, Events, Outcome, Response};
use serde_json::{Value, json};

use super::answer::{Logprobs, reason};
use crate::error::Dialect;
use crate::identity::{now, unique};
use crate::talk::{Answers, Finish, Part, Said};
use crate::{asking::Likely, sse};

/// What follows the last event.
pub const DONE: &str = "[DONE]";

/// What the events of an answer have in common.
struct Stream {
    id: String,
    created: u64,
    model: String,
    /// Whether probabilities were asked for.
    likely: bool,
    /// Whether the last event tells what it took; the others have an empty place for it then.
    usage: bool,
    /// For each answer, whether it has begun, and calls so far.
    begun: Vec<(bool, usize)>,
}

pub fn answer(mut answers: Answers, likely: bool, usage: bool) -> Response {
    let stream = Stream {
        id: unique("chatcmpl-"),
        created: now(),
        model: answers.model().name().to_owned(),
        likely,
        usage,
        begun: vec![(false, 0); answers.len()],
    };
    if let Some(generation) = answers.unseen() {
        let of = |delta| stream.chunk(vec![stream.choice(0, delta, &[])]);
        let frame = Frame::json(|text| of(json!({"content": text}))).first(&of(role()));
        return sse::forward(
            Dialect::OpenAi,
            generation,
            frame,
            async move |outcome, events| stream.end(answers, outcome?, events).await,
        );
    }
    sse::answer(Dialect::OpenAi, async move |events| {
        stream.tell(answers, events).await
    })
}

/// What an answer begins with.
fn role() -> Value {
    json!({"role": "assistant", "content": "", "refusal": null})
}

impl Stream {
    async fn tell(mut self, mut answers: Answers, events: &mut Events) -> Result<(), Error> {
        while let Some(said) = answers.next().await? {
            self.said(said, &answers, events).await?;
        }
        self.close(&answers, events).await
    }

    /// What follows the text of an answer that the host passed on.
    async fn end(
        self,
        mut answers: Answers,
        outcome: Outcome,
        events: &mut Events,
    ) -> Result<(), Error> {
        answers.ended(outcome);
        self.finish(0, outcome.finish.into(), events).await?;
        self.close(&answers, events).await
    }

    /// What follows all answers.
    async fn close(&self, answers: &Answers, events: &mut Events) -> Result<(), Error> {
        if self.usage {
            let mut last = self.chunk(Vec::new());
            last["usage"] = answers.usage()?.to_json();
            events.json(&last).await?;
        }
        events.data(DONE).await
    }

    async fn said(
        &mut self,
        said: Said,
        answers: &Answers,
        events: &mut Events,
    ) -> Result<(), Error> {
        let index = said.index;
        if !self.begun[index].0 {
            self.begun[index].0 = true;
            self.delta(index, role(), &[], events).await?;
        }
        // They belong to the piece as a whole, and go with the first event of it.
        let mut likely = &said.likely[..];
        for part in said.parts {
            let delta = self.part(index, part, answers);
            self.delta(index, delta, likely, events).await?;
            likely = &[];
        }
        if !likely.is_empty() {
            self.delta(index, json!({"content": ""}), likely, events)
                .await?;
        }
        if let Some(finish) = said.finish {
            self.finish(index, finish, events).await?;
        }
        Ok(())
    }

    /// The last event of an answer.
    async fn finish(&self, index: usize, why: Finish, events: &mut Events) -> Result<(), Error> {
        let mut last = self.choice(index, json!({}), &[]);
        last["finish_reason"] = reason(why).into();
        events.json(&self.chunk(vec![last])).await
    }

    fn part(&mut self, index: usize, part: Part, answers: &Answers) -> Value {
        let calls = &mut self.begun[index].1;
        match part {
            Part::Content(text) => json!({"content": text}),
            Part::Reasoning(text) => json!({"reasoning_content": text}),
            Part::Call(name) => {
                let call = json!({
                    "index": *calls,
                    "id": answers.name_for_call(),
                    "type": "function",
                    "function": {"name": name, "arguments": ""},
                });
                *calls += 1;
                json!({"tool_calls": [call]})
            }
            Part::Arguments(text) => json!({"tool_calls": [{
                "index": calls.saturating_sub(1),
                "function": {"arguments": text},
            }]}),
        }
    }

    async fn delta(
        &self,
        index: usize,
        delta: Value,
        likely: &[Likely],
        events: &mut Events,
    ) -> Result<(), Error> {
        events
            .json(&self.chunk(vec![self.choice(index, delta, likely)]))
            .await
    }

    fn choice(&self, index: usize, delta: Value, likely: &[Likely]) -> Value {
        let likely = (self.likely && !likely.is_empty()).then_some(Logprobs(likely));
        json!({"index": index, "delta": delta, "logprobs": likely, "finish_reason": null})
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
