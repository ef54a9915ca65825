//! Implements `models`, `constraints` and `budget` by commands of the session.

use std::rc::Rc;

use session_protocol::{Bytes, Call, Kind, ModelInfo, RemainingBudget, Words};

use crate::bindings::exports::corral::inference::{budget, constraints, models, types};
use crate::session::{OwnedHandle, call};
use crate::{OriginGuard, Remote, convert};
use types::{Error, Token};

/// A model of the host. Sequences share its metadata.
pub(crate) struct RemoteModel {
    pub(crate) handle: OwnedHandle,
    pub(crate) info: Rc<ModelInfo>,
    pub(crate) _origin: OriginGuard,
}

impl models::Guest for Remote {
    type Model = RemoteModel;

    fn available() -> Vec<String> {
        match call(Call::Available) {
            Ok(names) => names,
            // This function cannot fail otherwise.
            Err(error) => panic!("{}", convert::message(error)),
        }
    }
}

impl models::GuestModel for RemoteModel {
    fn info(&self) -> models::ModelInfo {
        convert::info(&self.info)
    }

    fn accepts_images(&self) -> bool {
        self.info.accepts_images
    }

    fn accepts_audio(&self) -> bool {
        self.info.accepts_audio
    }

    fn rerank_template(&self) -> Option<String> {
        self.info.rerank_template.clone()
    }

    fn request_counts(&self) -> Result<models::RequestCounts, Error> {
        let model = self.handle.number;
        let counts = call(Call::RequestCounts { model });
        counts.map(convert::request_counts)
    }

    fn tokenize(&self, text: String, special: bool) -> Result<Vec<Token>, Error> {
        let model = self.handle.number;
        call(Call::Tokenize {
            model,
            text,
            special,
        })
    }

    fn detokenize(&self, tokens: Vec<Token>, special: bool) -> Result<Vec<u8>, Error> {
        let model = self.handle.number;
        let bytes = call(Call::Detokenize {
            model,
            tokens,
            special,
        });
        bytes.map(|Bytes(bytes)| bytes)
    }
}

pub(crate) struct RemoteConstraint {
    pub(crate) handle: OwnedHandle,
    pub(crate) ignored: Vec<String>,
}

pub(crate) struct RemoteMatcher(pub(crate) OwnedHandle);

impl constraints::Guest for Remote {
    type Constraint = RemoteConstraint;
    type Matcher = RemoteMatcher;
}

impl constraints::GuestConstraint for RemoteConstraint {
    fn ignored(&self) -> Vec<String> {
        self.ignored.clone()
    }
}

impl constraints::GuestMatcher for RemoteMatcher {
    fn start(constraint: constraints::ConstraintBorrow<'_>) -> Result<constraints::Matcher, Error> {
        let constraint = constraint.get::<RemoteConstraint>().handle.number;
        let matcher = OwnedHandle::new(Kind::Matcher);
        call::<()>(Call::StartMatcher {
            matcher: matcher.number,
            constraint,
        })?;
        Ok(constraints::Matcher::new(RemoteMatcher(matcher)))
    }

    fn fork(&self) -> Result<constraints::Matcher, Error> {
        let matcher = OwnedHandle::new(Kind::Matcher);
        call::<()>(Call::ForkMatcher {
            matcher: matcher.number,
            from: self.0.number,
        })?;
        Ok(constraints::Matcher::new(RemoteMatcher(matcher)))
    }

    fn mask(&self) -> Result<Vec<u32>, Error> {
        let mask = call(Call::Mask {
            matcher: self.0.number,
        });
        mask.map(|Words(words)| words)
    }

    fn allowed(&self, max_tokens: u32) -> Result<Option<Vec<Token>>, Error> {
        let matcher = self.0.number;
        call(Call::Allowed {
            matcher,
            max_tokens,
        })
    }

    fn allows(&self, token: Token) -> Result<bool, Error> {
        let matcher = self.0.number;
        call(Call::Allows { matcher, token })
    }

    fn accept(&self, token: Token) -> Result<(), Error> {
        let matcher = self.0.number;
        call(Call::Accept { matcher, token })
    }

    fn forced(&self, max_tokens: u32) -> Result<Vec<Token>, Error> {
        let matcher = self.0.number;
        call(Call::Forced {
            matcher,
            max_tokens,
        })
    }

    fn is_complete(&self) -> bool {
        // After an error, the next call that can report one does.
        call(Call::IsComplete {
            matcher: self.0.number,
        })
        .unwrap_or(true)
    }
}

impl budget::Guest for Remote {
    fn remaining() -> budget::RemainingBudget {
        match call(Call::Remaining) {
            Ok(RemainingBudget { tokens, time }) => budget::RemainingBudget { tokens, time },
            // Nothing is left of a session that has ended.
            Err(_) => budget::RemainingBudget {
                tokens: Some(0),
                time: 0,
            },
        }
    }
}
