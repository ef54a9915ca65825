//! The default model, and access to the request's fields.

use serde_json::Value;

use crate::bindings::corral::inference::inference::Sequence;
use crate::bindings::corral::inference::inference_async::open_model;
use crate::bindings::corral::inference::models::{Model, ModelInfo};
use crate::error::GuestError;

/// An open model and its metadata.
pub struct OpenModel {
    pub handle: Model,
    pub info: ModelInfo,
}

impl OpenModel {
    pub async fn new() -> Result<Self, GuestError> {
        let model = open_model(None).await.map_err(GuestError::at("open"))?;
        let info = model.info();
        Ok(Self {
            handle: model,
            info,
        })
    }

    pub fn tokens(&self, text: &str, special: bool) -> Result<Vec<u32>, GuestError> {
        let tokens = self.handle.tokenize(text, special);
        tokens.map_err(GuestError::at("tokenize"))
    }

    pub fn sequence(&self, tokens: &[u32]) -> Result<Sequence, GuestError> {
        let sequence = Sequence::create(&self.handle).map_err(GuestError::at("create"))?;
        sequence.append(tokens).map_err(GuestError::at("append"))?;
        Ok(sequence)
    }

    /// The text of a control token.
    pub fn control_token_text(&self, token: Option<u32>) -> Result<Option<String>, GuestError> {
        let Some(token) = token else { return Ok(None) };
        let bytes = self.handle.detokenize(&[token], true);
        let bytes = bytes.map_err(GuestError::at("detokenize"))?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }
}

/// A number field, or the default.
pub fn number(request: &Value, name: &str, default: u64) -> u64 {
    request[name].as_u64().unwrap_or(default)
}

/// A text field; empty if absent.
pub fn text<'a>(request: &'a Value, name: &str) -> &'a str {
    request[name].as_str().unwrap_or_default()
}

/// A list field; empty if absent.
pub fn list<'a>(request: &'a Value, name: &str) -> &'a [Value] {
    request[name].as_array().map_or(&[], Vec::as_slice)
}

/// Most tokens to generate.
pub fn max_tokens(request: &Value) -> u32 {
    number(request, "max_tokens", 24) as u32
}

/// Whether to continue after end tokens.
pub fn ignores_end(request: &Value) -> bool {
    request["ignore_eos"] == true
}
