//! Parses the request body.
//!
//! Unknown fields and values that can't be honored are errors that name the field. `null` counts as
//! absent.

use corral_sdk::fields::Fields;
use corral_sdk::template::Chat;
use corral_sdk::{Error, Grammar};

use crate::constraint::constraint;
use crate::sampling::{self, Sampler};

/// Default of `max_tokens`.
pub const DEFAULT_MAX_TOKENS: u32 = 128;
/// The host's limit for logprobs.
pub const LOGPROBS_LIMIT: u8 = 20;
/// The host's limit for draft tokens.
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
    "ignore_eos",
    "constraint",
    "logprobs",
    "speculate",
    "adapter",
    "stream",
    "template_arguments",
];

/// A valid request.
#[derive(Debug, PartialEq)]
pub struct Request {
    /// The model's name; default: the first model.
    pub model: Option<String>,
    pub input: Input,
    pub settings: Settings,
    /// Whether to stream the response.
    pub stream: bool,
}

/// The text or chat to continue.
#[derive(Debug, PartialEq)]
pub enum Input {
    /// Text, in which control tokens are read.
    Prompt(String),
    /// A chat for the model's template.
    Chat(Chat),
}

/// Generation settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub max_tokens: u32,
    /// The sampler chain in order; empty is greedy.
    pub samplers: Vec<Sampler>,
    pub seed: Option<u64>,
    pub stop: Vec<String>,
    pub ignore_eos: bool,
    /// The grammar that constrains the text.
    pub constraint: Option<Grammar>,
    /// Whether to return log probabilities, and of how many most likely tokens.
    pub logprobs: Option<u8>,
    /// Most draft tokens per step. Without it only a draft model drafts.
    pub speculate: Option<u8>,
    /// The LoRA adapter's name.
    pub adapter: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            max_tokens: DEFAULT_MAX_TOKENS,
            samplers: Vec::new(),
            seed: None,
            stop: Vec::new(),
            ignore_eos: false,
            constraint: None,
            logprobs: None,
            speculate: None,
            adapter: None,
        }
    }
}

/// Parses the body.
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
        stop: fields.stop_strings("stop")?,
        ignore_eos: fields.flag("ignore_eos")?,
        constraint: constraint(&mut fields)?,
        logprobs: fields.integer("logprobs", 0..=LOGPROBS_LIMIT)?,
        speculate: fields.integer("speculate", 0..=SPECULATE_LIMIT)?,
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
    let variables = fields.object("template_arguments")?;
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
                variables: variables.map(Fields::into_map).unwrap_or_default(),
                ..Chat::default()
            };
            chat.check()?;
            Ok(Input::Chat(chat))
        }
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
