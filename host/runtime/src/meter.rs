//! Measures the processor time of one call.
//!
//! What counts is the time during which a thread works for the call: guest code and what the host
//! computes in its name. It is read from the thread's processor clock around every poll of the call,
//! so neither waiting nor a busy machine counts. Epoch interruption bounds a poll to some ten
//! milliseconds, hence the limit is kept to within that.
//!
//! A token makes for a poll of some 30 microseconds, and that clock is a system call where the wall clock is
//! none. So a poll that took no longer than [`SHORT`] by the wall clock is counted by that: it can't have
//! computed for longer, and what is counted too much is less than that.

use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The longest poll that is counted by the wall clock.
const SHORT: Duration = Duration::from_micros(50);

/// What one call has used so far. Written by the thread that polls the call, and added to by those that
/// work for it elsewhere.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    used: AtomicU64,
    poll_began: AtomicU64,
    memory_refused: AtomicBool,
    spent: Notify,
    /// What is counted here counts there too.
    whole: Option<Arc<Self>>,
}

impl Meter {
    /// A meter for a part of what `whole` counts.
    pub(crate) fn part_of(whole: Arc<Self>) -> Self {
        Self {
            whole: Some(whole),
            ..Self::default()
        }
    }

    /// Runs `poll` and counts its processor time.
    pub(crate) fn measure<R>(&self, poll: impl FnOnce() -> R) -> R {
        let began = thread_nanos();
        self.poll_began.store(began, Ordering::Relaxed);
        let at = Instant::now();
        let result = poll();
        let took = at.elapsed();
        self.charge(match took <= SHORT {
            true => took,
            false => Duration::from_nanos(thread_nanos().saturating_sub(began)),
        });
        result
    }

    /// Adds processor time that was spent for the call elsewhere.
    pub(crate) fn charge(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.used.fetch_add(nanos, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.charge(time);
        }
    }

    /// Processor time of the polls so far.
    pub(crate) fn used(&self) -> Duration {
        Duration::from_nanos(self.used.load(Ordering::Relaxed))
    }

    /// Processor time since the present poll began; only meaningful inside [`Self::measure`].
    pub(crate) fn in_poll(&self) -> Duration {
        Duration::from_nanos(thread_nanos().saturating_sub(self.poll_began.load(Ordering::Relaxed)))
    }

    /// Wakes whoever waits for [`Self::spent`]: somebody else who works for the call found that it used more
    /// than it may.
    pub(crate) fn spend(&self) {
        self.spent.notify_one();
    }

    /// Waits for a [`Self::spend`], also one that was before.
    pub(crate) async fn spent(&self) {
        self.spent.notified().await;
    }

    /// Notes that the guest was refused memory, to explain the trap that is likely to follow.
    pub(crate) fn refuse_memory(&self) {
        self.memory_refused.store(true, Ordering::Relaxed);
    }

    /// Whether the guest was ever refused memory.
    pub(crate) fn memory_refused(&self) -> bool {
        self.memory_refused.load(Ordering::Relaxed)
    }
}

/// This thread's processor time.
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
    fn many_short_polls_count_too() {
        let meter = Meter::default();
        for _ in 0..1000 {
            meter.measure(|| {
                let began = Instant::now();
                while began.elapsed() < SHORT / 5 {
                    std::hint::spin_loop();
                }
            });
        }
        // All of them take ten times as long; but another thread may have had the processor meanwhile.
        assert!(meter.used() >= 100 * SHORT / 5);
    }

    #[test]
    fn a_part_counts_for_the_whole() {
        let whole = Arc::new(Meter::default());
        whole.charge(Duration::from_millis(1));
        let part = Meter::part_of(Arc::clone(&whole));
        part.charge(Duration::from_millis(2));
        assert_eq!(part.used(), Duration::from_millis(2));
        assert_eq!(whole.used(), Duration::from_millis(3));
    }
}
