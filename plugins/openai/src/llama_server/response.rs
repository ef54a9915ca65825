//! The response of a completion in the format of llama.cpp's server.

use corral_sdk::{Error, Finish, Model, Outcome, Response, Token};
use serde_json::{Map, Value, json};

use super::request::NativeRequest;
use super::settings_json;
use crate::serialize;
use crate::timings;
use conversation::generation::{Choices, LogprobEntry, TokenLogprob};

/// The parts of the request that shape the response.
pub struct NativeResponseShape {
    pub request: NativeRequest,
    /// The text of each prompt, with its control tokens.
    prompts: Vec<String>,
    /// Tokens of each prompt.
    lengths: Vec<usize>,
    settings: Value,
    model: Model,
}

/// What a choice has generated.
#[derive(Clone, Default)]
pub struct Generated {
    pub text: String,
    pub tokens: Vec<Token>,
    pub logprobs: Vec<LogprobEntry>,
    /// The bytes of the text, of which a stream keeps only the number.
    pub text_bytes: usize,
    pub has_new_line: bool,
}

impl Generated {
    /// Notes the text without keeping it.
    pub fn count(&mut self, text: &str, tokens: &[Token]) {
        self.text_bytes += text.len();
        self.has_new_line |= text.contains('\n');
        self.tokens.extend(tokens);
    }
}

impl NativeResponseShape {
    pub fn new(
        request: NativeRequest,
        model: &Model,
        prompts: &[Vec<Token>],
    ) -> Result<Self, Error> {
        let texts = prompts.iter();
        let texts = texts.map(|prompt| model.detokenize_with_control(prompt));
        Ok(NativeResponseShape {
            prompts: texts.collect::<Result<_, _>>()?,
            lengths: prompts.iter().map(Vec::len).collect(),
            settings: settings_json::json(&request.settings, &request.format, Some(model))?,
            model: model.clone(),
            request,
        })
    }

    /// The prompt of a choice.
    fn prompt_of(&self, index: usize) -> usize {
        index / self.request.settings.n as usize
    }

    /// Tokens of a choice's prompt.
    pub fn prompt_tokens(&self, index: usize) -> usize {
        self.lengths[self.prompt_of(index)]
    }

    /// The whole response of a choice, or the last event of its stream.
    pub fn last(&self, index: usize, made: &Generated, outcome: &Outcome) -> Result<Value, Error> {
        let stopped_by = match outcome.finish {
            Finish::Stop => self.stopped_by(made)?,
            Finish::End | Finish::Length => None,
        };
        let context = self.model.info().context;
        let length = outcome.prompt_tokens + outcome.generated_tokens;
        let wanted = self.request.settings.max_tokens.unwrap_or(u32::MAX);
        let truncated = outcome.finish == Finish::Length
            && length >= context
            && outcome.generated_tokens < wanted;
        let tokens = match self.request.return_tokens && !self.request.stream {
            true => &made.tokens[..],
            false => &[],
        };
        let mut response = json!({
            "index": index,
            "content": made.text,
            "tokens": tokens,
            "id_slot": -1,
            "stop": true,
            "model": self.model.name(),
            "tokens_predicted": outcome.generated_tokens,
            "tokens_evaluated": outcome.prompt_tokens,
            "generation_settings": self.settings,
            "prompt": self.prompts[self.prompt_of(index)],
            "has_new_line": made.has_new_line,
            "truncated": truncated,
            "stop_type": match outcome.finish {
                Finish::End => "eos",
                Finish::Stop => "word",
                Finish::Length => "limit",
            },
            "stopping_word": stopped_by.unwrap_or_default(),
            "tokens_cached": outcome.cached_tokens,
            "timings": timings::of_outcome(outcome),
        });
        if !made.logprobs.is_empty() {
            response["completion_probabilities"] = probabilities(&made.logprobs);
        }
        Ok(self.selected(response))
    }

    /// The stop string after the text.
    fn stopped_by(&self, made: &Generated) -> Result<Option<&str>, Error> {
        let bytes = self.model.detokenize_bytes(&made.tokens)?;
        let rest = bytes.get(made.text_bytes..).unwrap_or_default();
        let mut stops = self.request.settings.stop.iter();
        Ok(stops
            .find(|stop| rest.starts_with(stop.as_bytes()))
            .map(String::as_str))
    }

    /// The fields of `response_fields`: `A/B` names the field `B` of `A`.
    fn selected(&self, response: Value) -> Value {
        let fields = &self.request.response_fields;
        if fields.is_empty() {
            return response;
        }
        let mut selected = Map::new();
        for path in fields {
            if let Some(value) = response.pointer(&format!("/{path}")) {
                selected.insert(path.clone(), value.clone());
            }
        }
        selected.into()
    }
}

/// The entries of `completion_probabilities`.
pub fn probabilities(entries: &[LogprobEntry]) -> Value {
    let entries = entries.iter().map(|entry| {
        let top = entry.top.iter().map(token_json);
        let mut json = token_json(&entry.token);
        json["top_logprobs"] = top.collect();
        json
    });
    entries.collect()
}

fn token_json(token: &TokenLogprob) -> Value {
    json!({
        "id": token.id,
        "token": token.text(),
        "bytes": token.bytes,
        "logprob": token.json_logprob(),
    })
}

/// Waits for the end and builds the response: a list if there are several prompts or choices.
pub async fn respond(mut choices: Choices, shape: &NativeResponseShape) -> Result<Response, Error> {
    choices.read_whole();
    let mut made = vec![Generated::default(); choices.count()];
    while let Some(delta) = choices.next().await? {
        let one = &mut made[delta.index];
        one.count(&delta.text, &delta.tokens);
        one.text += &delta.text;
        one.logprobs.extend(delta.logprobs);
    }
    let responses = made.iter().enumerate();
    let responses =
        responses.map(|(index, made)| shape.last(index, made, &choices.outcome(index)?));
    let responses = responses.collect::<Result<Vec<_>, Error>>()?;
    match &responses[..] {
        [only] => serialize::respond(only),
        all => serialize::respond(&all),
    }
}
