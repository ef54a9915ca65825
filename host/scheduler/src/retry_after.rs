//! The `Retry-After` estimate: when the queue is expected to be half as long. A refused client needs one free slot, not
//! an empty queue; half the queue leaves slots for the other refused clients.

use crate::Time;
use std::time::Duration;

/// Shortest and longest estimate in seconds.
const BOUNDS: (f64, f64) = (1.0, 120.0);
/// Weight of the newest interval in the mean.
const NEWEST: f64 = 0.2;

/// Mean time between two requests that leave a queue in which more wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct RetryAfter {
    last: Option<Time>,
    interval: Option<f64>,
}

impl RetryAfter {
    /// Records that a request left the queue.
    pub fn admitted(&mut self, now: Time) {
        if let Some(last) = self.last {
            let newest = now.saturating_sub(last).as_secs_f64();
            let mean = self.interval.unwrap_or(newest);
            self.interval = Some(mean + NEWEST * (newest - mean));
        }
        self.last = Some(now);
    }

    /// Records that the queue is empty. The time until the next request says nothing about how fast it moves.
    pub fn queue_emptied(&mut self) {
        self.last = None;
    }

    /// The estimate for a queue of this length, in whole seconds. A queue that has not moved for longer than its mean
    /// interval counts as that slow.
    pub fn estimate(&self, now: Time, queue: usize) -> Duration {
        let idle = self
            .last
            .map_or(0.0, |last| now.saturating_sub(last).as_secs_f64());
        let interval = self.interval.unwrap_or(0.0).max(idle);
        #[allow(clippy::cast_precision_loss)]
        let seconds = interval * queue as f64 / 2.0;
        Duration::from_secs_f64(seconds.ceil().clamp(BOUNDS.0, BOUNDS.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_is_half_the_queue_within_bounds() {
        let mut retry = RetryAfter::default();
        let seconds = Duration::from_secs;
        assert_eq!(retry.estimate(seconds(0), 1000), seconds(1));
        for second in 0..100 {
            retry.admitted(Duration::from_millis(500 * second));
        }
        let now = Duration::from_millis(49_500);
        assert_eq!(retry.estimate(now, 40), seconds(10));
        assert_eq!(retry.estimate(now, 1_000_000), seconds(120));
        // A queue that stands still counts as slower.
        assert_eq!(retry.estimate(now + seconds(2), 40), seconds(40));
        // An hour without requests does not count.
        retry.queue_emptied();
        retry.admitted(seconds(3600));
        assert_eq!(retry.estimate(seconds(3600), 40), seconds(10));
    }
}
