//! Runs futures and commands on the current thread.

#[cfg(not(target_arch = "wasm32"))]
use std::cell::RefCell;
use std::pin::pin;
#[cfg(not(target_arch = "wasm32"))]
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

#[cfg(not(target_arch = "wasm32"))]
use crate::Command;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to completion on this thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// Runs a command and returns its result and output. With a script, use
/// [`Script::run_command`](super::Script::run_command).
#[cfg(not(target_arch = "wasm32"))]
pub fn run_command<E>(
    run: impl AsyncFnOnce(&mut Command) -> Result<(), E>,
    arguments: &[&str],
) -> (Result<(), E>, String) {
    let buffer = Rc::new(RefCell::new(Vec::new()));
    let mut command = Command::with_buffer(arguments, &buffer);
    let result = block_on(run(&mut command));
    (result, String::from_utf8_lossy(&buffer.take()).into_owned())
}
