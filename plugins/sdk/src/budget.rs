//! What is left to use.

use std::time::Duration;

use crate::backend;

/// What a request may still use; see [`left`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Tokens that it may still append, generate and embed, as far as the quotas say now; nothing if
    /// none limits it.
    pub tokens: Option<u64>,
    /// Until its deadline.
    pub time: Duration,
}

/// What this request may still use.
///
/// ```
/// use corral_sdk::{budget, testing::Script};
/// use std::time::Duration;
///
/// let script = Script::new().budget(Some(100), Duration::from_secs(5));
/// assert_eq!(script.run(async { budget::left().tokens }), Some(100));
/// ```
pub fn left() -> Left {
    let left = backend::left();
    Left {
        tokens: left.tokens,
        time: Duration::from_nanos(left.time),
    }
}
