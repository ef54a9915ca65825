//! The tokens that a request begins with.

use crate::media::Image;
use crate::{Error, Token};
use corral_llama::IMAGE_TOKENS;
use std::sync::Arc;

/// The tokens that a request begins with, and the images among them. Each token belongs to the vocabulary or to one of the
/// images.
#[derive(Clone, Default)]
pub struct Prompt {
    pub tokens: Vec<Token>,
    pub images: Vec<Arc<Image>>,
}

impl Prompt {
    /// [`Error::Invalid`] unless a token of the vocabulary is the last one: after an image there are no logits.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = match self.tokens.last() {
            None => "the sequence is empty; append at least one token before generating",
            Some(last) if IMAGE_TOKENS.contains(last) => {
                "the sequence ends with an image or audio; append at least one token before generating"
            }
            Some(_) => return Ok(()),
        };
        Err(Error::Invalid(wrong.into()))
    }
}

impl From<Vec<Token>> for Prompt {
    fn from(tokens: Vec<Token>) -> Self {
        Self {
            tokens,
            images: Vec::new(),
        }
    }
}
