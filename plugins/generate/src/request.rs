//! The body of a request: what is read from it, and every way in which it can be wrong.
//!
//! Nothing is dropped in silence: a field that is not known is an error which names it, and so is
//! a value that could not be honoured as it stands. `null` counts as absent.

use corral_sdk::fields::Fields;
use corral_sdk::template::Chat;
use corral_sdk::{Error, Grammar};
use serde_json::Value;

use crate::constraint::constraint;
use crate::sampling::{self, Sampler};

/// What `max_tokens` is when the request does not say.
pub const DEFAULT_MAX_TOKENS: u32 = 128;
/// As many stop strings, and as long ones, as the host takes.
const STOP_COUNT_LIMIT: usize = 16;
const STOP_LENGTH_LIMIT: usize = 256;
/// As many likeliest tokens as the host tells.
pub const LOGPROBS_LIMIT: u8 = 20;
/// As many guesses as the host takes.
pub const SPECULATE_LIMIT: u8 = 16;

const FIELDS: [&str; 19] = [
    "prompt",
    "messages",
    "tools",
    "model",
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "samplers",
    "seed",
    "stop",
    "ignore_end",
    "constraint",
    "logprobs",
    "speculate",
    "adapter",
    "stream",
    "template_arguments",
];

/// A request that can be tried.
#[derive(Debug, PartialEq)]
pub struct Request {
    /// The model by name, or the deployment's default.
    pub model: Option<String>,
    pub input: Input,
    pub settings: Settings,
    /// Whether the answer is a stream of events.
    pub stream: bool,
}

/// What the model is to continue.
#[derive(Debug, PartialEq)]
pub enum Input {
    /// Text, taken as it stands; control tokens that are written in it are control tokens.
    Prompt(String),
    /// A conversation, for the model's chat template.
    Chat(Chat),
}

/// How to generate.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub max_tokens: u32,
    /// The chain, in the order in which it is applied; empty is greedy.
    pub samplers: Vec<Sampler>,
    pub seed: Option<u64>,
    pub stop: Vec<String>,
    pub ignore_end: bool,
    /// What the text must look like.
    pub constraint: Option<Grammar>,
    /// Whether to tell how likely each token was, and how many of the likeliest.
    pub logprobs: Option<u8>,
    /// Most tokens that are guessed at once.
    pub speculate: u8,
    /// The adapter by name.
    pub adapter: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            max_tokens: DEFAULT_MAX_TOKENS,
            samplers: Vec::new(),
            seed: None,
            stop: Vec::new(),
            ignore_end: false,
            constraint: None,
            logprobs: None,
            speculate: 0,
            adapter: None,
        }
    }
}

/// Reads a request from the JSON text of its body.
pub fn parse(body: &[u8]) -> Result<Request, Error> {
    let mut fields = Fields::parse(body)?;
    fields.reject_unknown(&FIELDS)?;

    let input = input(&mut fields)?;
    let settings = Settings {
        max_tokens: fields
            .integer("max_tokens", 1..=u32::MAX)?
            .unwrap_or(DEFAULT_MAX_TOKENS),
        samplers: sampling::chain(&mut fields)?,
        seed: fields.integer("seed", 0..=u64::MAX)?,
        stop: stop(&mut fields)?,
        ignore_end: fields.flag("ignore_end")?,
        constraint: constraint(&mut fields)?,
        logprobs: fields.integer("logprobs", 0..=LOGPROBS_LIMIT)?,
        speculate: fields
            .integer("speculate", 0..=SPECULATE_LIMIT)?
            .unwrap_or(0),
        adapter: fields.text("adapter")?,
    };
    Ok(Request {
        model: fields.text("model")?,
        input,
        settings,
        stream: fields.flag("stream")?,
    })
}

fn input(fields: &mut Fields) -> Result<Input, Error> {
    let prompt = fields.text("prompt")?;
    let messages = fields.list("messages")?;
    let tools = fields.list("tools")?;
    let variables = match fields.take("template_arguments") {
        None => None,
        Some(Value::Object(map)) => Some(map),
        Some(other) => {
            return Err(Error::wrong_type(
                "`template_arguments`",
                "an object",
                &other,
            ));
        }
    };
    match (prompt, messages) {
        (Some(_), Some(_)) => Err(Error::bad_request(
            "ambiguous-input",
            "both `prompt` and `messages` are present; expected exactly one",
        )),
        (None, None) => Err(Error::bad_request(
            "missing-input",
            "neither `prompt` nor `messages` is present; expected exactly one",
        )),
        (Some(prompt), None) => {
            for (name, given) in [
                ("tools", tools.is_some()),
                ("template_arguments", variables.is_some()),
            ] {
                if given {
                    return Err(Error::bad_request(
                        "ambiguous-input",
                        format!("`{name}` requires `messages`: only the chat template uses it"),
                    ));
                }
            }
            if prompt.is_empty() {
                return Err(Error::bad_request(
                    "empty-prompt",
                    "`prompt` is empty; expected at least one character",
                ));
            }
            Ok(Input::Prompt(prompt))
        }
        (None, Some(messages)) => {
            if messages.is_empty() {
                return Err(Error::bad_request(
                    "empty-prompt",
                    "`messages` is empty; expected at least one message",
                ));
            }
            let chat = Chat {
                messages,
                tools: tools.unwrap_or_default(),
                variables: variables.unwrap_or_default(),
                ..Chat::default()
            };
            chat.check()?;
            Ok(Input::Chat(chat))
        }
    }
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, Error> {
    let texts = match fields.take("stop") {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(values)) => values
            .into_iter()
            .map(|value| match value {
                Value::String(text) => Ok(text),
                other => Err(Error::wrong_type("an entry of `stop`", "a string", &other)),
            })
            .collect::<Result<_, _>>()?,
        Some(other) => {
            return Err(Error::wrong_type(
                "`stop`",
                "a string or a list of strings",
                &other,
            ));
        }
    };
    if texts.len() > STOP_COUNT_LIMIT {
        return Err(Error::bad_request(
            "invalid-stop",
            format!(
                "`stop` has {} strings; expected at most {STOP_COUNT_LIMIT}",
                texts.len()
            ),
        ));
    }
    for text in &texts {
        if text.is_empty() || text.len() > STOP_LENGTH_LIMIT {
            return Err(Error::bad_request(
                "invalid-stop",
                format!(
                    "a string in `stop` has {} bytes; expected 1 to {STOP_LENGTH_LIMIT}",
                    text.len()
                ),
            ));
        }
    }
    Ok(texts)
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
