//! Wakes a waiting task of this component from a call of another one.
//!
//! A Rust waker reaches only its own task of the component model. A byte in a stream reaches any: the waiting task
//! reads, and the other one writes. The write completes at once because it happens only while a read waits.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use wit_bindgen::{StreamReader, StreamWriter};

use crate::bindings::wit_stream;

/// The side that wakes.
#[derive(Clone)]
pub(crate) struct Notifier {
    writer: Rc<RefCell<StreamWriter<u8>>>,
    waits: Rc<Cell<bool>>,
}

/// The side that waits.
pub(crate) struct Notified {
    reader: StreamReader<u8>,
    waits: Rc<Cell<bool>>,
}

pub(crate) fn notifier() -> (Notifier, Notified) {
    let (writer, reader) = wit_stream::new();
    let waits = Rc::new(Cell::new(false));
    let notifier = Notifier {
        writer: Rc::new(RefCell::new(writer)),
        waits: Rc::clone(&waits),
    };
    (notifier, Notified { reader, waits })
}

impl Notifier {
    /// Wakes the waiting task, if it waits.
    pub(crate) fn notify(&self) {
        if !self.waits.replace(false) {
            return;
        }
        let mut writer = self.writer.borrow_mut();
        let mut write = pin!(writer.write(vec![0]));
        let mut context = Context::from_waker(Waker::noop());
        let polled = write.as_mut().poll(&mut context);
        debug_assert!(polled.is_ready(), "a read waits for this byte");
    }
}

impl Notified {
    /// Waits until `poll` is ready, and polls again after each notification.
    pub(crate) async fn wait<T>(&mut self, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        loop {
            let waits = Rc::clone(&self.waits);
            let mut read = pin!(self.reader.read(Vec::with_capacity(1)));
            let ready = poll_fn(|context| {
                if let Poll::Ready(value) = poll(context) {
                    return Poll::Ready(Some(value));
                }
                match read.as_mut().poll(context) {
                    Poll::Ready(_) => Poll::Ready(None),
                    Poll::Pending => {
                        waits.set(true);
                        Poll::Pending
                    }
                }
            })
            .await;
            // Without a read, nothing waits. Dropping the read cancels it.
            waits.set(false);
            if let Some(value) = ready {
                return value;
            }
        }
    }
}
