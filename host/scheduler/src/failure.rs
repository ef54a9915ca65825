//! What happens after a failed step: which request is at fault, and when to try again.
//!
//! A failed step is halved until it succeeds. A request that fails alone, with one token, several times while others
//! succeed, is failed itself, so that one bad request can't take others with it. If all requests fail, the device is
//! at fault: for a while no request is failed, and the pauses between attempts grow. A failure right after another
//! request failed alone, with no success in between, may have the same cause in the device and counts half.
//!
//! On a model whose state cannot be truncated (recurrent, hybrid or sliding-window), the requests of a failed step
//! start again from their first token. They compute together up to the position of the failure, then pass it one at a
//! time. A failure before that position is *excused*: the request has passed there before. After [`MAX_JOINT_FAILURES`] failed
//! steps that did not get there, each request computes alone.
//!
//! Bounds that the random workloads check: a bad request ends after at most 60 failed steps, and a
//! sound one ends only if at least three device faults hit it alone without progress.
//!
//! What each part holds, with the figure that is lost without it:
//! - *Halving*: 24 failed steps find one bad request of 64 rows. On a device that fails above 16 tokens, a step has 7.8
//!   tokens on average; 5.0 if each failure starts again at one token.
//! - *Three strikes* ([`strikes`](crate::strikes)): with one, an outage of 15 steps fails a sound request.
//! - *Half weight*: otherwise a sound request next to a bad one fails after three faults instead of six.
//! - *Outage*: otherwise requests on a dead device never fail.
//! - *`failed_at`*: a bad request beside four others is found after 4 failed steps of 73.
//! - *Excuse*: on a device that fails every fourth step, 3 of 6 prompts of 200 tokens succeed; otherwise 2. Without the
//!   bound on excused failures some requests never end.
//! - *One by one*: these six end after 266 steps; otherwise after 282.
//!
//! The last three matter only where state cannot be truncated. `tests/scheduler/failures.rs` checks their figures.

use crate::Time;
use crate::request::RequestId;
use crate::running::RunningRequests;
use crate::step::Row;
use crate::strikes::{Failure, StrikeWeight};
use std::time::Duration;

/// After this many failed steps of several requests without recovery, each request computes alone, if sequences cannot
/// be truncated.
const MAX_JOINT_FAILURES: u8 = 8;
/// Shortest and longest pause after a failed step of one token.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// The state of recovery.
#[derive(Clone, Debug)]
pub(crate) struct FailureHandling {
    /// Tokens of a step, unless recovering.
    max_step_tokens: u32,
    /// Tokens of the next step: fewer only after a failure.
    step_tokens: u32,
    /// Successful steps in all.
    successes: u64,
    /// Failed steps since the last success.
    failures: u8,
    /// Whether a request failed alone since the last success.
    failed_alone: bool,
    /// Failed steps of several requests since recovery began.
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
        self.joint_failures >= MAX_JOINT_FAILURES
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
            // alone gets the weight, whatever its tokens.
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
        let weight = match std::mem::replace(&mut self.failed_alone, true) {
            _ if one.failed_at.is_some_and(|at| row.to <= at) => StrikeWeight::Excused,
            true => StrikeWeight::Half,
            false => StrikeWeight::Full,
        };
        let failure = Failure {
            now,
            successes: self.successes,
            failures: self.failures,
        };
        let fails = one.strikes.add(failure, adapters, weight);
        // The next request is tried alone, which tells whether this one is at fault.
        running.move_to_end(row.request);
        fails.then_some(row.request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::RunningRequest;
    use crate::step::SeqId;
    use crate::tests::request;

    fn running(count: u64) -> RunningRequests {
        let mut running = RunningRequests::default();
        for key in 0..count {
            running.push(RunningRequest::new(
                request(key, 8, 1),
                SeqId(key as u16),
                0,
                key,
            ));
        }
        running
    }

    fn rows(running: &RunningRequests, tokens: u32) -> Vec<Row> {
        running.iter().map(|one| one.row(tokens)).collect()
    }

    #[test]
    fn pauses_grow_and_end_with_a_success() {
        let (mut failure, mut running) = (FailureHandling::new(32), running(1));
        let rows = rows(&running, 1);
        let mut pause = || {
            failure.step_failed(&rows, &mut running, Time::ZERO, true);
            failure.paused_until().map(|until| until.as_millis())
        };
        let pauses = [(); 7].map(|()| pause());
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 200].map(Some));
        failure.step_succeeded(&rows, &mut running);
        assert_eq!(failure.paused_until(), None);
    }
}
