//! Whether the next step waits: for more requests to start with it, or for callers that return. The
//! [batch window](crate::batch_window) holds the times.

use crate::Time;
use crate::batch_window::{BatchWindow, MIN_TOKENS};
use crate::request::{RequestId, length};
use crate::scheduler::Scheduler;
use std::time::Duration;

impl Scheduler {
    /// Keeps requests in the queue while the batch window is open. Returns when it closes; `None` if it is not open.
    pub(crate) fn hold_admission(&mut self, now: Time, due: &[RequestId]) -> Option<Time> {
        let usual = self.window.usual_running() as usize;
        let few = !self.queue.is_empty() && self.queue.len() < usual;
        let expires = due.iter().any(|id| self.is_waiting(*id));
        if !self.running.is_empty() || self.is_recovering() || !few || expires {
            self.window.close();
            return None;
        }
        let length = match self.window.is_open() {
            true => None,
            false => self.window_length(),
        };
        self.window.hold(now, length, self.timers.next())
    }

    fn window_length(&self) -> Option<Duration> {
        let first = self.next_request().filter(|_| self.costs.is_fitted())?;
        let cached = self.admission().source(first, u64::MAX).length();
        let tokens = length(&first.tokens) - cached;
        let continues = first.is_next_token() && tokens < MIN_TOKENS;
        if continues || first.progress.preempted > 0 {
            return None;
        }
        let tokens = tokens.min(self.config.max_step_tokens);
        let step = self
            .costs
            .prefill_step_seconds(tokens, self.kv.cells.n_kv());
        Some(BatchWindow::length(step))
    }

    /// Until when the step waits for callers to return. It waits only if every ready request is sampled externally.
    pub(crate) fn wait_for_callers(&self, now: Time) -> Option<Time> {
        let may_wait = self.running.all_ready_sampled_externally() && !self.is_recovering();
        self.window.callers.wait_until(now).filter(|_| may_wait)
    }
}
