//! Limits lines in the log about events that repeat.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Least time between two lines.
const INTERVAL: Duration = Duration::from_secs(60);

/// When a line was logged last.
#[derive(Debug, Default)]
pub(super) struct LogInterval(Mutex<Option<Instant>>);

impl LogInterval {
    /// Whether to log an event that happens now. Counts it as logged.
    pub(super) fn should_log(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= INTERVAL);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_event_is_logged_once() {
        let log = LogInterval::default();
        assert_eq!([(); 3].map(|()| log.should_log()), [true, false, false]);
    }
}
