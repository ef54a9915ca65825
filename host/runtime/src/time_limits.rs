//! Limits on the CPU and wall time of a guest's work.
//!
//! Neither epochs nor timers inside wasmtime's event loop interrupt a guest that waits in a host call. So
//! the limits are checked outside, around each poll of the work.

use crate::meter::Meter;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use tokio::time::{Instant, sleep_until};

/// The time limit that ended the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeExceeded {
    Cpu,
    Wall,
}

/// Runs `work` until it ends, `is_exhausted` returns true, or `deadline` passes. Charges its CPU time to `meter`.
///
/// `is_exhausted` runs before and after each poll. It registers the task's waker if others may use up the CPU
/// time.
pub(crate) async fn run_within<W: Future>(
    meter: &Meter,
    mut is_exhausted: impl FnMut(&mut Context<'_>) -> bool,
    deadline: Instant,
    mut work: Pin<&mut W>,
) -> Result<W::Output, TimeExceeded> {
    let mut clock = pin!(sleep_until(deadline));
    poll_fn(|cx| {
        // Before the poll: the guest must not see errors of other work that stopped for the same reason.
        if is_exhausted(cx) {
            return Poll::Ready(Err(TimeExceeded::Cpu));
        }
        if let Poll::Ready(done) = meter.measure(|| work.as_mut().poll(cx)) {
            return Poll::Ready(Ok(done));
        }
        if is_exhausted(cx) {
            return Poll::Ready(Err(TimeExceeded::Cpu));
        }
        // The timer wakes the task, but a busy thread may pass the deadline before the timer fires.
        if clock.as_mut().poll(cx).is_ready() || Instant::now() >= deadline {
            return Poll::Ready(Err(TimeExceeded::Wall));
        }
        Poll::Pending
    })
    .await
}
