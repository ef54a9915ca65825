//! The batch window: short waits so that requests share steps.
//!
//! *Before the first step.* If nothing runs but several requests ran lately, more are on their way: clients whose
//! answers ended in the same step send their next requests within moments, and so do the tasks of a batch. If the
//! first prompt were computed alone, its request would decode while the others are computed in small chunks: nearly as
//! many more steps as there are requests, each with fewer rows. So the first step waits until as many requests wait as
//! usually run, but only for a small part of the time of the first prompt: that is all it costs if none comes.
//!
//! *Between steps.* If all ready requests are sampled externally, the step waits a moment for
//! [callers that return](crate::returning_callers).
//!
//! A request that decodes in the engine never waits for either.

use crate::Time;
use crate::returning_callers::ReturningCallers;
use std::time::Duration;

/// The part of the first step's time to wait.
const STEP_PART: f64 = 0.03;
/// The longest wait.
const MAX_WAIT: Duration = Duration::from_millis(5);
/// A next-token request with fewer tokens to compute continues an earlier one, and does not wait.
pub(crate) const MIN_TOKENS: u32 = 16;
/// Decay per step of the recent maximum of running requests.
const MAXIMUM_DECAY: f64 = 1.0 / 256.0;
/// The fraction of that maximum that rounds up to one.
const ROUND_UP: f64 = 0.25;

/// The waits.
#[derive(Clone, Debug, Default)]
pub(crate) struct BatchWindow {
    /// The end of the wait before the first step, while it lasts.
    closes_at: Option<Time>,
    pub callers: ReturningCallers,
    /// Until when the last planned step waits.
    waits_until: Option<Time>,
    /// Recent maximum of running requests.
    max_running: f64,
}

impl BatchWindow {
    /// Records how many requests ran during a step.
    pub fn observe(&mut self, running: u32) {
        let more = f64::from(running) - self.max_running;
        self.max_running += more.max(more * MAXIMUM_DECAY);
    }

    /// The recent maximum of running requests.
    pub fn usual_running(&self) -> u32 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let usual = (self.max_running - ROUND_UP).ceil().max(0.0) as u32;
        usual
    }

    /// How long to wait where the first step takes this many seconds.
    pub fn length(step_seconds: f64) -> Duration {
        let seconds = (STEP_PART * step_seconds).min(MAX_WAIT.as_secs_f64());
        Duration::from_secs_f64(seconds.max(0.0))
    }

    /// Whether a wait before the first step is in progress.
    pub fn is_open(&self) -> bool {
        self.closes_at.is_some()
    }

    /// Until when the first step waits for more requests; `None` if it does not. A wait that begins now has this `length`.
    /// There is none if a request would expire before its end, at `next_timer`.
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
    fn usual_running_is_recent_maximum() {
        let mut window = BatchWindow::default();
        let mut ran = |counts: &[u32]| {
            counts.iter().for_each(|count| window.observe(*count));
            window.usual_running()
        };
        assert_eq!(ran(&[1]), 1);
        // The last requests of a round end one after the other.
        assert_eq!(ran(&[8, 8, 7, 6, 5, 4, 3, 2, 1]), 8);
        assert_eq!(ran(&[4; 1_500]), 4);
        assert_eq!(ran(&[1; 1_500]), 1);
    }

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
