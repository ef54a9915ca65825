//! Interrupts a step whose threads wait for cores: while one waits, the others spin at a barrier after each operation, and
//! two that share a core may wait for a time slice at each. ggml asks after every operation whether to go on.
//!
//! Like every failed step, an interrupted one leaves the context as it was before, if the memory can be truncated.

use crate::queue_delay::{QueueDelay, queue_delay};
use llama_cpp_sys_2 as sys;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A step is not watched before it has taken this long.
const GRACE: Duration = Duration::from_millis(10);
/// How long the threads are watched before the step is interrupted, so that one lost time slice does not suffice.
const WINDOW: Duration = Duration::from_millis(25);
/// Operations between two looks at the clock, until the threads are watched.
const OPERATIONS: u32 = 16;

/// How long the threads of an interrupted step were watched, and waited for cores in that time, all together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// How long they were watched.
    pub computed: Duration,
    /// How long they waited.
    pub waited: Duration,
}

/// Watches the threads of a context.
pub(crate) struct StallGuard {
    /// The threads in use, beside the calling one; `None` to watch nothing.
    workers: Option<Arc<[QueueDelay]>>,
    step: Step,
}

/// What is known of the current step.
struct Step {
    started: Instant,
    operations: u32,
    /// When watching began, and how long the threads had waited until then.
    watched: Option<(Instant, Duration)>,
    stall: Option<Stall>,
}

impl StallGuard {
    /// A guard that watches nothing.
    pub fn new() -> Self {
        Self {
            workers: None,
            step: Step::new(),
        }
    }

    /// Begins a step with these threads beside the calling one; `None` to watch nothing.
    pub fn begin(&mut self, workers: Option<Arc<[QueueDelay]>>) {
        self.workers = workers;
        self.step = Step::new();
    }

    /// Why the last step was interrupted.
    pub fn stall(&self) -> Option<Stall> {
        self.step.stall
    }

    /// Makes a context ask the guard after every operation.
    ///
    /// # Safety
    ///
    /// Both are alive as long as the context computes, and while it does, nothing else uses the guard.
    pub unsafe fn attach(guard: NonNull<Self>, context: *mut sys::llama_context) {
        // SAFETY: the caller's.
        unsafe { sys::llama_set_abort_callback(context, Some(ask), guard.as_ptr().cast()) };
    }

    fn interrupts(&mut self) -> bool {
        let workers = self.workers.as_ref();
        workers.is_some_and(|workers| self.step.interrupts(workers))
    }
}

impl Step {
    fn new() -> Self {
        Self {
            started: Instant::now(),
            operations: 0,
            watched: None,
            stall: None,
        }
    }

    /// Whether to interrupt the step.
    fn interrupts(&mut self, workers: &[QueueDelay]) -> bool {
        self.operations += 1;
        if self.watched.is_none() && !self.operations.is_multiple_of(OPERATIONS) {
            return false;
        }
        let now = Instant::now();
        match self.watched {
            None if now.duration_since(self.started) < GRACE => {}
            None => self.watched = waited(workers).map(|waited| (now, waited)),
            Some((since, before)) => {
                let computed = now.duration_since(since);
                if computed >= WINDOW
                    && let Some(after) = waited(workers)
                {
                    let stall = Stall {
                        computed,
                        waited: after.saturating_sub(before),
                    };
                    let threads = workers.len() + 1;
                    match stall.is_excessive(threads) {
                        true => self.stall = Some(stall),
                        false => self.watched = Some((now, after)),
                    }
                }
            }
        }
        self.stall.is_some()
    }
}

/// How long the calling thread and the others have waited for cores so far.
fn waited(workers: &[QueueDelay]) -> Option<Duration> {
    let workers: Option<Duration> = workers.iter().map(QueueDelay::read).sum();
    Some(workers? + queue_delay()?)
}

impl Stall {
    /// Whether one of `threads` threads less would be faster: while one waits, all do.
    fn is_excessive(&self, threads: usize) -> bool {
        let threads = u32::try_from(threads).unwrap_or(u32::MAX);
        self.waited.saturating_mul(threads) > self.computed
    }
}

/// Called by ggml after each operation, in the thread that computes the step.
unsafe extern "C" fn ask(guard: *mut c_void) -> bool {
    // SAFETY: `StallGuard::attach`'s.
    unsafe { (*guard.cast::<StallGuard>()).interrupts() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_of_one_of_two_threads_is_excessive_from_half() {
        let stall = |waited| Stall {
            computed: Duration::from_millis(25),
            waited: Duration::from_millis(waited),
        };
        assert!(!stall(12).is_excessive(2));
        assert!(stall(13).is_excessive(2));
        assert!(!stall(25).is_excessive(1));
        assert!(stall(4).is_excessive(8));
    }

    #[test]
    fn free_cores_interrupt_nothing() {
        let mut step = Step::new();
        let end = Instant::now() + GRACE + 2 * WINDOW;
        while Instant::now() < end {
            // One thread alone never waits longer than it computes.
            assert!(!step.interrupts(&[]));
        }
    }
}
