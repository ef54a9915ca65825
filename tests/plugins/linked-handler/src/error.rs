//! Errors in the form that tests check.

use serde_json::{Value, json};

use crate::bindings::corral::inference::types::Error;

/// A failed call.
pub struct GuestError {
    at: &'static str,
    case: &'static str,
    text: String,
    /// Tokens generated before the error.
    tokens: Vec<u32>,
}

impl GuestError {
    /// An error that does not come from the host.
    pub fn other(at: &'static str, text: String) -> Self {
        Self {
            at,
            case: "other",
            text,
            tokens: Vec::new(),
        }
    }

    /// Creates a function for `map_err`.
    pub fn at(at: &'static str) -> impl Fn(Error) -> Self {
        move |error| {
            let (case, text) = match error {
                Error::Invalid(text) => ("invalid", text),
                Error::NotFound(text) => ("not-found", text),
                Error::NotGranted(text) => ("not-granted", text),
                Error::ContextFull(limit) => (
                    "context-full",
                    format!("{} of {}", limit.needed, limit.limit),
                ),
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

    pub fn to_json(&self) -> Value {
        let error = json!({ "at": self.at, "case": self.case, "text": self.text });
        json!({ "error": error, "tokens": self.tokens })
    }
}
