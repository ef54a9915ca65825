//! Callers that return with the next token: how long a step waits for them.
//!
//! A guest that samples for itself, or an external sampler, receives a distribution and comes back with one token. A
//! step without it takes nearly as long as one with it. So where all that could be computed belongs to such callers, a
//! step waits for the others that received something lately. The wait is as long as the step that served the caller,
//! but at most max(2 ms, 4 % of that step), and never longer than 10 ms. A caller that was late is not waited for again
//! until it has been in time once.

use crate::Time;
use crate::retention::{Retention, WeakRetention};
use std::time::Duration;

/// The longest wait after a short step, and the part of a long step to wait for.
const MAX_WAIT: Duration = Duration::from_millis(2);
const STEP_PART: f64 = 0.04;
/// The longest wait after any step.
const MAX_WAIT_AFTER_LONG_STEP: Duration = Duration::from_millis(10);
/// Callers that are remembered: more than there are sequence ids.
const MAX_CALLERS: usize = 256;

/// Callers that have not returned.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReturningCallers(Vec<AwaitedCaller>);

#[derive(Clone, Debug)]
struct AwaitedCaller {
    /// Identifies the caller; once released, it does not return.
    retention: WeakRetention,
    /// How long to wait for it.
    patience: Duration,
    /// When it received its distribution; set by the next plan.
    since: Option<Time>,
    /// Whether it was late the last time. Then no step waits for it.
    was_late: bool,
}

impl AwaitedCaller {
    fn until(&self) -> Option<Time> {
        Some(self.since? + self.patience)
    }
}

impl ReturningCallers {
    /// Expects a caller to return with the next token: it receives the result of a step that took `took`.
    pub fn expect(&mut self, retention: WeakRetention, was_late: bool, took: Duration) {
        // A request that was preempted receives its result a second time.
        self.0
            .retain(|caller| caller.retention.is_held() && !caller.retention.is_same(&retention));
        if !retention.is_held() {
            return;
        }
        if self.0.len() >= MAX_CALLERS {
            self.0.remove(0);
        }
        let part = took.mul_f64(STEP_PART).min(MAX_WAIT_AFTER_LONG_STEP);
        self.0.push(AwaitedCaller {
            retention,
            patience: took.min(MAX_WAIT.max(part)),
            since: None,
            was_late,
        });
    }

    /// Starts the waits for the callers that received a result of the last step.
    pub fn start_waits(&mut self, now: Time) {
        for caller in &mut self.0 {
            caller.since.get_or_insert(now);
        }
    }

    /// Records that the caller who holds `retention` returned at `at`. Returns whether it was late; false if it was not
    /// expected.
    pub fn returned(&mut self, retention: &Retention, at: Time) -> bool {
        self.remove(|expected| expected.refers_to(retention), at)
    }

    /// Records that the external sampler of the request with this retention answered at `at`. Returns whether it was
    /// late; false if it was not expected.
    pub fn answered(&mut self, retention: &WeakRetention, at: Time) -> bool {
        self.remove(|expected| expected.is_same(retention), at)
    }

    /// Removes a caller that returned. Returns whether it was late.
    fn remove(&mut self, matches: impl Fn(&WeakRetention) -> bool, at: Time) -> bool {
        let found = self.0.iter().position(|caller| matches(&caller.retention));
        let Some(index) = found else {
            return false;
        };
        let caller = self.0.remove(index);
        caller.until().is_some_and(|until| at > until)
    }

    /// Until when to wait for callers that have not returned, if there are any to wait for.
    pub fn wait_until(&self, now: Time) -> Option<Time> {
        let expected = self.0.iter().filter(|caller| !caller.was_late);
        let until = expected
            .filter(|caller| caller.retention.is_held())
            .filter_map(AwaitedCaller::until);
        until.max().filter(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn wait_ends_when_callers_return_or_leave() {
        let (one, other) = (Retention::default(), Retention::default());
        let mut callers = ReturningCallers::default();
        callers.expect(one.downgrade(), false, MS);
        callers.expect(other.downgrade(), false, 9 * MS);
        assert_eq!(callers.wait_until(10 * MS), None, "the step is not over");
        callers.start_waits(10 * MS);
        assert_eq!(callers.wait_until(10 * MS), Some(12 * MS), "2 ms at most");
        assert!(!callers.returned(&other, 11 * MS));
        assert_eq!(callers.wait_until(10 * MS), Some(11 * MS), "one step");
        assert_eq!(callers.wait_until(11 * MS), None);
        drop(one);
        assert_eq!(callers.wait_until(10 * MS), None);
        assert!(!callers.returned(&other, 20 * MS), "it was not expected");
    }

    #[test]
    fn late_caller_is_awaited_after_one_in_time() {
        let retention = Retention::default();
        let mut callers = ReturningCallers::default();
        let mut round = |since: u32, back: u32, was_late: bool| {
            callers.expect(retention.downgrade(), was_late, 5 * MS);
            callers.start_waits(since * MS);
            let waits = callers.wait_until(since * MS).is_some();
            (waits, callers.returned(&retention, back * MS))
        };
        // Each: whether the step waits, and whether the caller is late.
        assert_eq!(round(0, 3, false), (true, true));
        assert_eq!(round(10, 11, true), (false, false));
        assert_eq!(round(20, 21, false), (true, false));
    }

    #[test]
    fn wait_is_longer_after_long_steps() {
        let retention = Retention::default();
        let until = |took: u32| {
            let mut callers = ReturningCallers::default();
            callers.expect(retention.downgrade(), false, took * MS);
            callers.start_waits(Time::ZERO);
            callers.wait_until(Time::ZERO)
        };
        let waits = [1, 20, 100, 1_000].map(until);
        assert_eq!(waits, [MS, 2 * MS, 4 * MS, 10 * MS].map(Some));
    }

    #[test]
    fn second_result_restarts_the_wait() {
        let retention = Retention::default();
        let mut callers = ReturningCallers::default();
        for since in [0, 20] {
            callers.expect(retention.downgrade(), false, 5 * MS);
            callers.start_waits(since * MS);
        }
        assert!(!callers.answered(&retention.downgrade(), 21 * MS));
        assert_eq!(callers.wait_until(21 * MS), None);
    }

    #[test]
    fn callers_that_leave_are_forgotten() {
        let mut callers = ReturningCallers::default();
        let held: Vec<_> = (0..2 * MAX_CALLERS).map(|_| Retention::default()).collect();
        for retention in &held {
            callers.expect(retention.downgrade(), false, MS);
        }
        assert_eq!(callers.0.len(), MAX_CALLERS);
        drop(held);
        callers.expect(Retention::default().downgrade(), false, MS);
        assert_eq!(callers.0.len(), 1);
    }
}
