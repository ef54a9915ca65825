//! The request's remaining quota and time.

use std::time::Duration;

use crate::backend;

/// The result of [`remaining`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    /// Tokens that the request may still append, generate and embed; `None` if no quota applies.
    pub tokens: Option<u64>,
    /// Time until the request's deadline.
    pub time: Duration,
}

/// Returns the remaining quota and time of this request.
///
/// ```
/// use corral_sdk::{budget, testing::Script};
/// use std::time::Duration;
///
/// let script = Script::new().budget(Some(100), Duration::from_secs(5));
/// assert_eq!(script.run(async { budget::remaining().tokens }), Some(100));
/// ```
pub fn remaining() -> Remaining {
    let budget = backend::remaining();
    Remaining {
        tokens: budget.tokens,
        time: Duration::from_nanos(budget.time),
    }
}
