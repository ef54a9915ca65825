//! Decides when a request that fails in steps of its own is failed. See [`failure`](crate::failure) for the rules.

use crate::Time;
use std::time::Duration;

/// A request is failed after this many failures alone with one token, while others succeed. This bound and
/// [`MAX_EXCUSED_FAILURES`] are multiplied by the number of adapters in use, see [`Strikes::add`].
const MAX_STRIKES: u8 = 3;
/// A request is failed after this many excused failures. On a device that fails every step above some size,
/// or every other one, the request never reaches its position again.
const MAX_EXCUSED_FAILURES: u8 = 16;
/// A request is failed if it failed alone for this long while no step succeeded, and at least [`MAX_STRIKES`] steps failed.
const MAX_OUTAGE: Duration = Duration::from_secs(3);

/// How much a failure of a request alone counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StrikeWeight {
    /// Not at all: it succeeded at this position before.
    Excused,
    /// Half: another request just failed alone.
    Half,
    Full,
}

/// When a request failed alone, and how the steps went before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub now: Time,
    /// Successful steps in all.
    pub successes: u64,
    /// Failed steps since the last success.
    pub failures: u8,
}

/// How often a request failed alone since its last progress. Failures without a successful step in between count once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Strikes {
    /// In halves.
    halves: u8,
    excused: u8,
    /// The first failure after which no step succeeded.
    since: Option<Time>,
    /// Successful steps, in all, at the last failure.
    successes: u64,
    /// The most adapters in use at one of the failures.
    adapters: u8,
}

impl Strikes {
    /// Forgets all failures.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Adds a failure. True if the request is to be failed.
    ///
    /// With `n` adapters in use a request has a row in every n-th step only, so it meets `n` times as many device
    /// faults before it makes progress. So the bounds are multiplied by the most adapters in use since its last
    /// progress; the length of an outage by those in use now.
    pub fn add(&mut self, failure: Failure, adapters: u8, weight: StrikeWeight) -> bool {
        let now = failure.now;
        let since = match self.since {
            Some(since) if failure.successes == self.successes => since,
            _ => {
                let (counted, more) = match weight {
                    StrikeWeight::Excused => (&mut self.excused, 1),
                    StrikeWeight::Half => (&mut self.halves, 1),
                    StrikeWeight::Full => (&mut self.halves, 2),
                };
                *counted = counted.saturating_add(more);
                self.successes = failure.successes;
                *self.since.insert(now)
            }
        };
        self.adapters = self.adapters.max(adapters);
        let outage = now.saturating_sub(since) >= MAX_OUTAGE * u32::from(adapters);
        self.halves >= (2 * MAX_STRIKES).saturating_mul(self.adapters)
            || self.excused >= MAX_EXCUSED_FAILURES.saturating_mul(self.adapters)
            || (outage && failure.failures >= MAX_STRIKES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many failures, each after a success and with this many adapters, a request is failed.
    fn failed_after(failures: impl IntoIterator<Item = (u8, StrikeWeight)>) -> Option<usize> {
        let mut strikes = Strikes::default();
        let mut fails = (1..).zip(failures).map(|(successes, (adapters, weight))| {
            let failure = Failure {
                now: Time::ZERO,
                successes,
                failures: 0,
            };
            strikes.add(failure, adapters, weight)
        });
        fails.position(|fails| fails).map(|before| before + 1)
    }

    #[test]
    fn most_adapters_set_the_bound() {
        let full =
            |adapters: &[u8]| failed_after(adapters.iter().map(|&n| (n, StrikeWeight::Full)));
        assert_eq!(full(&[1; 20]), Some(3));
        assert_eq!(full(&[3; 20]), Some(9));
        assert_eq!(full(&[3, 2, 2, 1]), None);
        assert_eq!(full(&[[3, 2, 2].as_slice(), &[1; 20]].concat()), Some(9));
    }

    #[test]
    fn failure_after_another_request_counts_half() {
        use StrikeWeight::{Excused, Full, Half};
        let alone =
            |weights: &[StrikeWeight]| failed_after(weights.iter().map(|&weight| (1, weight)));
        assert_eq!(alone(&[Half; 20]), Some(6));
        assert_eq!(alone(&[Half, Full, Half, Half, Half]), Some(5));
        assert_eq!(alone(&[Full, Half, Full, Half]), Some(4));
        assert_eq!(alone(&[Full, Excused, Half, Excused, Full]), None);
        assert_eq!(alone(&[Excused; 20]), Some(16));
    }

    #[test]
    fn bounds_of_all_adapters_fit_the_counters() {
        let adapters = crate::AdapterId::MAX + 1;
        let most = usize::from(adapters) * usize::from(MAX_STRIKES);
        assert_eq!(
            failed_after([(adapters, StrikeWeight::Full); 300]),
            Some(most)
        );
        assert_eq!(
            failed_after([(adapters, StrikeWeight::Half); 300]),
            Some(2 * most)
        );
    }
}
