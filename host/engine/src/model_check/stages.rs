//! The stages that a check has passed, for the load beside it.

use corral_llama::LoadStage;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How often a waiting load looks whether it is canceled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How a load follows the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// After its end.
    AfterCheck,
    /// Each part of the header after the part, all weights after all weights, and the context after the context.
    ByStage,
    /// As [`Pace::ByStage`], but each tensor after the tensor, since both read them in the same order.
    ByTensor,
}

/// How far a check has come. A load waits until the check has passed the stage that it is about to begin.
#[derive(Debug, Default)]
pub(crate) struct CheckStages {
    state: Mutex<CheckState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CheckState {
    /// Reports of the child: one after each part of the header, with [`Pace::ByTensor`] one after each tensor, one after the
    /// weights, and one after the context.
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

    /// Waits until the check has passed `stage`, or all of it, as `pace` says. False if it fails, or the load is canceled.
    /// The check has a time limit.
    pub fn wait(&self, stage: LoadStage, pace: Pace, is_canceled: &dyn Fn() -> bool) -> bool {
        let reports = match (stage, pace) {
            (LoadStage::Use, _) | (_, Pace::AfterCheck) => usize::MAX,
            (LoadStage::Header(part), _) => part.saturating_add(1),
            (LoadStage::Weights(_), Pace::ByStage) => LoadStage::HEADER_PARTS + 1,
            (LoadStage::Context(_), Pace::ByStage) => LoadStage::HEADER_PARTS + 2,
            (LoadStage::Weights(number) | LoadStage::Context(number), Pace::ByTensor) => {
                number.saturating_add(LoadStage::HEADER_PARTS + 1)
            }
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

    /// Waits for `stage` in a thread, which must not go on before `pass`.
    fn waits_until(stages: &CheckStages, stage: LoadStage, pace: Pace, pass: impl FnOnce()) {
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| stages.wait(stage, pace, &|| false));
            std::thread::sleep(POLL_INTERVAL / 2);
            assert!(!waiting.is_finished(), "{stage:?} {pace:?}");
            pass();
            assert!(waiting.join().unwrap());
        });
    }

    fn report(stages: &CheckStages, times: usize) {
        (0..times).for_each(|_| stages.report());
    }

    #[test]
    fn load_stays_behind_check() {
        use LoadStage::{Context, Header, Use, Weights};
        for (pace, rest) in [
            (Pace::ByStage, &[Weights(0), Context(1)][..]),
            (
                Pace::ByTensor,
                &[Weights(0), Weights(1), Weights(2), Context(3)][..],
            ),
        ] {
            let stages = CheckStages::default();
            let header = (0..LoadStage::HEADER_PARTS).map(Header);
            for stage in header.chain(rest.iter().copied()) {
                waits_until(&stages, stage, pace, || stages.report());
            }
            waits_until(&stages, Use, pace, || stages.end(true));
        }
        for stage in [Header(0), Weights(0), Context(1), Use] {
            let stages = CheckStages::default();
            report(&stages, LoadStage::HEADER_PARTS + 2);
            waits_until(&stages, stage, Pace::AfterCheck, || stages.end(true));
        }
    }

    #[test]
    fn checked_weights_are_read_without_wait() {
        let stages = CheckStages::default();
        report(&stages, LoadStage::HEADER_PARTS + 1);
        for tensor in 0..3 {
            assert!(stages.wait(LoadStage::Weights(tensor), Pace::ByStage, &|| false));
        }
        assert!(stages.wait(LoadStage::Weights(0), Pace::ByTensor, &|| false));
    }

    #[test]
    fn canceled_load_stops_waiting() {
        let stages = CheckStages::default();
        let canceled = AtomicBool::new(false);
        let is_canceled = || canceled.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| stages.wait(LoadStage::Use, Pace::ByTensor, &is_canceled));
            canceled.store(true, Ordering::Relaxed);
            assert!(!waiting.join().unwrap());
        });
    }

    #[test]
    fn failed_check_ends_load() {
        let stages = CheckStages::default();
        stages.report();
        stages.end(false);
        for stage in [LoadStage::Header(0), LoadStage::Weights(0), LoadStage::Use] {
            assert!(!stages.wait(stage, Pace::ByTensor, &|| false));
        }
    }
}
