//! Whose turn it is among the adapters: a step computes with one of them, or with the model alone.
//!
//! Changing from one to another is dear (llama.cpp plans its graphs anew), so an adapter keeps its
//! turn for a while: long enough that changes take a small part of the time, by what a change was
//! measured to cost, and never longer than the bounds below. Then the others with something to
//! compute have theirs. They go in *rounds*, and everyone has at most one turn in a round: those first
//! that have the most urgent sequence, those of equal urgency in the order of their numbers. A new
//! round begins when all who have something to compute have had their turn.
//!
//! So nobody starves, whatever the priorities. Of `n` adapters with something to compute each waits for
//! at most `2 (n - 1)` turns of others, the rest of a round and then all of the next; where all
//! are equally urgent, for `n - 1`. A turn has at most 64 steps, and ends with the first step, but for
//! the very first one, after 200 ms. With one adapter in use there are no turns, and it costs nothing.

use super::words::{AdapterId, Priority};
use std::cmp::Reverse;
use std::time::Duration;

/// The part of the time that changes may take, as far as the bounds of a turn allow.
const SHARE: f64 = 0.15;
/// Fewest and most steps of a turn, while others wait. At least two, since the first one is longer by
/// the change and tells nothing of what steps cost.
const STEPS: (u32, u32) = (2, 64);
/// Steps of a turn before it was measured what a change costs.
const UNKNOWN: u32 = 8;
/// The longest turn while others wait, unless it has too few steps.
const TURN: Duration = Duration::from_millis(200);
/// Weight of the newest change in the mean.
const NEWEST: f64 = 0.2;
/// A change that took so many times as long as was expected was held up by something else.
const OUTLIER: f64 = 4.0;

/// An adapter that has something to compute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub adapter: AdapterId,
    /// Of its most urgent sequence.
    pub priority: Priority,
}

/// Whose turn it is, and for how long.
#[derive(Clone, Debug, Default)]
pub(super) struct Rotation {
    /// Which one computed the last step.
    current: AdapterId,
    /// Steps of its turn, and their seconds.
    steps: u32,
    seconds: f64,
    /// Who has had a turn in this round, a bit for each.
    had: u32,
    /// Seconds that a change is expected to take.
    change: Option<f64>,
    /// How often it changed.
    changes: u64,
    /// Whether the backend changes with the step that was planned last.
    changing: bool,
}

impl Rotation {
    /// Whose turn the next step is of those that can get on. `None` if there are none.
    pub fn next(&self, ready: &[Ready]) -> Option<AdapterId> {
        let keeps = !self.is_over();
        let round = ready.iter().any(|ready| !self.has_had(ready.adapter));
        let first = ready.iter().min_by_key(|ready| {
            let current = ready.adapter == self.current;
            let had = round && self.has_had(ready.adapter);
            // After the current one, and around.
            let place = ready.adapter.0.wrapping_sub(self.current.0);
            let last = (had || current, Reverse(ready.priority), place);
            (!(current && keeps), last)
        });
        first.map(|ready| ready.adapter)
    }

    /// The next step computes with this one, while these can get on.
    pub fn take(&mut self, adapter: AdapterId, ready: &[Ready]) {
        let changes = adapter != self.current;
        if changes || self.is_over() {
            (self.steps, self.seconds) = (0, 0.0);
            if ready.iter().all(|ready| self.has_had(ready.adapter)) {
                self.had = 0;
            }
        }
        self.had |= bit(adapter);
        self.current = adapter;
        self.changes += u64::from(changes);
        self.changing |= changes;
    }

    /// Whether the step that was planned last is longer by a change.
    pub fn is_changing(&self) -> bool {
        self.changing
    }

    /// A step was computed in so many seconds.
    pub fn stepped(&mut self, seconds: f64) {
        self.steps = self.steps.saturating_add(1);
        self.seconds += seconds;
        self.changing = false;
    }

    /// A step failed, which ends the turn: whether others get on tells who is to blame. If the backend
    /// was to change, the next step may still be longer by that.
    pub fn failed(&mut self) {
        self.steps = STEPS.1;
    }

    /// A change took so many seconds.
    pub fn observe(&mut self, seconds: f64) {
        if !seconds.is_finite() {
            return;
        }
        let newest = seconds.max(0.0);
        let mean = self.change.unwrap_or(newest);
        let most = if mean > 0.0 { OUTLIER * mean } else { newest };
        self.change = Some(mean + NEWEST * (newest.min(most) - mean));
    }

    /// How often it changed.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Seconds that a change is expected to take, as far as it was measured.
    pub fn change_seconds(&self) -> f64 {
        self.change.unwrap_or(0.0)
    }

    /// Whether the current turn has had its time.
    fn is_over(&self) -> bool {
        let most = if self.change.is_some() { STEPS.1 } else { UNKNOWN };
        let enough = self.change.map_or(f64::INFINITY, |change| change / SHARE);
        let over = self.steps >= most || self.seconds >= enough.min(TURN.as_secs_f64());
        over && self.steps >= STEPS.0
    }

    fn has_had(&self, adapter: AdapterId) -> bool {
        self.had & bit(adapter) != 0
    }
}

fn bit(adapter: AdapterId) -> u32 {
    debug_assert!(adapter.0 <= AdapterId::MOST, "{adapter:?} is not one");
    1_u32.wrapping_shl(u32::from(adapter.0))
}
