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
    interval: f64,
}

impl Pace {
    /// A request left the queue.
    pub fn admitted(&mut self, now: Time) {
        if let Some(last) = self.last {
            let interval = now.saturating_sub(last).as_secs_f64();
            self.interval += NEWEST * (interval - self.interval);
        }
        self.last = Some(now);
    }

    /// The queue is empty: the time until the next request comes says nothing of its pace.
    pub fn rest(&mut self) {
        self.last = None;
    }

    /// When a queue of so many will be half of what it is, in whole seconds.
    pub fn retry_after(&self, waiting: usize) -> Duration {
        #[allow(clippy::cast_precision_loss)]
        let seconds = self.interval * waiting as f64 / 2.0;
        Duration::from_secs_f64(seconds.ceil().clamp(BOUNDS.0, BOUNDS.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_half_of_the_queues_time_within_bounds() {
        let mut pace = Pace::default();
        assert_eq!(pace.retry_after(1000), Duration::from_secs(1));
        for second in 0..100 {
            pace.admitted(Duration::from_millis(500 * second));
        }
        assert_eq!(pace.retry_after(40), Duration::from_secs(10));
        assert_eq!(pace.retry_after(1_000_000), Duration::from_secs(120));
        // A quiet hour is no slow queue.
        pace.rest();
        pace.admitted(Duration::from_secs(3600));
        assert_eq!(pace.retry_after(40), Duration::from_secs(10));
    }
}
