//! CPU time of the process and its threads.

use rustix::time::{ClockId, clock_gettime};

/// CPU time of the process or of this thread.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn cpu_seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
