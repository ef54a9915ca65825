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
//! are equally urgent, for `n - 1`. A turn has at most 64 steps, and after its first one, which
//! is longer by the change, it ends with the first step that ends 200 ms later. With one adapter in use there are no turns,
//! and it costs nothing.

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
/// The longest turn while others wait, counted from the step with the change on, unless it has too few steps.
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
    /// Steps of its turn, and their seconds, but for the one that was longer by the change.
    steps: u32,
    seconds: f64,
    /// Who has had a turn in this round, a bit for each.
    had: u32,
    /// Seconds that a change is expected to take.
    change: Option<f64>,
    /// How often it changed.
    changes: u64,
    /// Whose step failed. Until one goes well turns are as short as can be, so that it is soon tried
    /// again: else faults that come now and then could meet nobody but it.
    failed: Option<AdapterId>,
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
        if !ready.is_empty() && !ready.iter().any(|r| Some(r.adapter) == self.failed) {
            self.failed = None;
        }
        self.had |= bit(adapter);
        self.current = adapter;
        self.changes += u64::from(changes);
        self.changing |= changes;
    }

    /// Which one computed the last step, or is to compute it.
    pub fn current(&self) -> AdapterId {
        self.current
    }

    /// Whether the step that was planned last is longer by a change.
    pub fn is_changing(&self) -> bool {
        self.changing
    }

    /// A step was computed in so many seconds.
    pub fn stepped(&mut self, seconds: f64) {
        self.steps = self.steps.saturating_add(1);
        if self.failed == Some(self.current) {
            self.failed = None;
        }
        if !self.changing {
            self.seconds += seconds;
        }
        self.changing = false;
    }

    /// A step failed, which ends the turn: whether others get on tells who is to blame. If the backend
    /// was to change, the next step may still be longer by that.
    pub fn failed(&mut self) {
        self.steps = STEPS.1;
        self.failed = Some(self.current);
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
        let most = match (self.failed, self.change) {
            (Some(_), _) => STEPS.0,
            (None, Some(_)) => STEPS.1,
            (None, None) => UNKNOWN,
        };
        let shared = self
            .change
            .map_or(f64::INFINITY, |change| change / SHARE - change);
        let enough = shared.min(TURN.as_secs_f64());
        let over = self.steps >= most || self.seconds >= enough;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Who computes each of so many steps, of which each takes so long and a change so much more.
    fn turns(ready: &[(u8, u8)], steps: usize, step: f64, change: f64) -> Vec<u8> {
        let mut rotation = Rotation::default();
        let ready = ready.iter().map(|&(adapter, priority)| Ready {
            adapter: AdapterId(adapter),
            priority: Priority(priority),
        });
        let ready: Vec<_> = ready.collect();
        let take = |_| {
            let next = rotation.next(&ready).expect("one is ready");
            rotation.take(next, &ready);
            if rotation.is_changing() {
                rotation.observe(change);
                rotation.stepped(step + change);
            } else {
                rotation.stepped(step);
            }
            next.0
        };
        (0..steps).map(take).collect()
    }

    /// The turns and their lengths.
    fn runs(turns: &[u8]) -> Vec<(u8, usize)> {
        let runs = turns.chunk_by(|a, b| a == b);
        runs.map(|run| (run[0], run.len())).collect()
    }

    #[test]
    fn one_alone_has_no_turns() {
        assert_eq!(runs(&turns(&[(0, 0)], 500, 0.01, 0.01)), [(0, 500)]);
        assert_eq!(runs(&turns(&[(3, 0)], 500, 0.01, 0.01)), [(3, 500)]);
        assert_eq!(Rotation::default().next(&[]), None);
    }

    #[test]
    fn all_have_their_turns_one_after_the_other() {
        let turns = turns(&[(0, 0), (2, 0), (5, 0)], 400, 0.04, 0.005);
        let runs = runs(&turns);
        let order: Vec<_> = runs.iter().map(|(adapter, _)| *adapter).collect();
        let around: Vec<_> = [0, 2, 5].into_iter().cycle().take(order.len()).collect();
        assert_eq!(order, around);
        assert!(runs[1..runs.len() - 1].iter().all(|(_, steps)| *steps == 2));
    }

    #[test]
    fn changes_take_their_share_and_no_more_as_far_as_the_bounds_allow() {
        for (step, change, least, most) in [
            // Quick steps: as many as make the share.
            (0.001, 0.005, 25, 35),
            (0.0005, 0.0002, 2, 4),
            // No turn is longer than that.
            (0.001, 0.5, 64, 64),
            (0.0001, 0.1, 64, 64),
            (0.04, 0.1, 6, 7),
            (1.0, 0.1, 2, 2),
        ] {
            let runs = runs(&turns(&[(0, 0), (1, 0)], 2000, step, change));
            let inner = &runs[1..runs.len() - 1];
            let within = |&(_, steps): &(u8, usize)| (least..=most).contains(&steps);
            assert!(inner.iter().all(within), "{step} {change}: {:?}", inner[0]);
            #[allow(clippy::cast_precision_loss)]
            let turn = inner[0].1 as f64 * step;
            let bound = turn + step >= TURN.as_secs_f64() || inner[0].1 == 64;
            assert!(bound || change <= 0.2 * (turn + change), "{step} {change}");
        }
    }

    #[test]
    fn the_more_urgent_goes_first_in_each_round_and_the_other_is_not_forgotten() {
        let turns = turns(&[(0, 0), (1, 1), (2, 9), (3, 1)], 400, 0.04, 0.005);
        let order: Vec<_> = runs(&turns).iter().map(|(adapter, _)| *adapter).collect();
        assert_eq!(order[..9], [0, 2, 3, 1, 2, 3, 1, 0, 2]);
    }
}
