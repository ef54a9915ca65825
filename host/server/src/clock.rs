//! The time of day, for dates. Waits and limits use the monotonic clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time since 1970. A clock before that counts as 1970.
pub(crate) fn now() -> Duration {
    #[expect(clippy::disallowed_methods, reason = "dates have the time of day")]
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

/// The same in milliseconds.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(now().as_millis()).unwrap_or(u64::MAX)
}
