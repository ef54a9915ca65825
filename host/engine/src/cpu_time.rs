//! CPU time of the calling thread.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// CPU time that the calling thread has used so far.
pub(crate) fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}
