//! Readers that a task of their own runtime wakes.
//!
//! A wake from the engine's thread can be a system call and start a thread of the runtime, which finds one reader and sleeps
//! again before the next reader is woken. Through this queue a batch costs one such wake: that of the task, which wakes the
//! readers on a thread that is awake. Without the task, the engine's thread wakes them itself.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The queue of an engine. It holds each waiting reader at most once.
#[derive(Debug, Default)]
pub struct WakeQueue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    readers: Vec<Waker>,
    has_task: bool,
    /// The task's waker. None until the task is polled, and while it is woken.
    task: Option<Waker>,
    closed: bool,
}

/// The task of a queue, to spawn where the readers run. It ends with its engine.
#[derive(Debug)]
#[must_use = "it wakes readers only where it runs"]
pub struct WakeTask {
    queue: Arc<WakeQueue>,
    /// Readers to wake; empty between two polls.
    readers: Vec<Waker>,
}

impl WakeQueue {
    /// The task to spawn; `None` while there is one.
    pub fn task(self: &Arc<Self>) -> Option<WakeTask> {
        let mut state = self.lock();
        if state.has_task || state.closed {
            return None;
        }
        state.has_task = true;
        Some(WakeTask {
            queue: Arc::clone(self),
            readers: Vec::new(),
        })
    }

    /// Takes `readers`, and lets the task wake them. Without a task they stay the caller's.
    pub fn wake(&self, readers: &mut Vec<Waker>) {
        let mut state = self.lock();
        if !state.has_task {
            return;
        }
        state.readers.append(readers);
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Ends the task.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under this lock panics midway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Future for WakeTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut state = this.queue.lock();
        std::mem::swap(&mut state.readers, &mut this.readers);
        state.task = Some(context.waker().clone());
        let closed = state.closed;
        drop(state);
        this.readers.drain(..).for_each(Waker::wake);
        match closed {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

impl Drop for WakeTask {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.has_task = false;
        state.task = None;
        let readers = std::mem::take(&mut state.readers);
        drop(state);
        readers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    /// Counts wakeups.
    #[derive(Default)]
    pub(crate) struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Count {
        pub(crate) fn get(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    struct Test {
        queue: Arc<WakeQueue>,
        task: Arc<Count>,
        readers: Arc<Count>,
    }

    impl Test {
        fn new() -> Self {
            Test {
                queue: Arc::default(),
                task: Arc::default(),
                readers: Arc::default(),
            }
        }

        /// Wakes three readers. Returns how many the queue left.
        fn wake(&self) -> usize {
            let reader = || Waker::from(Arc::clone(&self.readers));
            let mut readers = vec![reader(), reader(), reader()];
            self.queue.wake(&mut readers);
            readers.len()
        }

        fn poll(&self, task: &mut WakeTask) -> Poll<()> {
            let waker = Waker::from(Arc::clone(&self.task));
            Pin::new(task).poll(&mut Context::from_waker(&waker))
        }
    }

    #[test]
    fn task_is_woken_once_for_waiting_readers() {
        let test = Test::new();
        let mut task = test.queue.task().expect("the first");
        assert!(test.queue.task().is_none(), "there is one");
        assert!(test.poll(&mut task).is_pending());
        assert_eq!([test.wake(), test.wake()], [0, 0]);
        assert_eq!((test.task.get(), test.readers.get()), (1, 0));
        assert!(test.poll(&mut task).is_pending());
        assert_eq!((test.task.get(), test.readers.get()), (1, 6));
        assert_eq!(test.wake(), 0);
        assert!(test.poll(&mut task).is_pending());
        assert_eq!((test.task.get(), test.readers.get()), (2, 9));
    }

    #[test]
    fn readers_are_left_without_task() {
        let test = Test::new();
        assert_eq!(test.wake(), 3);
        let task = test.queue.task().expect("the first");
        assert_eq!(test.wake(), 0, "it will be polled");
        drop(task);
        assert_eq!(test.readers.get(), 3);
        assert_eq!(test.wake(), 3);
        drop(test.queue.task().expect("another one"));
    }

    #[test]
    fn closed_queue_ends_its_task() {
        let test = Test::new();
        let mut task = test.queue.task().expect("the first");
        assert!(test.poll(&mut task).is_pending());
        test.wake();
        test.queue.close();
        assert_eq!(test.task.get(), 1);
        assert!(test.poll(&mut task).is_ready());
        assert_eq!(test.readers.get(), 3);
        drop(task);
        assert!(test.queue.task().is_none());
    }
}
