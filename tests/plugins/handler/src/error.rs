//! What failed, in words for a test.

use serde_json::{Value, json};

use crate::bindings::corral::inference::types::Error;

/// A call that did.
pub struct Failed {
    at: &'static str,
    case: &'static str,
    text: String,
    /// What was generated up to there.
    tokens: Vec<u32>,
}

impl Failed {
    /// One that is no error of the host's.
    pub fn other(at: &'static str, text: String) -> Self {
        Self {
            at,
            case: "other",
            text,
            tokens: Vec::new(),
        }
    }

    /// For `map_err` after a call.
    pub fn at(at: &'static str) -> impl Fn(Error) -> Self {
        move |error| {
            let (case, text) = match error {
                Error::Invalid(text) => ("invalid", text),
                Error::NotFound(text) => ("not-found", text),
                Error::NotGranted(text) => ("not-granted", text),
                Error::ContextFull(of) => {
                    ("context-full", format!("{} of {}", of.needed, of.limit))
                }
                Error::Refused(refusal) => ("refused", refusal.reason),
                Error::Deadline => ("deadline", String::new()),
                Error::Cancelled => ("cancelled", String::new()),
                Error::Failed(text) => ("failed", text),
            };
            Self {
                at,
                case,
                text,
                tokens: Vec::new(),
            }
        }
    }

    pub fn after(self, tokens: &[u32]) -> Self {
        Self {
            tokens: tokens.to_vec(),
            ..self
        }
    }

    pub fn told(&self) -> Value {
        let error = json!({ "at": self.at, "case": self.case, "text": self.text });
        json!({ "error": error, "tokens": self.tokens })
    }
}
