//! Measures the CPU time of one call.
//!
//! It counts the time during which a thread works for the call: guest code and the host's work for it.
//! The meter reads the thread's CPU clock around every poll of the call, so waiting and a busy machine do
//! not count. Epoch interruption bounds a poll to about ten milliseconds, which is the accuracy of the limit.
//!
//! The thread's CPU clock costs a system call, the wall clock does not. A poll of at most [`SHORT_POLL`] by
//! the wall clock, typical for a token, counts its wall time: that is never less than its CPU time.

use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Longest poll that counts its wall time.
const SHORT_POLL: Duration = Duration::from_micros(50);

/// CPU time used by one call. The thread that polls the call writes it; threads that work for the call
/// elsewhere add to it.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    used: AtomicU64,
    poll_began: AtomicU64,
    memory_refused: AtomicBool,
    exhausted: Notify,
    /// Whether the guest yielded because it used its thread for an epoch.
    yielded: AtomicBool,
    /// A meter that is charged for the same work.
    parent: Option<Arc<Self>>,
}

impl Meter {
    /// A meter that also charges `parent`.
    pub(crate) fn part_of(parent: Arc<Self>) -> Self {
        Self {
            parent: Some(parent),
            ..Self::default()
        }
    }

    /// Runs `poll` and charges its CPU time, which it returns, too.
    pub(crate) fn measure<R>(&self, poll: impl FnOnce() -> R) -> (R, Duration) {
        let began = thread_nanos();
        self.poll_began.store(began, Ordering::Relaxed);
        let at = Instant::now();
        let result = poll();
        let wall = at.elapsed();
        let used = match wall <= SHORT_POLL {
            true => wall,
            false => Duration::from_nanos(thread_nanos().saturating_sub(began)),
        };
        self.charge(used);
        (result, used)
    }

    /// Records that the guest yields at the end of an epoch.
    pub(crate) fn yields(&self) {
        self.yielded.store(true, Ordering::Relaxed);
    }

    /// Whether the guest yielded at the end of an epoch since the last call of this.
    pub(crate) fn take_yielded(&self) -> bool {
        self.yielded.swap(false, Ordering::Relaxed)
    }

    /// Adds CPU time that was spent for the call elsewhere.
    pub(crate) fn charge(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.used.fetch_add(nanos, Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.charge(time);
        }
    }

    /// CPU time used so far, without the current poll.
    pub(crate) fn used(&self) -> Duration {
        Duration::from_nanos(self.used.load(Ordering::Relaxed))
    }

    /// CPU time of the current poll. Only meaningful inside [`Self::measure`].
    pub(crate) fn in_poll(&self) -> Duration {
        Duration::from_nanos(thread_nanos().saturating_sub(self.poll_began.load(Ordering::Relaxed)))
    }

    /// Reports that the call has no CPU time left. Wakes [`Self::exhausted`].
    pub(crate) fn report_exhausted(&self) {
        self.exhausted.notify_one();
    }

    /// Waits for [`Self::report_exhausted`]. Returns at once if that was called before.
    pub(crate) async fn exhausted(&self) {
        self.exhausted.notified().await;
    }

    /// Records that the guest was refused memory, which explains the trap that is likely to follow.
    pub(crate) fn refuse_memory(&self) {
        self.memory_refused.store(true, Ordering::Relaxed);
    }

    /// Begins another call of the instance.
    pub(crate) fn reset(&self) {
        self.used.store(0, Ordering::Relaxed);
        // Takes a report that the last call did not wait for.
        std::pin::pin!(self.exhausted.notified()).enable();
    }

    /// Whether the guest was ever refused memory.
    pub(crate) fn memory_refused(&self) -> bool {
        self.memory_refused.load(Ordering::Relaxed)
    }
}

/// CPU time of this thread, in nanoseconds.
pub(crate) fn thread_nanos() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_counts_and_sleep_does_not() {
        let meter = Meter::default();
        meter.measure(|| std::thread::sleep(Duration::from_millis(30)));
        assert!(meter.used() < Duration::from_millis(15));
        meter.measure(|| {
            while meter.in_poll() < Duration::from_millis(20) {
                std::hint::spin_loop();
            }
        });
        assert!(meter.used() >= Duration::from_millis(20));
    }

    #[test]
    fn short_polls_count_too() {
        let meter = Meter::default();
        for _ in 0..1000 {
            meter.measure(|| {
                let began = Instant::now();
                while began.elapsed() < SHORT_POLL / 5 {
                    std::hint::spin_loop();
                }
            });
        }
        // A tenth of the wall time: another thread may have used the CPU meanwhile.
        assert!(meter.used() >= 100 * SHORT_POLL / 5);
    }

    #[test]
    fn part_charges_its_parent() {
        let parent = Arc::new(Meter::default());
        parent.charge(Duration::from_millis(1));
        let part = Meter::part_of(Arc::clone(&parent));
        part.charge(Duration::from_millis(2));
        assert_eq!(part.used(), Duration::from_millis(2));
        assert_eq!(parent.used(), Duration::from_millis(3));
    }
}
