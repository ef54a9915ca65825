//! How quickly the queue moves: what a refused caller is told about when to come back.

use super::Time;
use std::time::Duration;

/// Shortest and longest wait that is ever told.
const BOUNDS: (f64, f64) = (1.0, 120.0);
/// Weight of the newest interval in the mean.
const NEWEST: f64 = 0.2;

/// Mean time between two requests leaving a queue in which more were waiting.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    last: Option<Time>,
    interval: Option<f64>,
}

impl Pace {
    /// A request left the queue.
    pub fn admitted(&mut self, now: Time) {
        if let Some(last) = self.last {
            let newest = now.saturating_sub(last).as_secs_f64();
            let mean = self.interval.unwrap_or(newest);
            self.interval = Some(mean + NEWEST * (newest - mean));
        }
        self.last = Some(now);
    }

    /// The queue is empty: the time until the next request comes says nothing of its pace.
    pub fn rest(&mut self) {
        self.last = None;
    }

    /// When a queue of so many will be half of what it is, in whole seconds. A queue that has not
    /// moved for longer than usual is as slow as that.
    pub fn retry_after(&self, now: Time, waiting: usize) -> Duration {
        let still = self
            .last
            .map_or(0.0, |last| now.saturating_sub(last).as_secs_f64());
        let interval = self.interval.unwrap_or(0.0).max(still);
        #[allow(clippy::cast_precision_loss)]
        let seconds = interval * waiting as f64 / 2.0;
        Duration::from_secs_f64(seconds.ceil().clamp(BOUNDS.0, BOUNDS.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_half_of_the_queues_time_within_bounds() {
        let mut pace = Pace::default();
        let seconds = Duration::from_secs;
        assert_eq!(pace.retry_after(seconds(0), 1000), seconds(1));
        for second in 0..100 {
            pace.admitted(Duration::from_millis(500 * second));
        }
        let now = Duration::from_millis(49_500);
        assert_eq!(pace.retry_after(now, 40), seconds(10));
        assert_eq!(pace.retry_after(now, 1_000_000), seconds(120));
        // A queue that stands still gets slower.
        assert_eq!(pace.retry_after(now + seconds(2), 40), seconds(40));
        // A quiet hour is no slow queue.
        pace.rest();
        pace.admitted(seconds(3600));
        assert_eq!(pace.retry_after(seconds(3600), 40), seconds(10));
    }
}
