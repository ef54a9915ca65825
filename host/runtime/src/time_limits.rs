//! Limits on the CPU and wall time of a guest's work.
//!
//! Neither epochs nor timers inside wasmtime's event loop interrupt a guest that waits in a host call. So
//! the limits are checked outside, around each poll of the work. There, too, a guest that computes waits for its turns.

use crate::compute_turns::TurnQueue;
use crate::cpu_meter::Meter;
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
/// While it [needs a turn](TurnQueue::needs_turn), the work waits for one in `turns` before each poll; that is wall time, too.
/// `is_exhausted` runs before and after each poll. It registers the task's waker if others may use up the CPU time.
pub(crate) async fn run_within<W: Future>(
    meter: &Meter,
    turns: Option<&TurnQueue>,
    mut is_exhausted: impl FnMut(&mut Context<'_>) -> bool,
    deadline: Instant,
    mut work: Pin<&mut W>,
) -> Result<W::Output, TimeExceeded> {
    let mut clock = pin!(sleep_until(deadline));
    let mut waiting = None;
    poll_fn(|cx| {
        // Before the poll: the guest must not see errors of other work that stopped for the same reason.
        if is_exhausted(cx) {
            return Poll::Ready(Err(TimeExceeded::Cpu));
        }
        if let Some(queue) = turns.filter(|turns| waiting.is_none() && turns.needs_turn()) {
            waiting = Some(Box::pin(queue.wait()));
        }
        let turn = match &mut waiting {
            Some(wait) => wait.as_mut().poll(cx),
            None => Poll::Ready(None),
        };
        if let Poll::Ready(turn) = turn {
            waiting = None;
            let (polled, used) = meter.measure(|| work.as_mut().poll(cx));
            let yielded = meter.take_yielded() && polled.is_pending();
            // Before the turn ends, so that the tenant's time counts before the next guest is chosen.
            if let Some(queue) = turns.filter(|_| yielded) {
                waiting = Some(Box::pin(queue.wait()));
            }
            match (turn, turns) {
                (Some(turn), _) => turn.end(used),
                (None, Some(turns)) => turns.use_free_time(used),
                (None, None) => {}
            }
            if let Poll::Ready(done) = polled {
                return Poll::Ready(Ok(done));
            }
            if is_exhausted(cx) {
                return Poll::Ready(Err(TimeExceeded::Cpu));
            }
        }
        // The timer wakes the task, but a busy thread may pass the deadline before the timer fires.
        if clock.as_mut().poll(cx).is_ready() || Instant::now() >= deadline {
            return Poll::Ready(Err(TimeExceeded::Wall));
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute_turns::ComputeTurns;
    use crate::free_cpu_time::FREE_TIME;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    /// A runtime of one thread, so there is one turn.
    fn block_on(work: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.unwrap().block_on(work);
    }

    fn queue() -> TurnQueue {
        queue_of(&ComputeTurns::for_workers(Arc::default()))
    }

    /// The queue of a call of the only tenant.
    fn queue_of(turns: &Arc<ComputeTurns>) -> TurnQueue {
        TurnQueue::new(turns, corral_engine::Tenant(0), &Arc::default())
    }

    /// Polls once.
    async fn once<F: Future>(work: &mut Pin<&mut F>) -> Poll<F::Output> {
        poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await
    }

    /// Work that uses CPU time in each poll and never ends. Counts its polls.
    async fn spin(time: Duration, polls: &AtomicU32) {
        poll_fn(|_| {
            polls.fetch_add(1, Ordering::Relaxed);
            let began = crate::cpu_meter::thread_nanos();
            while u128::from(crate::cpu_meter::thread_nanos() - began) < time.as_nanos() {
                std::hint::spin_loop();
            }
            Poll::Pending
        })
        .await
    }

    #[test]
    fn work_without_free_time_waits_for_turn() {
        block_on(async {
            let (queue, meter, polls) = (queue(), Meter::default(), AtomicU32::new(0));
            let other = queue.wait().await.expect("the turn is free");
            let end = Instant::now() + Duration::from_secs(600);
            let work = pin!(spin(FREE_TIME * 2, &polls));
            let mut run = pin!(run_within(&meter, Some(&queue), |_| false, end, work));
            for _ in 0..3 {
                assert!(once(&mut run).await.is_pending());
            }
            assert_eq!(polls.load(Ordering::Relaxed), 1);
            drop(other);
            assert!(once(&mut run).await.is_pending());
            assert_eq!(polls.load(Ordering::Relaxed), 2);
            // Its turn ended with the poll.
            queue.wait().await.expect("the turn is free again");
        });
    }

    #[test]
    fn short_work_needs_no_turn() {
        block_on(async {
            let (queue, meter, polls) = (queue(), Meter::default(), AtomicU32::new(0));
            let _other = queue.wait().await.expect("the turn is free");
            let end = Instant::now() + Duration::from_secs(600);
            let work = pin!(spin(FREE_TIME / 20, &polls));
            let mut run = pin!(run_within(&meter, Some(&queue), |_| false, end, work));
            for _ in 0..9 {
                assert!(once(&mut run).await.is_pending());
            }
            assert_eq!(polls.load(Ordering::Relaxed), 9);
        });
    }

    #[test]
    fn tenant_alone_never_waits() {
        block_on(async {
            let (queue, meter, polls) = (queue(), Meter::default(), AtomicU32::new(0));
            let end = Instant::now() + Duration::from_secs(600);
            let work = pin!(spin(FREE_TIME / 4, &polls));
            let mut run = pin!(run_within(&meter, Some(&queue), |_| false, end, work));
            for _ in 0..12 {
                assert!(once(&mut run).await.is_pending());
            }
            assert_eq!(polls.load(Ordering::Relaxed), 12);
        });
    }

    #[test]
    fn short_calls_use_up_tenants_free_time() {
        block_on(async {
            let turns = ComputeTurns::for_workers(Arc::default());
            let [queue, other_call] = [(); 2].map(|()| queue_of(&turns));
            let _turn = queue.wait().await.expect("the turn is free");
            let end = Instant::now() + Duration::from_secs(600);
            let (meter, polls) = (Meter::default(), AtomicU32::new(0));
            let work = pin!(spin(FREE_TIME * 2, &polls));
            let mut first = pin!(run_within(&meter, Some(&queue), |_| false, end, work));
            assert!(once(&mut first).await.is_pending());
            let (meter, polls) = (Meter::default(), AtomicU32::new(0));
            let work = pin!(spin(FREE_TIME, &polls));
            let mut second = pin!(run_within(&meter, Some(&other_call), |_| false, end, work));
            assert!(once(&mut second).await.is_pending());
            assert_eq!(polls.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn deadline_ends_wait_for_turn() {
        block_on(async {
            let (queue, meter, polls) = (queue(), Meter::default(), AtomicU32::new(0));
            let _other = queue.wait().await.expect("the turn is free");
            let end = Instant::now() + FREE_TIME * 3;
            let work = pin!(spin(FREE_TIME * 2, &polls));
            let run = run_within(&meter, Some(&queue), |_| false, end, work);
            // The task is polled again only by the timer.
            assert_eq!(run.await, Err(TimeExceeded::Wall));
        });
    }
}
