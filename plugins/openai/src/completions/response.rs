//! The response of a completion that is not streamed.

use corral_sdk::{Error, Finish, Response};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::prompt_logprobs::Echo;
use crate::serialize::{self, CompletionResponse, JsonArray, JsonObject};
use crate::timings::{self, SYSTEM_FINGERPRINT};
use conversation::generation::{Choices, LogprobEntry, TokenLogprob};
use conversation::ids::{now, unique_id};

/// The parts of the request that shape the response.
pub struct ResponseShape {
    /// Whether to return log probabilities, and of how many most likely tokens.
    pub logprobs: Option<u8>,
    /// Choices per prompt that are generated.
    pub per_prompt: usize,
    /// The best of these that are returned.
    pub returned: usize,
    /// The echoed prompts; empty without `echo`.
    pub echo: Vec<Echo>,
}

impl ResponseShape {
    /// The echoed prompt of a choice.
    pub fn echo_of(&self, index: usize) -> Option<&Echo> {
        self.echo.get(index / self.per_prompt)
    }

    /// A choice: the whole text with its echo, or a part of the text after the echo.
    pub fn choice<'a>(
        &'a self,
        index: usize,
        text: &'a str,
        echoed: &'a [LogprobEntry],
        generated: &'a [LogprobEntry],
        finish: Option<Finish>,
    ) -> Choice<'a> {
        let before = self.echo_of(index).map_or(0, |echo| echo.characters);
        Choice {
            index,
            text,
            logprobs: self.logprobs.map(|top| CompletionLogprobs {
                echoed,
                generated,
                before,
                top,
            }),
            finish_reason: finish.map(|finish| match finish {
                Finish::End | Finish::Stop => "stop",
                Finish::Length => "length",
            }),
        }
    }
}

/// A choice or a part of one.
#[derive(Serialize)]
pub struct Choice<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<CompletionLogprobs<'a>>,
    finish_reason: Option<&'static str>,
}

/// Waits for the end and builds the response.
pub async fn respond(mut choices: Choices, format: &ResponseShape) -> Result<Response, Error> {
    choices.read_whole();
    let echoes: Vec<_> = (0..choices.count())
        .map(|index| format.echo_of(index))
        .collect();
    let texts = echoes.iter();
    let mut texts: Vec<_> = texts
        .map(|echo| echo.map_or_else(String::new, |echo| echo.text.clone()))
        .collect();
    let mut logprobs = vec![Vec::new(); texts.len()];
    let mut finish = vec![None; texts.len()];
    while let Some(delta) = choices.next().await? {
        texts[delta.index] += &delta.text;
        logprobs[delta.index].extend(delta.logprobs);
        finish[delta.index] = delta.end.map(|end| end.finish);
    }
    let generated: Vec<_> = (0..echoes.len()).collect();
    let chosen = generated
        .chunks(format.per_prompt)
        .flat_map(|of_prompt| best(of_prompt, &logprobs, format.returned));
    let choices_json = chosen.enumerate().map(|(index, at)| {
        let echoed = echoes[at].map_or(&[][..], |echo| &echo.logprobs);
        let choice = format.choice(at, &texts[at], echoed, &logprobs[at], finish[at]);
        Choice { index, ..choice }
    });
    serialize::respond(&CompletionResponse {
        id: unique_id("cmpl-"),
        object: "text_completion",
        created: now(),
        model: choices.model().name(),
        system_fingerprint: SYSTEM_FINGERPRINT,
        choices: choices_json.collect(),
        usage: choices.usage().to_json(),
        timings: timings::of_outcome(&choices.outcome(0)?),
        verbose: None,
    })
}

/// The choices of a prompt with the highest log probability per token, the best first; all in their order
/// if all are returned.
fn best(of_prompt: &[usize], logprobs: &[Vec<LogprobEntry>], count: usize) -> Vec<usize> {
    let mut ranked = of_prompt.to_vec();
    if count < ranked.len() {
        let mean = |choice: usize| {
            let entries = logprobs[choice].iter();
            let sum: f32 = entries.filter_map(|entry| entry.token.logprob).sum();
            sum / logprobs[choice].len().max(1) as f32
        };
        ranked.sort_by(|one, other| mean(*other).total_cmp(&mean(*one)));
        ranked.truncate(count);
    }
    ranked
}

/// Log probabilities as parallel lists, the format of this older API. Serialized entry by entry,
/// since they are most of a long response.
pub struct CompletionLogprobs<'a> {
    /// Entries of the echoed prompt.
    echoed: &'a [LogprobEntry],
    generated: &'a [LogprobEntry],
    /// Number of characters before `generated`.
    before: usize,
    /// Number of most likely tokens to return.
    top: u8,
}

impl Serialize for CompletionLogprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all = || self.echoed.iter().chain(self.generated);
        let offsets = || {
            let echoed = self.echoed.iter().map(|entry| entry.offset);
            let generated = self.generated.iter();
            echoed.chain(generated.map(|entry| self.before + entry.offset))
        };
        let top = JsonArray(|| all().map(top_logprobs));
        let mut fields = serializer.serialize_struct("logprobs", 4)?;
        fields.serialize_field(
            "tokens",
            &JsonArray(|| all().map(|entry| entry.token.text())),
        )?;
        fields.serialize_field(
            "token_logprobs",
            &JsonArray(|| all().map(|entry| entry.token.json_logprob())),
        )?;
        fields.serialize_field("top_logprobs", &(self.top > 0).then_some(top))?;
        fields.serialize_field("text_offset", &JsonArray(offsets))?;
        fields.end()
    }
}

/// The most likely tokens at a position, and the token itself if it is not among them; `None` if
/// unknown. Of tokens with the same text, only the most likely one.
fn top_logprobs(entry: &LogprobEntry) -> Option<impl Serialize> {
    entry.token.logprob?;
    let is_first = |at: usize, token: &TokenLogprob| {
        let text = token.text();
        entry.top[..at].iter().all(|other| other.text() != text)
    };
    Some(JsonObject(move || {
        let all = entry.top.iter().chain([&entry.token]).enumerate();
        let first = all.filter(move |(at, token)| is_first(*at, token));
        first.map(|(_, token)| (token.text(), token.json_logprob()))
    }))
}
