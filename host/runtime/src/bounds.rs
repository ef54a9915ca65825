//! Bounds on the time of what a guest does.
//!
//! Neither epochs nor timers inside wasmtime's event loop interrupt a guest that waits in a host
//! call, so the bounds are checked outside, around each poll of everything that the guest does.

use crate::meter::Meter;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use tokio::time::{Instant, sleep_until};

/// Which time was over first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// The processor time.
    Cpu,
    /// The wall clock.
    Wall,
}

/// Goes on with `work`, counting its processor time on `meter`, until it ends, or `spent` says that there
/// is no more processor time, or it is `deadline`. `spent` is asked before and after each poll, and is told
/// whom to wake if others may spend that time.
pub(crate) async fn within<W: Future>(
    meter: &Meter,
    mut spent: impl FnMut(&mut Context<'_>) -> bool,
    deadline: Instant,
    mut work: Pin<&mut W>,
) -> Result<W::Output, Over> {
    let mut clock = pin!(sleep_until(deadline));
    poll_fn(|cx| {
        // Before it could learn of what else was stopped for that.
        if spent(cx) {
            return Poll::Ready(Err(Over::Cpu));
        }
        if let Poll::Ready(done) = meter.measure(|| work.as_mut().poll(cx)) {
            return Poll::Ready(Ok(done));
        }
        if spent(cx) {
            return Poll::Ready(Err(Over::Cpu));
        }
        // The timer wakes us; but a busy thread may see the time before the timer does.
        if clock.as_mut().poll(cx).is_ready() || Instant::now() >= deadline {
            return Poll::Ready(Err(Over::Wall));
        }
        Poll::Pending
    })
    .await
}
