//! Polls a future again at once if it was woken during its poll.
//!
//! wasmtime wakes a store's task from within its own poll: when no future of the store was ready, when one
//! part of the store notifies another (for each item of a host stream), and when a guest yields. For a guest
//! that waits for one thing, the next poll then finds nothing. Without this wrapper, tokio queues the task
//! for that poll and wakes another worker to help with the queue. Polling again at once avoids both.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Most extra polls before the task yields to others.
const EXTRA_POLLS: usize = 3;
/// A future that was polled for this long is not polled again before the task has yielded.
const POLL_BUDGET: Duration = Duration::from_millis(1);

/// The future is being polled.
const POLLING: u8 = 1;
/// The future was woken since the last poll began.
const WOKEN: u8 = 2;

/// The waker that the future sees. It wakes the task only between polls.
struct PollWaker {
    state: AtomicU8,
    task: Mutex<Waker>,
}

impl PollWaker {
    /// Sets the waker of the task that polls.
    fn set_task(&self, waker: &Waker) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if !task.will_wake(waker) {
            task.clone_from(waker);
        }
    }

    fn begin_poll(&self) {
        self.state.swap(POLLING, Ordering::AcqRel);
    }

    /// Ends the poll, unless the future was woken since it began. Returns whether it ended.
    fn end_poll(&self) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        self.state
            .compare_exchange(POLLING, 0, success, failure)
            .is_ok()
    }
}

impl Wake for PollWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // If a poll runs, it sees the flag; if the flag was set before, a poll follows.
        if self.state.fetch_or(WOKEN, Ordering::AcqRel) == 0 {
            let task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
            task.wake_by_ref();
        }
    }
}

/// Runs `work`, polling it again at once when it was woken during its poll.
pub(crate) async fn poll_again<F: Future>(work: Pin<&mut F>) -> F::Output {
    poll_again_within(POLL_BUDGET, work).await
}

async fn poll_again_within<F: Future>(budget: Duration, mut work: Pin<&mut F>) -> F::Output {
    let poll_waker = poll_fn(|cx| {
        Poll::Ready(Arc::new(PollWaker {
            state: AtomicU8::new(0),
            task: Mutex::new(cx.waker().clone()),
        }))
    });
    let poll_waker = poll_waker.await;
    let waker = Waker::from(Arc::clone(&poll_waker));
    poll_fn(|cx| {
        poll_waker.set_task(cx.waker());
        let began = Instant::now();
        for _ in 0..=EXTRA_POLLS {
            poll_waker.begin_poll();
            let done = work.as_mut().poll(&mut Context::from_waker(&waker));
            if done.is_ready() || poll_waker.end_poll() {
                return done;
            }
            if began.elapsed() >= budget {
                break;
            }
        }
        // Yield. The next poll serves all wakes until then.
        poll_waker.state.swap(WOKEN, Ordering::AcqRel);
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;
    use std::thread;
    use tokio::sync::mpsc;

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl WakeCounter {
        fn count(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Polls once. Returns how often that polled the work and woke the task.
    fn poll_once(budget: Duration, wakes: impl Fn(usize, &Waker)) -> (Poll<()>, usize, usize) {
        let counter = Arc::new(WakeCounter::default());
        let waker = Waker::from(Arc::clone(&counter));
        let mut polls = 0;
        let work = poll_fn(|cx| {
            polls += 1;
            wakes(polls, cx.waker());
            Poll::<()>::Pending
        });
        let polled = {
            let work = pin!(work);
            let mut work = pin!(poll_again_within(budget, work));
            work.as_mut().poll(&mut Context::from_waker(&waker))
        };
        (polled, polls, counter.count())
    }

    #[test]
    fn wake_during_poll_polls_again_without_waking_task() {
        assert_eq!(poll_once(Duration::MAX, |_, _| {}), (Poll::Pending, 1, 0));
        let twice = |poll, waker: &Waker| {
            if poll == 1 {
                waker.wake_by_ref();
                waker.wake_by_ref();
            }
        };
        assert_eq!(poll_once(Duration::MAX, twice), (Poll::Pending, 2, 0));
    }

    #[test]
    fn repeated_wakes_yield_to_other_tasks() {
        let always = |_, waker: &Waker| waker.wake_by_ref();
        assert_eq!(
            poll_once(Duration::MAX, always),
            (Poll::Pending, EXTRA_POLLS + 1, 1)
        );
    }

    #[test]
    fn long_poll_is_not_repeated() {
        let always = |_, waker: &Waker| waker.wake_by_ref();
        assert_eq!(poll_once(Duration::ZERO, always), (Poll::Pending, 1, 1));
    }

    #[test]
    fn wake_reaches_task_that_polled_last() {
        let [first, last] = [(); 2].map(|()| Arc::new(WakeCounter::default()));
        let seen = Mutex::new(None);
        let work = pin!(poll_fn(|cx| {
            *seen.lock().unwrap() = Some(cx.waker().clone());
            Poll::<()>::Pending
        }));
        let mut work = pin!(poll_again(work));
        for task in [&first, &last] {
            let waker = Waker::from(Arc::clone(task));
            let polled = work.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        seen.lock().unwrap().take().unwrap().wake();
        assert_eq!([first.count(), last.count()], [0, 1]);
    }

    #[test]
    fn later_wakes_wake_task_once_per_poll() {
        let counter = Arc::new(WakeCounter::default());
        let waker = Waker::from(Arc::clone(&counter));
        let mut context = Context::from_waker(&waker);
        let seen = Mutex::new(None);
        let work = pin!(poll_fn(|cx| {
            *seen.lock().unwrap() = Some(cx.waker().clone());
            Poll::<()>::Pending
        }));
        let mut work = pin!(poll_again(work));
        for polls in 1..3 {
            assert!(work.as_mut().poll(&mut context).is_pending());
            let seen = seen.lock().unwrap().take().unwrap();
            seen.wake_by_ref();
            seen.wake();
            assert_eq!(counter.count(), polls);
        }
    }

    /// Runs on a task that moves between workers, as calls do.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn concurrent_wakes_are_not_lost() {
        const SENT: usize = 20_000;
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let sending = thread::spawn(move || {
            for number in 0..SENT {
                sender.send(number).unwrap();
                if number % 64 == 0 {
                    thread::yield_now();
                }
            }
        });
        let reading = tokio::spawn(async move {
            let read = async {
                let mut read = 0;
                while receiver.recv().await.is_some() {
                    read += 1;
                    if read % 1000 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
                read
            };
            poll_again(pin!(read)).await
        });
        let read = tokio::time::timeout(Duration::from_secs(60), reading).await;
        assert_eq!(
            read.expect("the reader must not stay asleep").unwrap(),
            SENT
        );
        sending.join().unwrap();
    }
}
