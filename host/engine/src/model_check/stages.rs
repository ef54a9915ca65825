//! The stages that a check has passed, for the load beside it.

use corral_llama::LoadStage;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How often a waiting load looks whether it is canceled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How far a check has come. A load waits until the check has passed the stage that it is about to begin.
#[derive(Debug, Default)]
pub(crate) struct CheckStages {
    state: Mutex<CheckState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CheckState {
    /// Reports of the child: one after the head of the file, one after the weights.
    reports: usize,
    /// Whether the check has passed, once it has ended.
    passed: Option<bool>,
}

impl CheckStages {
    /// Counts a report of the child.
    pub fn report(&self) {
        self.change(|state| state.reports += 1);
    }

    /// Ends the check.
    pub fn end(&self, passed: bool) {
        self.change(|state| _ = state.passed.get_or_insert(passed));
    }

    /// Ends the check as failed, if it has not ended when the guard is dropped.
    pub fn end_on_drop(&self) -> impl Drop {
        struct EndOnDrop<'a>(&'a CheckStages);
        impl Drop for EndOnDrop<'_> {
            fn drop(&mut self) {
                self.0.end(false);
            }
        }
        EndOnDrop(self)
    }

    /// Waits until the check has passed `stage`, or all of it if not `early`. False if it fails, or the load is canceled.
    /// The check has a time limit.
    pub fn wait(&self, stage: LoadStage, early: bool, is_canceled: &dyn Fn() -> bool) -> bool {
        let reports = match stage {
            LoadStage::Head if early => 1,
            LoadStage::Weights if early => 2,
            LoadStage::Head | LoadStage::Weights | LoadStage::Use => usize::MAX,
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.passed.is_none() && state.reports < reports {
            if is_canceled() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, POLL_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.passed != Some(false)
    }

    fn change(&self, change: impl FnOnce(&mut CheckState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn load_stays_behind_check() {
        let stages = CheckStages::default();
        std::thread::scope(|scope| {
            for (stage, report) in [(LoadStage::Head, 1), (LoadStage::Weights, 2)] {
                let stages = &stages;
                let waiting = scope.spawn(move || stages.wait(stage, true, &|| false));
                assert!(!waiting.is_finished());
                stages.report();
                assert!(waiting.join().unwrap());
                assert_eq!(stages.state.lock().unwrap().reports, report);
            }
            let waiting = [
                scope.spawn(|| stages.wait(LoadStage::Use, true, &|| false)),
                scope.spawn(|| stages.wait(LoadStage::Head, false, &|| false)),
            ];
            assert!(waiting.iter().all(|thread| !thread.is_finished()));
            stages.end(true);
            assert!(waiting.into_iter().all(|thread| thread.join().unwrap()));
        });
    }

    #[test]
    fn canceled_load_stops_waiting() {
        let stages = CheckStages::default();
        let canceled = AtomicBool::new(false);
        let is_canceled = || canceled.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| stages.wait(LoadStage::Use, true, &is_canceled));
            canceled.store(true, Ordering::Relaxed);
            assert!(!waiting.join().unwrap());
        });
    }

    #[test]
    fn failed_check_ends_load() {
        let stages = CheckStages::default();
        stages.report();
        stages.end(false);
        for stage in [LoadStage::Head, LoadStage::Weights, LoadStage::Use] {
            assert!(!stages.wait(stage, true, &|| false));
        }
    }
}
