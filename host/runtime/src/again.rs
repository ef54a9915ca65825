//! A future that is polled again at once where it was woken in the midst of a poll.
//!
//! wasmtime wakes a store's own task from within its poll: when it has polled all that the store waits for and none of it
//! was ready (its `FuturesUnordered` does so, in case they only gave way), when a part of the store tells another
//! something, as for each item that a guest takes from a stream of the host's, and when a guest gives way. For a guest that
//! waits for one thing at a time the next poll finds nothing then, but tokio puts the task into its queue for it, and wakes
//! another worker to help with the queue. Looking again at once costs neither.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// How often it is polled again before others have their turn.
const AGAIN: usize = 3;
/// Who was polled for so long is not polled again: others have their turn first, and whoever gave way did it for them.
const TURN: Duration = Duration::from_millis(1);

/// It is being polled.
const POLLED: u8 = 1;
/// It was woken since the last poll began.
const WOKEN: u8 = 2;

/// What is woken in the task's place.
struct Bell {
    state: AtomicU8,
    task: Mutex<Waker>,
}

impl Bell {
    /// Who is to be woken when nobody polls.
    fn belongs_to(&self, waker: &Waker) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if !task.will_wake(waker) {
            task.clone_from(waker);
        }
    }

    fn begins(&self) {
        self.state.swap(POLLED, Ordering::AcqRel);
    }

    /// Whether nobody rang since it began.
    fn ends(&self) -> bool {
        let (orders, seen) = (Ordering::AcqRel, Ordering::Acquire);
        let ended = self.state.compare_exchange(POLLED, 0, orders, seen);
        ended.is_ok()
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Whoever polls will see it, and who was woken before will poll.
        if self.state.fetch_or(WOKEN, Ordering::AcqRel) == 0 {
            let task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
            task.wake_by_ref();
        }
    }
}

/// Polls `work` so.
pub(crate) async fn again<F: Future>(work: Pin<&mut F>) -> F::Output {
    again_within(TURN, work).await
}

async fn again_within<F: Future>(turn: Duration, mut work: Pin<&mut F>) -> F::Output {
    let bell = poll_fn(|cx| {
        Poll::Ready(Arc::new(Bell {
            state: AtomicU8::new(0),
            task: Mutex::new(cx.waker().clone()),
        }))
    });
    let bell = bell.await;
    let waker = Waker::from(Arc::clone(&bell));
    poll_fn(|cx| {
        bell.belongs_to(cx.waker());
        let began = Instant::now();
        for _ in 0..=AGAIN {
            bell.begins();
            let done = work.as_mut().poll(&mut Context::from_waker(&waker));
            if done.is_ready() || bell.ends() {
                return done;
            }
            if began.elapsed() >= turn {
                break;
            }
        }
        // Others first. Whoever rings until then has been heard.
        bell.state.swap(WOKEN, Ordering::AcqRel);
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
    struct Counts(AtomicUsize);

    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Polls once; how often the work was polled for it, and its task woken since.
    fn poll_once(turn: Duration, wakes: impl Fn(usize, &Waker)) -> (Poll<()>, usize, usize) {
        let counts = Arc::new(Counts::default());
        let waker = Waker::from(Arc::clone(&counts));
        let mut polls = 0;
        let work = poll_fn(|cx| {
            polls += 1;
            wakes(polls, cx.waker());
            Poll::<()>::Pending
        });
        let polled = {
            let work = pin!(work);
            let mut work = pin!(again_within(turn, work));
            work.as_mut().poll(&mut Context::from_waker(&waker))
        };
        (polled, polls, counts.0.load(Ordering::Relaxed))
    }

    #[test]
    fn who_is_woken_meanwhile_is_polled_at_once_and_the_task_is_not_woken() {
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
    fn who_is_woken_each_time_lets_others_have_their_turn() {
        let always = |_, waker: &Waker| waker.wake_by_ref();
        assert_eq!(
            poll_once(Duration::MAX, always),
            (Poll::Pending, AGAIN + 1, 1)
        );
    }

    #[test]
    fn who_had_a_long_turn_is_not_polled_again() {
        let always = |_, waker: &Waker| waker.wake_by_ref();
        assert_eq!(poll_once(Duration::ZERO, always), (Poll::Pending, 1, 1));
    }

    #[test]
    fn the_task_that_polled_last_is_woken() {
        let [first, last] = [(); 2].map(|()| Arc::new(Counts::default()));
        let given = Mutex::new(None);
        let work = pin!(poll_fn(|cx| {
            *given.lock().unwrap() = Some(cx.waker().clone());
            Poll::<()>::Pending
        }));
        let mut work = pin!(again(work));
        for task in [&first, &last] {
            let waker = Waker::from(Arc::clone(task));
            let polled = work.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        given.lock().unwrap().take().expect("it was polled").wake();
        let woken = [first, last].map(|task| task.0.load(Ordering::Relaxed));
        assert_eq!(woken, [0, 1]);
    }

    #[test]
    fn who_is_woken_later_wakes_the_task_once_until_it_is_polled() {
        let counts = Arc::new(Counts::default());
        let waker = Waker::from(Arc::clone(&counts));
        let mut context = Context::from_waker(&waker);
        let given = Mutex::new(None);
        let work = pin!(poll_fn(|cx| {
            *given.lock().unwrap() = Some(cx.waker().clone());
            Poll::<()>::Pending
        }));
        let mut work = pin!(again(work));
        for polls in 1..3 {
            assert!(work.as_mut().poll(&mut context).is_pending());
            let given = given.lock().unwrap().take().expect("it was polled");
            given.wake_by_ref();
            given.wake();
            assert_eq!(counts.0.load(Ordering::Relaxed), polls);
        }
    }

    /// On a task that workers pass on to each other, as calls are.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_that_others_send_meanwhile_is_lost() {
        const SENT: usize = 20_000;
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let sending = thread::spawn(move || {
            for number in 0..SENT {
                sender.send(number).expect("it is read");
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
            again(pin!(read)).await
        });
        let read = tokio::time::timeout(Duration::from_secs(60), reading).await;
        assert_eq!(read.expect("it is not left asleep").unwrap(), SENT);
        sending.join().expect("it sends all");
    }
}
