//! What a script says, and what was asked of it.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use crate::raw::models::ModelInfo;
use crate::raw::types;
use crate::role::{Beginning, Needs, Told};
use crate::template::{Chat, ModelFacts, Prompt};
use crate::{Candidate, Error, Token};

/// A call that a plugin made.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Call {
    /// A model was opened, by this name.
    Open(Option<String>),
    /// A generation was asked for.
    Generate(Generated),
    /// What comes after this text was asked.
    Next(String),
    /// A grammar was compiled: its text, and for `Grammar::JsonObject` none.
    Compile(String),
    /// Embeddings of these texts were asked for.
    Embed(Vec<String>),
    /// A sequence was kept under this name.
    Snapshot(String),
    /// A sequence was asked for by this name.
    Restore(String),
    /// A name was forgotten.
    Forget(String),
    /// A generation was dropped before its end.
    Cancelled,
}

/// A generation that a plugin asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// What it goes on with, control tokens written out.
    pub after: String,
    /// The settings in the order in which they were made, as in the WIT: `temperature 0.7`,
    /// `stop "\n"`, `sample-with min-p {"min_p":0.1}`.
    pub settings: Vec<String>,
}

/// The calls that can be made to fail.
pub(super) const FALLIBLE: [&str; 11] = [
    "open",
    "tokenize",
    "embed",
    "compile",
    "append",
    "fork",
    "generate",
    "next",
    "snapshot",
    "restore",
    "sample-with",
];

/// A text, and what follows it.
#[derive(Clone)]
pub(super) struct Answer {
    pub after: String,
    pub text: String,
    /// What becomes of the generation then.
    pub error: Option<Error>,
}

/// A sampling plugin of any type.
pub(super) trait AnySampler {
    fn needs(&self) -> Needs;
    fn sample(&mut self, told: Told) -> Result<Token, String>;
}

impl<S: crate::role::Sampler> AnySampler for S {
    fn needs(&self) -> Needs {
        crate::role::Sampler::needs(self)
    }

    fn sample(&mut self, told: Told) -> Result<Token, String> {
        crate::role::Sampler::sample(self, told)
    }
}

pub(super) type StartSampler = Rc<dyn Fn(Beginning) -> Result<Box<dyn AnySampler>, String>>;
pub(super) type Render = Rc<dyn Fn(Chat, ModelFacts) -> Result<Prompt, String>>;

/// A script, as it is installed.
pub(crate) struct State {
    pub(super) info: ModelInfo,
    /// Names of the control tokens, which are numbered from 256.
    pub(super) control: Vec<String>,
    pub(super) answers: Vec<Answer>,
    pub(super) distributions: Vec<(String, Vec<(String, f32)>)>,
    pub(super) embeddings: HashMap<String, Vec<f32>>,
    pub(super) languages: HashMap<String, Vec<String>>,
    pub(super) samplers: HashMap<String, StartSampler>,
    pub(super) templating: Option<Render>,
    pub(super) tokens_left: Option<u64>,
    pub(super) time_left: u64,
    pub(super) errors: RefCell<VecDeque<(String, Error)>>,
    pub(super) calls: RefCell<Vec<Call>>,
    pub(super) snapshots: RefCell<HashMap<String, Vec<Token>>>,
    /// Counts on from text to text, so that each has its own random numbers.
    pub(super) texts: Cell<u64>,
}

/// The logit of what a script does not mention.
const UNLIKELY: f32 = -30.0;
/// The logit of what a script says comes next.
const LIKELY: f32 = 10.0;

impl State {
    pub(super) fn told(&self, call: Call) {
        self.calls.borrow_mut().push(call);
    }

    /// The error that the next call of this name has, if the script says so.
    pub(super) fn fails(&self, call: &str) -> Result<(), types::Error> {
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
                        let text = format!("token {token} is not one of the {count} there are");
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

    /// The text of tokens, control tokens written out.
    pub(super) fn written(&self, tokens: &[Token]) -> String {
        let bytes = self.bytes(tokens, true).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// What the script says may come after a text: a logit for each token of the vocabulary.
    pub(super) fn row(&self, tokens: &[Token]) -> Result<Vec<f32>, types::Error> {
        let bytes = self.bytes(tokens, true)?;
        let mut row = vec![UNLIKELY; self.info.vocabulary as usize];
        let distributions = self.distributions.iter();
        let fitting = distributions.filter(|(after, _)| bytes.ends_with(after.as_bytes()));
        if let Some((_, shown)) = fitting.max_by_key(|(after, _)| after.len()) {
            for (text, logit) in shown {
                // `Script::next` made sure that it is one.
                row[self.tokenize(text, true)[0] as usize] = *logit;
            }
            return Ok(row);
        }
        let (answer, said) = self.answer(&bytes).ok_or_else(|| {
            let text = String::from_utf8_lossy(&bytes);
            types::Error::Failed(format!("the script does not say what comes after {text:?}"))
        })?;
        let next = self
            .tokenize(&answer.text.as_bytes()[said..], true)
            .first()
            .copied();
        match (next, &answer.error) {
            (Some(token), _) => row[token as usize] = LIKELY,
            (None, Some(error)) => return Err(error.clone().into()),
            (None, None) => {
                if let Some(end) = self.info.end {
                    row[end as usize] = LIKELY;
                }
            }
        }
        Ok(row)
    }

    /// The answer that a text is in the midst of, and how many of its bytes stand there already.
    fn answer(&self, text: &[u8]) -> Option<(&Answer, usize)> {
        let fitting = self.answers.iter().filter_map(|answer| {
            let mut lengths = (0..=answer.text.len()).rev();
            let said = lengths.find(|&said| {
                let after = text.strip_suffix(&answer.text.as_bytes()[..said]);
                after.is_some_and(|after| after.ends_with(answer.after.as_bytes()))
            })?;
            Some((answer, said))
        });
        fitting.max_by_key(|(answer, said)| (answer.after.len(), *said))
    }

    /// A row as candidates, falling, as far as they are allowed.
    pub(super) fn falling(row: &[f32], allowed: impl Fn(Token) -> bool) -> Vec<Candidate> {
        let all = (0..).zip(row);
        let mut list: Vec<_> = all
            .map(|(token, &logit)| Candidate { token, logit })
            .filter(|candidate| allowed(candidate.token))
            .collect();
        list.sort_by(|one, other| {
            let falling = other.logit.total_cmp(&one.logit);
            falling.then(one.token.cmp(&other.token))
        });
        list
    }
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
