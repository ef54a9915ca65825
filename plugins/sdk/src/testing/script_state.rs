//! The script's answers and the recorded calls.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

use crate::bindings::models::{ModelInfo, RequestCounts};
use crate::bindings::types;
use crate::linked::{SamplerContext, SamplerInput, SamplerNeeds};
use crate::template::{Chat, ModelFacts, Prompt};
use crate::{Candidate, Error, Statistics, Token};

/// A host call by the plugin.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum HostCall {
    /// `model.open` with this name.
    Open(Option<String>),
    /// `sequence.generate`.
    Generate(GenerateCall),
    /// `next` after this text.
    Next(String),
    /// `compile-constraint` with this grammar; empty for `Grammar::JsonObject`.
    Compile(String),
    /// `embed` for these texts.
    Embed(Vec<String>),
    /// `append-image` with this file.
    AppendImage(Vec<u8>),
    /// `save-snapshot` with this name.
    Snapshot(String),
    /// `restore-snapshot` with this name.
    Restore(String),
    /// `delete-snapshot` with this name.
    DeleteSnapshot(String),
    /// The plugin dropped a generation before its end.
    Cancelled,
}

/// A generation that a plugin started.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateCall {
    /// The sequence's text, with control tokens written out.
    pub after: String,
    /// The settings in the order of the calls, as in the WIT: `temperature 0.7`, `stop "\n"`,
    /// `sample-with min-p {"min_p":0.1}`.
    pub settings: Vec<String>,
}

/// Functions that can be made to fail.
pub(super) const FALLIBLE_FUNCTIONS: [&str; 13] = [
    "open",
    "request-counts",
    "tokenize",
    "embed",
    "compile",
    "append",
    "append-image",
    "fork",
    "generate",
    "next",
    "snapshot",
    "restore",
    "sample-with",
];

/// A text and its continuation.
#[derive(Clone)]
pub(super) struct ScriptedAnswer {
    pub after: String,
    pub text: String,
    /// The generation's error after `text`.
    pub error: Option<Error>,
}

/// A sampling plugin of any type.
pub(super) trait DynSampler {
    fn needs(&self) -> SamplerNeeds;
    fn sample(&mut self, input: SamplerInput) -> Result<Token, String>;
}

impl<S: crate::linked::Sampler> DynSampler for S {
    fn needs(&self) -> SamplerNeeds {
        crate::linked::Sampler::needs(self)
    }

    fn sample(&mut self, input: SamplerInput) -> Result<Token, String> {
        crate::linked::Sampler::sample(self, input)
    }
}

pub(super) type StartSampler = Rc<dyn Fn(SamplerContext) -> Result<Box<dyn DynSampler>, String>>;
pub(super) type Render = Rc<dyn Fn(Chat, ModelFacts) -> Result<Prompt, String>>;

/// An installed script.
pub(crate) struct ScriptState {
    pub(super) info: ModelInfo,
    pub(super) accepts_images: bool,
    pub(super) accepts_audio: bool,
    pub(super) rerank_template: Option<String>,
    pub(super) request_counts: RequestCounts,
    /// The other models by name.
    pub(super) others: BTreeMap<String, Rc<ScriptState>>,
    /// Names of the control tokens, numbered from 256.
    pub(super) control: Vec<String>,
    pub(super) answers: Vec<ScriptedAnswer>,
    pub(super) distributions: Vec<(String, Vec<(String, f32)>)>,
    pub(super) embeddings: HashMap<String, Vec<f32>>,
    pub(super) languages: HashMap<String, Vec<String>>,
    /// The keywords that grammars ignore.
    pub(super) ignored: HashMap<String, Vec<String>>,
    pub(super) samplers: HashMap<String, StartSampler>,
    pub(super) templating: Option<Render>,
    pub(super) tokens_left: Option<u64>,
    pub(super) time_left: u64,
    pub(super) errors: RefCell<VecDeque<(String, Error)>>,
    pub(super) calls: RefCell<Vec<HostCall>>,
    pub(super) snapshots: RefCell<HashMap<String, Vec<Token>>>,
    #[cfg(feature = "config")]
    #[cfg_attr(target_family = "wasm", allow(dead_code))]
    pub(super) config: BTreeMap<String, String>,
    #[cfg(feature = "config")]
    #[cfg_attr(target_family = "wasm", allow(dead_code))]
    pub(super) secrets: BTreeMap<String, String>,
    #[cfg(feature = "logging")]
    pub(super) logs: RefCell<Vec<super::script::ScriptedLog>>,
    /// Subjects that it may publish to.
    #[cfg(feature = "messages")]
    #[cfg_attr(target_family = "wasm", allow(dead_code))]
    pub(super) message_grants: Vec<String>,
    #[cfg(feature = "messages")]
    pub(super) published: RefCell<Vec<crate::messages::Message>>,
    /// The values of the deployment.
    #[cfg(feature = "key-values")]
    #[cfg_attr(target_family = "wasm", allow(dead_code))]
    pub(super) key_values: RefCell<BTreeMap<String, Vec<u8>>>,
    /// Bytes of keys and values that it may keep.
    #[cfg(feature = "key-values")]
    pub(super) key_value_bytes: usize,
    /// The number of generations: the default seed.
    pub(super) generations: Cell<u64>,
}

/// The logit of tokens that the script does not mention.
const UNLIKELY: f32 = -30.0;
/// The logit of an answer's next token.
const LIKELY: f32 = 10.0;

impl ScriptState {
    pub(super) fn record(&self, call: HostCall) {
        self.calls.borrow_mut().push(call);
    }

    /// Returns the scripted error for this call, if there is one.
    pub(super) fn scripted_error(&self, call: &str) -> Result<(), types::Error> {
        let mut errors = self.errors.borrow_mut();
        match errors.iter().position(|(name, _)| name == call) {
            Some(at) => Err(errors
                .remove(at)
                .map_or(Error::Deadline, |found| found.1)
                .into()),
            None => Ok(()),
        }
    }

    pub(super) fn tokenize(&self, text: impl AsRef<[u8]>, special: bool) -> Vec<Token> {
        let mut tokens = Vec::new();
        let mut rest = text.as_ref();
        while let Some((&first, after)) = rest.split_first() {
            let names = self.control.iter();
            let named = (256..)
                .zip(names)
                .find(|(_, name)| rest.starts_with(name.as_bytes()));
            match named {
                Some((token, name)) if special => {
                    tokens.push(token);
                    rest = &rest[name.len()..];
                }
                _ => {
                    tokens.push(first.into());
                    rest = after;
                }
            }
        }
        tokens
    }

    pub(super) fn bytes(&self, tokens: &[Token], special: bool) -> Result<Vec<u8>, types::Error> {
        let mut bytes = Vec::new();
        for &token in tokens {
            match u8::try_from(token) {
                Ok(byte) => bytes.push(byte),
                Err(_) => {
                    let name = self.control.get(token as usize - 256).ok_or_else(|| {
                        let count = self.info.vocabulary;
                        let text = format!("token {token} is outside the vocabulary of {count}");
                        types::Error::Invalid(text)
                    })?;
                    if special {
                        bytes.extend(name.bytes());
                    }
                }
            }
        }
        Ok(bytes)
    }

    /// The text of tokens, with control tokens written out.
    pub(super) fn display_text(&self, tokens: &[Token]) -> String {
        let bytes = self.bytes(tokens, true).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The logits of the next token after these tokens.
    pub(super) fn logits(&self, tokens: &[Token]) -> Result<Vec<f32>, types::Error> {
        let bytes = self.bytes(tokens, true)?;
        let mut row = vec![UNLIKELY; self.info.vocabulary as usize];
        let distributions = self.distributions.iter();
        let fitting = distributions.filter(|(after, _)| bytes.ends_with(after.as_bytes()));
        if let Some((_, shown)) = fitting.max_by_key(|(after, _)| after.len()) {
            for (text, logit) in shown {
                // `Script::next` checked that it is one token.
                row[self.tokenize(text, true)[0] as usize] = *logit;
            }
            return Ok(row);
        }
        let (answer, length) = self.answer(&bytes).ok_or_else(|| {
            let text = String::from_utf8_lossy(&bytes);
            types::Error::Failed(format!("the script has no answer after {text:?}"))
        })?;
        let next = self
            .tokenize(&answer.text.as_bytes()[length..], true)
            .first()
            .copied();
        match (next, &answer.error) {
            (Some(token), _) => row[token as usize] = LIKELY,
            (None, Some(error)) => return Err(error.clone().into()),
            (None, None) => {
                if let Some(end) = self.info.eos {
                    row[end as usize] = LIKELY;
                }
            }
        }
        Ok(row)
    }

    /// The answer that a text is in, and the number of its bytes that the text already has.
    fn answer(&self, text: &[u8]) -> Option<(&ScriptedAnswer, usize)> {
        let fitting = self.answers.iter().filter_map(|answer| {
            let mut lengths = (0..=answer.text.len()).rev();
            let length = lengths.find(|&length| {
                let after = text.strip_suffix(&answer.text.as_bytes()[..length]);
                after.is_some_and(|after| after.ends_with(answer.after.as_bytes()))
            })?;
            Some((answer, length))
        });
        fitting.max_by_key(|(answer, length)| (answer.after.len(), *length))
    }

    /// Starts the sampling plugin of this name.
    pub(super) fn start_sampler(
        &self,
        name: &str,
        settings: &str,
        seed: u64,
    ) -> Result<Box<dyn DynSampler>, types::Error> {
        let Some(start) = self.samplers.get(name) else {
            let text = format!("the script has no sampling plugin {name:?}");
            return Err(types::Error::NotFound(text));
        };
        let context = SamplerContext {
            settings: settings.to_owned(),
            seed,
            vocabulary: self.info.vocabulary,
        };
        start(context).map_err(types::Error::Invalid)
    }

    /// The statistics of a distribution.
    pub(super) fn statistics(row: &[f32]) -> Statistics {
        let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|&logit| f64::from(logit - best).exp()).sum();
        let log_normalizer = f64::from(best) + sum.ln();
        let surprises = row.iter().map(|&logit| log_normalizer - f64::from(logit));
        Statistics {
            log_normalizer: log_normalizer as f32,
            entropy: surprises.map(|nats| nats * (-nats).exp()).sum::<f64>() as f32,
        }
    }

    /// Converts logits to the allowed candidates in descending order.
    pub(super) fn descending(row: &[f32], allowed: impl Fn(Token) -> bool) -> Vec<Candidate> {
        let all = (0..).zip(row);
        let mut list: Vec<_> = all
            .map(|(token, &logit)| Candidate { token, logit })
            .filter(|candidate| allowed(candidate.token))
            .collect();
        list.sort_by(|one, other| {
            let order = other.logit.total_cmp(&one.logit);
            order.then(one.token.cmp(&other.token))
        });
        list
    }
}

pub(super) fn invalid<T>(text: &str) -> Result<T, types::Error> {
    Err(types::Error::Invalid(text.to_owned()))
}

impl From<Error> for types::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid(text) => Self::Invalid(text),
            Error::NotFound(text) => Self::NotFound(text),
            Error::NotGranted(text) => Self::NotGranted(text),
            Error::ContextFull { needed, limit } => {
                Self::ContextFull(types::ContextLimit { needed, limit })
            }
            Error::Refused {
                reason,
                retry_after,
            } => Self::Refused(types::Refusal {
                reason,
                retry_after_ms: u32::try_from(retry_after.as_millis()).unwrap_or(u32::MAX),
            }),
            Error::Deadline => Self::Deadline,
            Error::Cancelled => Self::Cancelled,
            Error::Failed(text) => Self::Failed(text),
            Error::Problem(_) => Self::Failed(error.to_string()),
        }
    }
}
