//! Processor time.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// What the calling thread has taken so far. Less than the time that went by where others had its core.
pub(crate) fn of_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::of_thread;

    #[test]
    fn a_thread_that_computes_takes_time() {
        let before = of_thread();
        let mut number = 1_u64;
        while of_thread() == before {
            number = std::hint::black_box(number.wrapping_mul(3));
        }
        assert!(of_thread() > before);
    }
}
