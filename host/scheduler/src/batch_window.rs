//! The batch window: short waits so that requests share steps.
//!
//! *Before the first step.* If nothing runs but several requests ran lately, more are on their way: clients whose
//! answers ended in the same step send their next requests within moments, and so do the tasks of a batch. Computing
//! the first prompt alone would leave the others to small chunks beside its tokens; that takes nearly as many more
//! steps as there are requests, each with fewer rows. So the first step waits until as many requests wait as usually
//! run, but only for a small part of the time of the first prompt, which is all that it costs if none comes.
//!
//! *Between steps.* If all ready requests are sampled externally, the step waits a moment for
//! [callers that return](crate::returning_callers).
//!
//! A request that decodes in the engine never waits for either.

use crate::Time;
use crate::returning_callers::ReturningCallers;
use std::time::Duration;

/// The part of the first step's time to wait, and the longest wait.
const STEP_PART: f64 = 0.03;
const MAX_WAIT: Duration = Duration::from_millis(5);
/// A next-token request with fewer tokens to compute continues an earlier one, and does not wait.
pub(crate) const MIN_TOKENS: u32 = 16;

/// The waits.
#[derive(Clone, Debug, Default)]
pub(crate) struct BatchWindow {
    /// The end of the wait before the first step, while it lasts.
    closes_at: Option<Time>,
    pub callers: ReturningCallers,
    /// Until when the last planned step waits.
    waits_until: Option<Time>,
}

impl BatchWindow {
    /// How long to wait where the first step takes so many seconds.
    pub fn length(step_seconds: f64) -> Duration {
        let seconds = (STEP_PART * step_seconds).min(MAX_WAIT.as_secs_f64());
        Duration::from_secs_f64(seconds.max(0.0))
    }

    /// Whether a wait before the first step is in progress.
    pub fn is_open(&self) -> bool {
        self.closes_at.is_some()
    }

    /// Until when the first step waits for more requests; `None` if it does not. A new wait has this `length`. No request
    /// may expire before its end, at `next_timer`.
    pub fn hold(
        &mut self,
        now: Time,
        length: Option<Duration>,
        next_timer: Option<Time>,
    ) -> Option<Time> {
        let until = match self.closes_at.take() {
            Some(until) => until,
            None => now + length?,
        };
        let expires = next_timer.is_some_and(|time| time <= until);
        self.closes_at = (now < until && !expires).then_some(until);
        self.closes_at
    }

    /// Ends the wait before the first step.
    pub fn close(&mut self) {
        self.closes_at = None;
    }

    /// Sets until when the planned step waits.
    pub fn set_wait(&mut self, until: Option<Time>) {
        self.waits_until = until;
    }

    /// Until when the last planned step waits.
    pub fn waits_until(&self) -> Option<Time> {
        self.waits_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn window_is_a_part_of_the_step() {
        assert_eq!(BatchWindow::length(0.1), 3 * MS);
        assert_eq!(BatchWindow::length(10.0), MAX_WAIT);
        assert_eq!(BatchWindow::length(-1.0), Duration::ZERO);
    }

    #[test]
    fn window_keeps_its_end_and_respects_timers() {
        let mut window = BatchWindow::default();
        assert_eq!(window.hold(10 * MS, Some(3 * MS), None), Some(13 * MS));
        assert_eq!(window.hold(11 * MS, None, None), Some(13 * MS));
        assert_eq!(window.hold(13 * MS, None, None), None);
        assert_eq!(window.hold(13 * MS, None, None), None);
        let timer = Some(21 * MS);
        assert_eq!(window.hold(20 * MS, Some(3 * MS), timer), None);
    }
}
