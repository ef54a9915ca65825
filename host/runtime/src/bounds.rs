//! Bounds on the time of what a guest does.
//!
//! Neither epochs nor timers inside wasmtime's event loop interrupt a guest that waits in a host
//! call, so the bounds are checked outside, around each poll of everything that the guest does.

use crate::meter::Meter;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Which time was over first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// The processor time.
    Cpu,
    /// The wall clock.
    Wall,
}

/// Goes on with `work`, counting its processor time on `meter`, until it ends, or the meter has counted
/// more than `cpu`, or it is `deadline`.
pub(crate) async fn within<W: Future>(
    meter: &Meter,
    cpu: Duration,
    deadline: Instant,
    mut work: Pin<&mut W>,
) -> Result<W::Output, Over> {
    let mut clock = pin!(sleep_until(deadline));
    poll_fn(|cx| {
        if let Poll::Ready(done) = meter.measure(|| work.as_mut().poll(cx)) {
            return Poll::Ready(Ok(done));
        }
        if meter.used() > cpu {
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
