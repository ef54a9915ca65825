//! The scripted model.

use std::rc::Rc;

use super::installed::script;
use super::script_state::{HostCall, ScriptState};
use crate::Token;
use crate::bindings::models::{ModelInfo, Pooling, RequestCounts};
use crate::bindings::types::Error;

pub fn available() -> Vec<String> {
    let script = script();
    let names = std::iter::once(&script.info.name).chain(script.others.keys());
    names.cloned().collect()
}

pub struct Model(Rc<ScriptState>);

impl Model {
    pub(super) fn script(&self) -> &Rc<ScriptState> {
        &self.0
    }

    pub fn info(&self) -> ModelInfo {
        self.0.info.clone()
    }

    pub fn accepts_images(&self) -> bool {
        self.0.accepts_images
    }

    pub fn accepts_audio(&self) -> bool {
        self.0.accepts_audio
    }

    pub fn rerank_template(&self) -> Option<String> {
        self.0.rerank_template.clone()
    }

    pub fn request_counts(&self) -> Result<RequestCounts, Error> {
        self.0.scripted_error("request-counts")?;
        Ok(self.0.request_counts)
    }

    pub fn tokenize(&self, text: &str, special: bool) -> Result<Vec<Token>, Error> {
        self.0.scripted_error("tokenize")?;
        Ok(self.0.tokenize(text, special))
    }

    pub fn detokenize(&self, tokens: &[Token], special: bool) -> Result<Vec<u8>, Error> {
        self.0.bytes(tokens, special)
    }
}

pub async fn open_model(name: Option<String>) -> Result<Model, Error> {
    let script = script();
    script.record(HostCall::Open(name.clone()));
    script.scripted_error("open")?;
    match name {
        Some(name) if name != script.info.name => match script.others.get(&name) {
            Some(other) => Ok(Model(Rc::clone(other))),
            None => Err(Error::NotFound(format!(
                "there is no model {name:?}; expected one of {:?}",
                available()
            ))),
        },
        _ => Ok(Model(script)),
    }
}

pub async fn embed(
    model: &Model,
    inputs: Vec<Vec<Token>>,
    _: Option<Pooling>,
    _: Option<bool>,
) -> Result<Vec<Vec<f32>>, Error> {
    let texts: Vec<_> = inputs
        .iter()
        .map(|input| model.0.display_text(input))
        .collect();
    model.0.record(HostCall::Embed(texts.clone()));
    model.0.scripted_error("embed")?;
    let vectors = texts.iter().map(|text| {
        let known = model.0.embeddings.get(text).cloned();
        known.ok_or_else(|| Error::Failed(format!("the script has no embedding of {text:?}")))
    });
    vectors.collect()
}
