//! Handles: what a program holds of the host, under its own numbers.

use crate::error::Error;
use crate::session::{Pending, Shared};
use session_protocol::{Call, Handle, Kind};
use std::sync::{Arc, OnceLock};

/// Keeps the error of commands about a handle that nobody waits for.
#[derive(Clone, Default)]
pub(crate) struct LateError(Arc<OnceLock<Error>>);

impl LateError {
    pub(crate) fn set(&self, error: Error) {
        // The first one explains the others.
        let _ = self.0.set(error);
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.0.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

/// A handle. Dropping it drops the host's.
pub(crate) struct OwnedHandle {
    pub(crate) session: Arc<Shared>,
    pub(crate) number: Handle,
    pub(crate) late: LateError,
    kind: Kind,
}

impl OwnedHandle {
    pub(crate) fn new(session: &Arc<Shared>, kind: Kind) -> Self {
        OwnedHandle {
            session: Arc::clone(session),
            number: session.new_number(),
            late: LateError::default(),
            kind,
        }
    }

    /// Sends a command about this handle.
    pub(crate) async fn post(&self, call: Call) -> Result<(), Error> {
        self.late.check()?;
        let pending = Pending::Posted(self.late.clone());
        self.session.send(call, pending).await
    }
}

impl Drop for OwnedHandle {
    fn drop(&mut self) {
        let (kind, handle) = (self.kind, self.number);
        // A session that has ended holds nothing.
        let _ = self
            .session
            .send_now(Call::Drop { kind, handle }, Pending::Ignored);
    }
}
