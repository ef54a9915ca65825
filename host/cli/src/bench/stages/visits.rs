//! When requests came and when they were answered, and the same arrivals once more.

use std::time::Duration;

/// A request: when it was asked and when it was answered, counted from when the first could have been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Visit {
    pub(super) asked: Duration,
    pub(super) answered: Duration,
}

impl Visit {
    /// How long its answer took.
    pub(super) fn seconds(&self) -> f64 {
        self.answered.saturating_sub(self.asked).as_secs_f64()
    }
}

/// Requests that come when they came before.
pub(super) struct Arrivals {
    /// Their times and numbers, the last one first.
    coming: Vec<(Duration, usize)>,
}

/// Who is next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The request of this number has come.
    Here(usize),
    /// Nobody has come that was not told of; one will in so long.
    In(Duration),
    /// All have come.
    Nobody,
}

impl Arrivals {
    /// Of these requests, in the order of their numbers.
    pub(super) fn of(visits: &[Visit]) -> Self {
        let numbered = visits.iter().enumerate();
        let mut coming: Vec<_> = numbered.map(|(n, visit)| (visit.asked, n)).collect();
        coming.sort_unstable_by(|a, b| b.cmp(a));
        Self { coming }
    }

    /// Who is next, at a time counted as theirs are.
    pub(super) fn next(&mut self, now: Duration) -> Next {
        match self.coming.last() {
            None => Next::Nobody,
            Some((time, _)) if *time > now => Next::In(*time - now),
            Some((_, number)) => {
                let number = *number;
                self.coming.pop();
                Next::Here(number)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_when_they_came_and_in_that_order() {
        let visits = [5, 0, 5, 9].map(|asked| Visit {
            asked: Duration::from_secs(asked),
            answered: Duration::from_secs(asked + 2),
        });
        assert!((visits[3].seconds() - 2.0).abs() < 1e-9);
        let mut arrivals = Arrivals::of(&visits);
        let mut at = |seconds| arrivals.next(Duration::from_secs(seconds));
        assert_eq!(at(0), Next::Here(1));
        assert_eq!(at(3), Next::In(Duration::from_secs(2)));
        // Two have come by then, and the first of them was asked first.
        assert_eq!((at(6), at(6)), (Next::Here(0), Next::Here(2)));
        assert_eq!(at(8), Next::In(Duration::from_secs(1)));
        assert_eq!((at(9), at(9)), (Next::Here(3), Next::Nobody));
    }
}
