//! Letting those begin together who come at about the same time.
//!
//! Where nothing runs, whoever comes first could be read at once. But where several ran lately, others are on their
//! way: those whose answers ended with the same step ask again within moments of each other, and so do the tasks of a
//! batch. If the first one is read alone, the others are read in small parts beside its tokens, and end one after the
//! other; it takes nearly as many steps more as there are of them, each with fewer rows. So the first step waits for as
//! many as usually run: at most for a small part of what reading the first one's prompt takes, which is all that it
//! costs if nobody comes. Whoever generates never waits, and where one ran at a time lately nobody does.

use super::cost::StepShape;
use super::words::{RequestId, length};
use super::{Scheduler, Time};
use std::time::Duration;

/// For what part of the first step's time it waits, and for how long at most.
const PART: f64 = 0.03;
pub(super) const LONGEST: Duration = Duration::from_millis(5);
/// Who looks at what may come next, and has fewer tokens than these to be read before, goes on with what has begun.
const BEGINS: u32 = 16;

impl Scheduler {
    /// Until when those that are here wait for others, if they do now; the time of these is over.
    pub(super) fn gather(&mut self, now: Time, due: &[RequestId]) -> Option<Time> {
        let few = !self.queue.is_empty() && self.queue.len() < self.experience.usual() as usize;
        let gathers = self.gathers.take();
        if !self.running.is_empty() || self.is_recovering() || !few {
            return None;
        }
        let until = match gathers {
            Some(until) => until,
            None => now + self.gathering()?,
        };
        // Nobody's time runs out while there is a place for it.
        let over = |(time, _): &(Time, _)| *time <= until;
        let over = self.timers.first().is_some_and(over);
        if now >= until || over || due.iter().any(|key| self.is_waiting(*key)) {
            return None;
        }
        self.gathers = Some(until);
        self.gathers
    }

    /// For how long.
    fn gathering(&self) -> Option<Duration> {
        let first = self.next().filter(|_| self.cost.is_fitted())?;
        let tokens = length(&first.tokens) - self.start(first, u64::MAX).length();
        // Who comes back with a token more, or had to give way, begins nothing.
        if (first.looks() && tokens < BEGINS) || first.progress.preempted > 0 {
            return None;
        }
        let shape = StepShape {
            prefill: tokens.min(self.limits.max_step_tokens),
            n_kv: self.cells.n_kv(),
            ..StepShape::default()
        };
        let seconds = (PART * self.cost.predict(shape)).min(LONGEST.as_secs_f64());
        Some(Duration::from_secs_f64(seconds.max(0.0)))
    }
}
