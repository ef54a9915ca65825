//! Implements `models`, `constraints` and `budget` with the scripted backend.

use corral_sdk::testing::host;

use crate::bindings::exports::corral::inference::{budget, constraints, models, types};
use crate::{Mock, OriginGuard, convert};
use types::{Error, Token};

/// A model of the script.
pub(crate) struct MockModel(pub(crate) host::Model, pub(crate) OriginGuard);
/// The texts that a grammar allows.
pub(crate) struct MockConstraint(pub(crate) host::Constraint);
pub(crate) struct MockMatcher(pub(crate) host::Matcher);

impl models::Guest for Mock {
    type Model = MockModel;

    fn available() -> Vec<String> {
        Mock::start();
        host::available()
    }
}

impl models::GuestModel for MockModel {
    fn info(&self) -> models::ModelInfo {
        convert::info(self.0.info())
    }

    fn accepts_images(&self) -> bool {
        self.0.accepts_images()
    }

    fn accepts_audio(&self) -> bool {
        self.0.accepts_audio()
    }

    fn rerank_template(&self) -> Option<String> {
        self.0.rerank_template()
    }

    fn request_counts(&self) -> Result<models::RequestCounts, Error> {
        let counts = self.0.request_counts();
        counts.map(convert::request_counts).map_err(convert::error)
    }

    fn tokenize(&self, text: String, special: bool) -> Result<Vec<Token>, Error> {
        self.0.tokenize(&text, special).map_err(convert::error)
    }

    fn detokenize(&self, tokens: Vec<Token>, special: bool) -> Result<Vec<u8>, Error> {
        self.0.detokenize(&tokens, special).map_err(convert::error)
    }
}

impl constraints::Guest for Mock {
    type Constraint = MockConstraint;
    type Matcher = MockMatcher;
}

impl constraints::GuestConstraint for MockConstraint {
    fn ignored(&self) -> Vec<String> {
        self.0.ignored()
    }
}

impl constraints::GuestMatcher for MockMatcher {
    fn start(constraint: constraints::ConstraintBorrow<'_>) -> Result<constraints::Matcher, Error> {
        let constraint = &constraint.get::<MockConstraint>().0;
        let matcher = host::Matcher::start(constraint).map_err(convert::error)?;
        Ok(constraints::Matcher::new(MockMatcher(matcher)))
    }

    fn fork(&self) -> Result<constraints::Matcher, Error> {
        let matcher = self.0.fork().map_err(convert::error)?;
        Ok(constraints::Matcher::new(MockMatcher(matcher)))
    }

    fn mask(&self) -> Result<Vec<u32>, Error> {
        self.0.mask().map_err(convert::error)
    }

    fn allowed(&self, max_tokens: u32) -> Result<Option<Vec<Token>>, Error> {
        self.0.allowed(max_tokens).map_err(convert::error)
    }

    fn allows(&self, token: Token) -> Result<bool, Error> {
        self.0.allows(token).map_err(convert::error)
    }

    fn accept(&self, token: Token) -> Result<(), Error> {
        self.0.accept(token).map_err(convert::error)
    }

    fn forced(&self, max_tokens: u32) -> Result<Vec<Token>, Error> {
        self.0.forced(max_tokens).map_err(convert::error)
    }

    fn is_complete(&self) -> bool {
        self.0.is_complete()
    }
}

impl budget::Guest for Mock {
    fn remaining() -> budget::RemainingBudget {
        Mock::start();
        let remaining = host::remaining();
        budget::RemainingBudget {
            tokens: remaining.tokens,
            time: remaining.time,
        }
    }
}
