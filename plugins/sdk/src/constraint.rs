//! What a generation may say, as a grammar.

use crate::raw::constraints;
use crate::{Error, Model, Token, backend};

pub use constraints::Grammar;

/// A compiled grammar for a model, for [`Generate::constrain`](crate::Generate::constrain) or for a
/// [`Matcher`].
pub struct Constraint(backend::Constraint);

impl Constraint {
    /// Compiles a grammar. What is wrong with it is [`Error::Invalid`], which says where.
    pub async fn compile(model: &Model, grammar: Grammar) -> Result<Self, Error> {
        let compiled = backend::Constraint::compile(model.host(), grammar).await;
        Ok(Constraint(compiled?))
    }

    /// All of the text matches this regular expression (the syntax of Rust's crate `regex`, without
    /// anchors and word boundaries).
    pub async fn regex(model: &Model, expression: &str) -> Result<Self, Error> {
        Self::compile(model, Grammar::Regex(expression.to_owned())).await
    }

    /// The text is a JSON value of this schema.
    pub async fn json_schema(model: &Model, schema: &serde_json::Value) -> Result<Self, Error> {
        Self::compile(model, Grammar::JsonSchema(schema.to_string())).await
    }

    pub(crate) fn host(&self) -> &backend::Constraint {
        &self.0
    }
}

/// A text's way through a constraint, for a plugin that runs the loop itself: it says which tokens may
/// come next, and is told which one came.
pub struct Matcher(backend::Matcher);

impl Matcher {
    /// Before the first token.
    pub fn start(constraint: &Constraint) -> Result<Self, Error> {
        Ok(Matcher(backend::Matcher::start(&constraint.0)?))
    }

    /// Another one at the same place, for a fork of the text.
    pub fn fork(&self) -> Result<Self, Error> {
        Ok(Matcher(self.0.fork()?))
    }

    /// The tokens that may come next: a bit for each token of the vocabulary, the first in the lowest bit
    /// of the first word. [`Look::allowed_by`](crate::Look::allowed_by) is cheaper.
    pub fn mask(&self) -> Result<Vec<u32>, Error> {
        Ok(self.0.mask()?)
    }

    /// The same as a list, in rising order, if they are at most so many; otherwise nothing.
    pub fn allowed(&self, most: u32) -> Result<Option<Vec<Token>>, Error> {
        Ok(self.0.allowed(most)?)
    }

    /// Whether this token may come next.
    pub fn allows(&self, token: Token) -> Result<bool, Error> {
        Ok(self.0.allows(token)?)
    }

    /// Goes on by a token. One that may not come next is [`Error::Invalid`], and changes nothing.
    pub fn accept(&self, token: Token) -> Result<(), Error> {
        Ok(self.0.accept(token)?)
    }

    /// The tokens that must come next, since there is no choice, at most so many. It has gone on by them;
    /// they are for the plugin to append.
    pub fn forced(&self, most: u32) -> Result<Vec<Token>, Error> {
        Ok(self.0.forced(most)?)
    }

    /// Whether nothing but a token that ends a generation can follow.
    pub fn is_complete(&self) -> bool {
        self.0.is_complete()
    }

    pub(crate) fn host(&self) -> &backend::Matcher {
        &self.0
    }
}
