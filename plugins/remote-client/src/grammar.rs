//! Constraints on generated text.

use crate::error::Error;
use crate::handle::OwnedHandle;
use crate::model::Model;
use session_protocol::{Call, Grammar, Kind, Token, Words};
use std::sync::Arc;

/// A compiled grammar. Clones are the same.
#[derive(Clone)]
pub struct Constraint(Arc<Compiled>);

struct Compiled {
    handle: OwnedHandle,
    ignored: Vec<String>,
}

impl Constraint {
    pub(crate) async fn compile(model: &Model, grammar: Grammar) -> Result<Self, Error> {
        let session = &model.0.handle.session;
        let handle = OwnedHandle::new(session, Kind::Constraint);
        let ignored = session.call(Call::CompileConstraint {
            constraint: handle.number,
            model: model.0.handle.number,
            grammar,
        });
        let ignored = ignored.await?;
        Ok(Constraint(Arc::new(Compiled { handle, ignored })))
    }

    /// Keywords of a lenient JSON schema that are not enforced.
    pub fn ignored(&self) -> &[String] {
        &self.0.ignored
    }

    /// A matcher at the start of the text.
    pub async fn matcher(&self) -> Result<Matcher, Error> {
        let matcher = Matcher(OwnedHandle::new(&self.0.handle.session, Kind::Matcher));
        let call = Call::StartMatcher {
            matcher: matcher.0.number,
            constraint: self.0.handle.number,
        };
        matcher.0.post(call).await?;
        Ok(matcher)
    }

    pub(crate) fn handle(&self) -> &OwnedHandle {
        &self.0.handle
    }
}

/// Tracks which tokens a constraint allows next, for programs that choose tokens themselves. Each call waits for a reply.
pub struct Matcher(pub(crate) OwnedHandle);

impl Matcher {
    /// A copy in the same state.
    pub async fn fork(&self) -> Result<Self, Error> {
        self.0.late.check()?;
        let fork = Matcher(OwnedHandle::new(&self.0.session, Kind::Matcher));
        let call = Call::ForkMatcher {
            matcher: fork.0.number,
            from: self.0.number,
        };
        fork.0.post(call).await?;
        Ok(fork)
    }

    /// The allowed tokens as a bit mask: token t is bit t mod 32 of word t / 32.
    pub async fn mask(&self) -> Result<Vec<u32>, Error> {
        let matcher = self.0.number;
        let Words(words) = self.call(Call::Mask { matcher }).await?;
        Ok(words)
    }

    /// Whether the token may follow.
    pub async fn allows(&self, token: Token) -> Result<bool, Error> {
        let matcher = self.0.number;
        self.call(Call::Allows { matcher, token }).await
    }

    /// Advances by one token.
    pub async fn accept(&self, token: Token) -> Result<(), Error> {
        let matcher = self.0.number;
        self.call(Call::Accept { matcher, token }).await
    }

    /// Advances over the tokens that the grammar forces next, and returns them.
    pub async fn forced(&self, max_tokens: u32) -> Result<Vec<Token>, Error> {
        let matcher = self.0.number;
        self.call(Call::Forced {
            matcher,
            max_tokens,
        })
        .await
    }

    /// Whether only an end-of-generation token can follow.
    pub async fn is_complete(&self) -> Result<bool, Error> {
        let matcher = self.0.number;
        self.call(Call::IsComplete { matcher }).await
    }

    async fn call<T: serde::de::DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        let value = self.0.session.call(call).await;
        // The replies to earlier commands have come before.
        self.0.late.check()?;
        value
    }
}
