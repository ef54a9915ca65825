//! The default model, and what is asked of it.

use serde_json::Value;

use crate::bindings::corral::inference::inference::Sequence;
use crate::bindings::corral::inference::models::{Model, ModelInfo};
use crate::failed::Failed;

/// A model, and what is known of it.
pub struct Opened {
    pub model: Model,
    pub info: ModelInfo,
}

impl Opened {
    pub async fn new() -> Result<Self, Failed> {
        let model = Model::open(None).await.map_err(Failed::at("open"))?;
        let info = model.info();
        Ok(Self { model, info })
    }

    pub fn tokens(&self, text: &str, special: bool) -> Result<Vec<u32>, Failed> {
        let tokens = self.model.tokenize(text, special);
        tokens.map_err(Failed::at("tokenize"))
    }

    pub fn sequence(&self, tokens: &[u32]) -> Result<Sequence, Failed> {
        let sequence = Sequence::create(&self.model).map_err(Failed::at("create"))?;
        sequence.append(tokens).map_err(Failed::at("append"))?;
        Ok(sequence)
    }

    /// What tokens say; control tokens say nothing.
    pub fn text(&self, tokens: &[u32]) -> Result<String, Failed> {
        let bytes = self.model.detokenize(tokens, false);
        let bytes = bytes.map_err(Failed::at("detokenize"))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The text of a control token.
    pub fn written(&self, token: Option<u32>) -> Result<Option<String>, Failed> {
        let Some(token) = token else { return Ok(None) };
        let bytes = self.model.detokenize(&[token], true);
        let bytes = bytes.map_err(Failed::at("detokenize"))?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }
}

/// A number of what was asked, or else another one.
pub fn number(asked: &Value, name: &str, otherwise: u64) -> u64 {
    asked[name].as_u64().unwrap_or(otherwise)
}

/// A text of what was asked; empty if there is none.
pub fn text<'a>(asked: &'a Value, name: &str) -> &'a str {
    asked[name].as_str().unwrap_or_default()
}

/// A list of what was asked; empty if there is none.
pub fn list<'a>(asked: &'a Value, name: &str) -> &'a [Value] {
    asked[name].as_array().map_or(&[], Vec::as_slice)
}

/// Tokens that are generated at most.
pub fn most(asked: &Value) -> u32 {
    number(asked, "max_tokens", 24) as u32
}

/// Whether it goes on after a token that ends a text.
pub fn endless(asked: &Value) -> bool {
    asked["ignore_end"] == true
}
