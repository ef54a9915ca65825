//! Which adapter the next step computes with: one of them, or the model alone.
//!
//! A change of the adapter is expensive (llama.cpp plans its graphs again). So an adapter keeps its *turn* for a while:
//! long enough that changes take [`CHANGE_SHARE`] of the time, as measured, within the bounds below. Then the others
//! with something to compute follow, in *rounds* with at most one turn for each: those with the most urgent request
//! first, equally urgent ones in the order of their numbers.
//!
//! So no adapter starves, whatever the priorities. An adapter waits for at most `2 (n - 1)` turns: those left in this
//! round, and the next round's. If all are equally urgent, `n - 1`. Here `n` adapters have something to compute. A turn
//! has at most 64 steps. After its first step, which includes the change, it ends with the first step that ends 200 ms
//! later. With one adapter there are no turns.

use crate::request::{AdapterId, Priority};
use std::cmp::Reverse;
use std::time::Duration;

/// The part of the time that changes may take, within the bounds of a turn.
const CHANGE_SHARE: f64 = 0.15;
/// Fewest and most steps of a turn while others wait. At least two: the first includes the change and says nothing
/// about the cost of steps.
const STEPS: (u32, u32) = (2, 64);
/// Steps of a turn before the first change was measured.
const UNMEASURED_STEPS: u32 = 8;
/// The longest turn while others wait, from the end of its first step, unless it has too few steps.
const MAX_TURN: Duration = Duration::from_millis(200);
/// Weight of the newest change in the mean.
const NEWEST: f64 = 0.2;
/// A change that took more than this many times the mean was delayed by something else.
const OUTLIER: f64 = 4.0;

/// An adapter with something to compute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdapterCandidate {
    pub adapter: AdapterId,
    /// Of its most urgent request.
    pub priority: Priority,
}

/// The turn in progress and the round.
#[derive(Clone, Debug, Default)]
pub(crate) struct AdapterSchedule {
    /// The adapter of the last step.
    current: AdapterId,
    /// Steps of its turn.
    steps: u32,
    /// Their seconds, without the step that changes the adapter.
    seconds: f64,
    /// A bit for each adapter that has had a turn in this round.
    had_turn: u32,
    /// Mean seconds of a change.
    change: Option<f64>,
    changes: u64,
    /// The adapter of a failed step. Until it succeeds, turns are as short as possible, so that it is tried again soon:
    /// otherwise occasional faults could hit it every time.
    failed: Option<AdapterId>,
    /// Whether the backend changes the adapter with the last planned step.
    changing: bool,
}

impl AdapterSchedule {
    /// The adapter of the next step. `None` without candidates.
    pub fn next(&self, candidates: &[AdapterCandidate]) -> Option<AdapterId> {
        let keeps_turn = !self.is_turn_over();
        let in_round = candidates.iter().any(|one| !self.has_had_turn(one.adapter));
        let first = candidates.iter().min_by_key(|candidate| {
            let current = candidate.adapter == self.current;
            let had_turn = in_round && self.has_had_turn(candidate.adapter);
            // From the current number up, and around.
            let distance = candidate.adapter.0.wrapping_sub(self.current.0);
            let order = (had_turn || current, Reverse(candidate.priority), distance);
            (!(current && keeps_turn), order)
        });
        first.map(|candidate| candidate.adapter)
    }

    /// The next step computes with `adapter`, one of the candidates.
    pub fn begin_step(&mut self, adapter: AdapterId, candidates: &[AdapterCandidate]) {
        let is_change = adapter != self.current;
        if is_change || self.is_turn_over() {
            (self.steps, self.seconds) = (0, 0.0);
            if candidates.iter().all(|one| self.has_had_turn(one.adapter)) {
                self.had_turn = 0;
            }
        }
        let failed_waits = candidates
            .iter()
            .any(|one| Some(one.adapter) == self.failed);
        if !candidates.is_empty() && !failed_waits {
            self.failed = None;
        }
        self.had_turn |= bit(adapter);
        self.current = adapter;
        self.changes += u64::from(is_change);
        self.changing |= is_change;
    }

    /// The adapter of the last planned step.
    pub fn current(&self) -> AdapterId {
        self.current
    }

    /// Whether the last planned step includes a change.
    pub fn is_changing(&self) -> bool {
        self.changing
    }

    /// Records a computed step.
    pub fn step_done(&mut self, seconds: f64) {
        self.steps = self.steps.saturating_add(1);
        if self.failed == Some(self.current) {
            self.failed = None;
        }
        if !self.changing {
            self.seconds += seconds;
        }
        self.changing = false;
    }

    /// Records a failed step, which ends the turn: whether steps of other adapters succeed tells which request is at
    /// fault. If the step included a change, the next one may too.
    pub fn step_failed(&mut self) {
        self.steps = STEPS.1;
        self.failed = Some(self.current);
    }

    /// Learns the time of a change.
    pub fn observe_change(&mut self, seconds: f64) {
        if !seconds.is_finite() {
            return;
        }
        let newest = seconds.max(0.0);
        let mean = self.change.unwrap_or(newest);
        let most = if mean > 0.0 { OUTLIER * mean } else { newest };
        self.change = Some(mean + NEWEST * (newest.min(most) - mean));
    }

    /// Number of changes.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Mean seconds of a change; 0 before the first was measured.
    pub fn change_seconds(&self) -> f64 {
        self.change.unwrap_or(0.0)
    }

    /// Whether the turn has had its time.
    fn is_turn_over(&self) -> bool {
        let most = match (self.failed, self.change) {
            (Some(_), _) => STEPS.0,
            (None, Some(_)) => STEPS.1,
            (None, None) => UNMEASURED_STEPS,
        };
        let worthwhile = self
            .change
            .map_or(f64::INFINITY, |change| change / CHANGE_SHARE - change);
        let enough = worthwhile.min(MAX_TURN.as_secs_f64());
        let over = self.steps >= most || self.seconds >= enough;
        over && self.steps >= STEPS.0
    }

    fn has_had_turn(&self, adapter: AdapterId) -> bool {
        self.had_turn & bit(adapter) != 0
    }
}

fn bit(adapter: AdapterId) -> u32 {
    debug_assert!(adapter.0 <= AdapterId::MAX, "unknown {adapter:?}");
    1_u32.wrapping_shl(u32::from(adapter.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The adapter of each step, where a step takes `step` and a change `change` more.
    fn turns(ready: &[(u8, u8)], steps: usize, step: f64, change: f64) -> Vec<u8> {
        let mut schedule = AdapterSchedule::default();
        let ready = ready.iter().map(|&(adapter, priority)| AdapterCandidate {
            adapter: AdapterId(adapter),
            priority: Priority(priority),
        });
        let ready: Vec<_> = ready.collect();
        let take = |_| {
            let next = schedule.next(&ready).expect("one is ready");
            schedule.begin_step(next, &ready);
            if schedule.is_changing() {
                schedule.observe_change(change);
                schedule.step_done(step + change);
            } else {
                schedule.step_done(step);
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
    fn one_adapter_has_no_turns() {
        assert_eq!(runs(&turns(&[(0, 0)], 500, 0.01, 0.01)), [(0, 500)]);
        assert_eq!(runs(&turns(&[(3, 0)], 500, 0.01, 0.01)), [(3, 500)]);
        assert_eq!(AdapterSchedule::default().next(&[]), None);
    }

    #[test]
    fn adapters_take_turns() {
        let turns = turns(&[(0, 0), (2, 0), (5, 0)], 400, 0.04, 0.005);
        let runs = runs(&turns);
        let order: Vec<_> = runs.iter().map(|(adapter, _)| *adapter).collect();
        let around: Vec<_> = [0, 2, 5].into_iter().cycle().take(order.len()).collect();
        assert_eq!(order, around);
        assert!(runs[1..runs.len() - 1].iter().all(|(_, steps)| *steps == 2));
    }

    #[test]
    fn changes_take_their_share_of_time() {
        for (step, change, least, most) in [
            // Fast steps: as many as make the share.
            (0.001, 0.005, 25, 35),
            (0.0005, 0.0002, 2, 4),
            // No turn is longer than the bounds.
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
            let bound = turn + step >= MAX_TURN.as_secs_f64() || inner[0].1 == 64;
            assert!(bound || change <= 0.2 * (turn + change), "{step} {change}");
        }
    }

    #[test]
    fn priority_goes_first_without_starving_others() {
        let turns = turns(&[(0, 0), (1, 1), (2, 9), (3, 1)], 400, 0.04, 0.005);
        let order: Vec<_> = runs(&turns).iter().map(|(adapter, _)| *adapter).collect();
        assert_eq!(order[..9], [0, 2, 3, 1, 2, 3, 1, 0, 2]);
    }
}
