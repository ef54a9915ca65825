//! Constraints on generated text, written as grammars.

use crate::bindings::constraints;
use crate::{Error, Model, Token, backend};

pub use constraints::Grammar;

/// A grammar compiled for a model, for
/// [`GenerateOptions::constrain`](crate::GenerateOptions::constrain) or a [`Matcher`].
pub struct Constraint(backend::Constraint);

impl Constraint {
    /// Compiles a grammar. A malformed one is [`Error::Invalid`]; the text gives the position of
    /// the mistake.
    pub async fn compile(model: &Model, grammar: Grammar) -> Result<Self, Error> {
        let compiled = backend::compile_constraint(model.host(), grammar).await;
        Ok(Constraint(compiled?))
    }

    /// Compiles a regular expression that matches the whole text (syntax of the `regex` crate,
    /// without anchors and word boundaries).
    pub async fn regex(model: &Model, expression: &str) -> Result<Self, Error> {
        Self::compile(model, Grammar::Regex(expression.to_owned())).await
    }

    /// Compiles a JSON schema. The text is a JSON value that satisfies it. A keyword that cannot be
    /// enforced is [`Error::Invalid`]; with [`Grammar::LenientJsonSchema`], it is
    /// [ignored](Self::ignored).
    pub async fn json_schema(model: &Model, schema: &serde_json::Value) -> Result<Self, Error> {
        Self::compile(model, Grammar::JsonSchema(schema.to_string())).await
    }

    /// Returns the keywords of JSON schemas that the constraint does not enforce, as JSON pointers; in a
    /// Lark grammar, after the name of the rule. After 32, one entry says how many more.
    pub fn ignored(&self) -> Vec<String> {
        self.0.ignored()
    }

    pub(crate) fn host(&self) -> &backend::Constraint {
        &self.0
    }
}

/// Tracks which tokens a constraint allows next, for plugins that run their own loop.
pub struct Matcher(backend::Matcher);

impl Matcher {
    /// Creates a matcher at the start of the text.
    pub fn start(constraint: &Constraint) -> Result<Self, Error> {
        Ok(Matcher(backend::Matcher::start(&constraint.0)?))
    }

    /// Creates a copy in the same state, for a forked sequence.
    pub fn fork(&self) -> Result<Self, Error> {
        Ok(Matcher(self.0.fork()?))
    }

    /// Returns the allowed tokens as a bit mask: token t is bit t mod 32 of word t / 32.
    /// [`NextTokenRequest::allowed_by`](crate::NextTokenRequest::allowed_by) is cheaper.
    pub fn mask(&self) -> Result<Vec<u32>, Error> {
        Ok(self.0.mask()?)
    }

    /// Returns the allowed tokens in ascending order, or `None` if there are more than `max_tokens`.
    pub fn allowed(&self, max_tokens: u32) -> Result<Option<Vec<Token>>, Error> {
        Ok(self.0.allowed(max_tokens)?)
    }

    /// Returns whether `token` is allowed next.
    pub fn allows(&self, token: Token) -> Result<bool, Error> {
        Ok(self.0.allows(token)?)
    }

    /// Advances by one token. A token that is not allowed is [`Error::Invalid`] and leaves the
    /// state unchanged.
    pub fn accept(&self, token: Token) -> Result<(), Error> {
        Ok(self.0.accept(token)?)
    }

    /// Advances over the tokens that the grammar forces next, at most `max_tokens`, and returns them. The
    /// plugin appends them to its sequence.
    pub fn forced(&self, max_tokens: u32) -> Result<Vec<Token>, Error> {
        Ok(self.0.forced(max_tokens)?)
    }

    /// Returns whether only an end-of-generation token can follow.
    pub fn is_complete(&self) -> bool {
        self.0.is_complete()
    }

    pub(crate) fn host(&self) -> &backend::Matcher {
        &self.0
    }
}
