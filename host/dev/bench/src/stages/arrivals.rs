//! When requests were sent and answered, and the same arrivals again.

use std::time::Duration;

/// The times of a request, from the start of the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestSpan {
    pub(super) sent: Duration,
    pub(super) answered: Duration,
}

impl RequestSpan {
    pub(super) fn seconds(&self) -> f64 {
        self.answered.saturating_sub(self.sent).as_secs_f64()
    }
}

/// Replays the arrivals of earlier requests.
pub(super) struct Arrivals {
    /// Times and numbers, the last one first.
    pending: Vec<(Duration, usize)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextArrival {
    /// This request has arrived.
    Now(usize),
    /// The next request arrives in this time.
    In(Duration),
    /// All requests have arrived.
    None,
}

impl Arrivals {
    pub(super) fn new(spans: &[RequestSpan]) -> Self {
        let numbered = spans.iter().enumerate();
        let mut pending: Vec<_> = numbered.map(|(n, span)| (span.sent, n)).collect();
        pending.sort_unstable_by(|a, b| b.cmp(a));
        Self { pending }
    }

    /// The next request at this time after the start.
    pub(super) fn next(&mut self, now: Duration) -> NextArrival {
        match self.pending.last() {
            None => NextArrival::None,
            Some((time, _)) if *time > now => NextArrival::In(*time - now),
            Some(&(_, number)) => {
                self.pending.pop();
                NextArrival::Now(number)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_repeat_in_order() {
        let spans = [5, 0, 5, 9].map(|sent| RequestSpan {
            sent: Duration::from_secs(sent),
            answered: Duration::from_secs(sent + 2),
        });
        assert!((spans[3].seconds() - 2.0).abs() < 1e-9);
        let mut arrivals = Arrivals::new(&spans);
        let mut at = |seconds| arrivals.next(Duration::from_secs(seconds));
        let in_seconds = |seconds| NextArrival::In(Duration::from_secs(seconds));
        assert_eq!(at(0), NextArrival::Now(1));
        assert_eq!(at(3), in_seconds(2));
        // Two have arrived; the one with the lower number is first.
        assert_eq!((at(6), at(6)), (NextArrival::Now(0), NextArrival::Now(2)));
        assert_eq!(at(8), in_seconds(1));
        assert_eq!((at(9), at(9)), (NextArrival::Now(3), NextArrival::None));
    }
}
