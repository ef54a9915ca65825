//! Wakes the engine thread while it waits for commands.

use std::fmt::Debug;
use std::sync::Arc;

/// Tells the engine thread that something outside the command channel changed: a sampled token, a state read
/// from disk, a reader that went away. The default does nothing.
#[derive(Clone)]
pub struct EngineWaker(Arc<dyn Fn() + Send + Sync>);

impl EngineWaker {
    /// A waker that calls `wake`, which must not block.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(wake))
    }

    /// Wakes the engine thread.
    pub fn wake(&self) {
        (self.0)();
    }
}

impl Default for EngineWaker {
    fn default() -> Self {
        Self::new(|| {})
    }
}

impl Debug for EngineWaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineWaker").finish_non_exhaustive()
    }
}
