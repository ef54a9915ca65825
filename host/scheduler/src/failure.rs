//! What happens after a failed step: which request is at fault, and when to try again.
//!
//! A failed step is halved until it succeeds. A request that fails alone, with one token, several times while others
//! succeed, is failed itself, so that one bad request can't take others with it. If all requests fail, the device is
//! at fault: for a while no request is failed, and the pauses between attempts grow. A failure right after another
//! request failed alone, with no success in between, may have the same cause in the device and counts half.
//!
//! On a model whose state cannot be truncated (recurrent, hybrid or sliding-window), the requests of a failed step
//! start again from their first token. They compute together up to the position of the failure, then pass it one at a
//! time. A failure before that position is *excused*: the request has passed there before. After [`MAX_JOINT`] failed
//! steps that did not get there, each request computes alone.
//!
//! Bounds that the random workloads check: a bad request ends after at most 60 failed steps, and a
//! sound one ends only if at least three device faults hit it alone without progress.

use crate::Time;
use crate::request::RequestId;
use crate::running::RunningRequests;
use crate::step::Row;
use std::time::Duration;

/// A request fails after this many failures alone with one token, while others succeed. This bound and [`MAX_EXCUSED`]
/// are multiplied by the number of adapters in use, see [`Strikes::add`].
const MAX_STRIKES: u8 = 3;
/// A request fails after this many excused failures. On a device that fails every step above some size,
/// or every other one, the request never reaches its position again.
const MAX_EXCUSED: u8 = 16;
/// A request fails if it failed alone for so long while no step succeeded, and at least [`MAX_STRIKES`] failed.
const OUTAGE: Duration = Duration::from_secs(3);
/// After this many failed steps of several requests without recovery, each request computes alone, if sequences cannot
/// be truncated.
const MAX_JOINT: u8 = 8;
/// Shortest and longest pause after a failure with one token.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// How much the failure of a request alone counts against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blame {
    /// Not at all: it succeeded at this position before.
    Excused,
    /// Half: another request just failed alone.
    Half,
    Full,
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
    fn add(&mut self, now: Time, failure: &FailureHandling, adapters: u8, blame: Blame) -> bool {
        let since = match self.since {
            Some(since) if failure.successes == self.successes => since,
            _ => {
                let (counted, more) = match blame {
                    Blame::Excused => (&mut self.excused, 1),
                    Blame::Half => (&mut self.halves, 1),
                    Blame::Full => (&mut self.halves, 2),
                };
                *counted = counted.saturating_add(more);
                self.successes = failure.successes;
                *self.since.insert(now)
            }
        };
        self.adapters = self.adapters.max(adapters);
        let outage = now.saturating_sub(since) >= OUTAGE * u32::from(adapters);
        self.halves >= (2 * MAX_STRIKES).saturating_mul(self.adapters)
            || self.excused >= MAX_EXCUSED.saturating_mul(self.adapters)
            || (outage && failure.failures >= MAX_STRIKES)
    }
}

/// The state of recovery.
#[derive(Clone, Debug)]
pub(crate) struct FailureHandling {
    /// Tokens of a step while all is well.
    max_step_tokens: u32,
    /// Tokens of the next step: fewer only after a failure.
    step_tokens: u32,
    /// Successful steps in all.
    successes: u64,
    /// Failed steps since the last success.
    failures: u8,
    /// Whether a request failed alone since the last success.
    failed_alone: bool,
    /// Failed steps of several requests since all was well.
    joint_failures: u8,
    /// When the next attempt is due, and the length of the pause.
    pause: Option<(Time, Duration)>,
}

impl FailureHandling {
    /// No step has failed. Steps have at most this many tokens.
    pub fn new(max_step_tokens: u32) -> Self {
        Self {
            max_step_tokens,
            step_tokens: max_step_tokens,
            successes: 0,
            failures: 0,
            failed_alone: false,
            joint_failures: 0,
            pause: None,
        }
    }

    /// Whether steps are small because one failed, or a request has still to pass the position of a failure.
    pub fn is_recovering(&self, running: &RunningRequests) -> bool {
        self.step_tokens < self.max_step_tokens
            || running.iter().any(|running| running.failed_at.is_some())
    }

    /// Successful steps in all.
    pub fn successes(&self) -> u64 {
        self.successes
    }

    /// Most tokens of the next step.
    pub fn step_tokens(&self) -> u32 {
        self.step_tokens
    }

    /// Whether each request is to be tried alone, where requests start again after a failure.
    pub fn is_one_by_one(&self) -> bool {
        self.joint_failures >= MAX_JOINT
    }

    /// Allows half of the tokens that failed.
    pub fn halve(&mut self, tokens: u32) {
        self.step_tokens = (tokens / 2).max(1);
    }

    /// When the next attempt is due.
    pub fn paused_until(&self) -> Option<Time> {
        self.pause.map(|(until, _)| until)
    }

    /// Records a successful step.
    pub fn step_succeeded(&mut self, rows: &[Row], running: &mut RunningRequests) {
        self.successes += 1;
        self.failures = 0;
        self.failed_alone = false;
        self.pause = None;
        if self.is_recovering(running) {
            self.step_tokens = self.step_tokens.saturating_mul(2).min(self.max_step_tokens);
            // The requests that were left out come next.
            running.move_rows_to_end(rows);
        } else {
            self.joint_failures = 0;
        }
    }

    /// Records a failed step. Returns a request to fail.
    pub fn step_failed(
        &mut self,
        rows: &[Row],
        running: &mut RunningRequests,
        now: Time,
        can_truncate: bool,
    ) -> Option<RequestId> {
        self.failures = self.failures.saturating_add(1);
        let tokens: u32 = rows.iter().map(Row::tokens).sum();
        if tokens > 1 {
            self.halve(tokens);
            let joint = rows.len() > 1;
            self.joint_failures = self.joint_failures.saturating_add(u8::from(joint));
            // Where requests start again, a smaller step would not get to the same position. So a request that is
            // alone gets the blame, whatever its tokens.
            return match rows {
                [row] if !can_truncate => self.strike(row, running, now),
                _ => None,
            };
        }
        let pause = self.pause.map_or(PAUSES.0, |(_, last)| 2 * last);
        let pause = pause.min(PAUSES.1);
        self.pause = Some((now + pause, pause));
        self.strike(rows.first()?, running, now)
    }

    /// Records that a request failed alone. Returns the request if it is to be failed.
    fn strike(&mut self, row: &Row, running: &mut RunningRequests, now: Time) -> Option<RequestId> {
        let adapters = running.adapters();
        let one = running.get_mut(row.request)?;
        let blame = match std::mem::replace(&mut self.failed_alone, true) {
            _ if one.failed_at.is_some_and(|at| row.to <= at) => Blame::Excused,
            true => Blame::Half,
            false => Blame::Full,
        };
        let fails = one.strikes.add(now, self, adapters, blame);
        // The next request is tried alone, which tells whether this one is at fault.
        running.move_to_end(row.request);
        fails.then_some(row.request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many failures, each after a success and with this many adapters, a request is failed.
    fn failed_after(failures: impl IntoIterator<Item = (u8, Blame)>) -> Option<usize> {
        let (mut strikes, mut failure) = (Strikes::default(), FailureHandling::new(8));
        let mut fails = failures.into_iter().map(|(adapters, blame)| {
            failure.successes += 1;
            strikes.add(Time::ZERO, &failure, adapters, blame)
        });
        fails.position(|fails| fails).map(|before| before + 1)
    }

    #[test]
    fn most_adapters_set_the_bound() {
        let full = |adapters: &[u8]| failed_after(adapters.iter().map(|&n| (n, Blame::Full)));
        assert_eq!(full(&[1; 20]), Some(3));
        assert_eq!(full(&[3; 20]), Some(9));
        assert_eq!(full(&[3, 2, 2, 1]), None);
        assert_eq!(full(&[[3, 2, 2].as_slice(), &[1; 20]].concat()), Some(9));
    }

    #[test]
    fn failure_after_another_request_counts_half() {
        use Blame::{Excused, Full, Half};
        let alone = |blames: &[Blame]| failed_after(blames.iter().map(|&blame| (1, blame)));
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
        assert_eq!(failed_after([(adapters, Blame::Full); 300]), Some(most));
        assert_eq!(failed_after([(adapters, Blame::Half); 300]), Some(2 * most));
    }
}
