//! A generation whose chunks the plugin reads from a stream.
//!
//! An empty write to the stream completes when the plugin reads. Only then is a chunk taken from the blocking generation.
//! So at most one chunk is outside the generation, and a slow plugin gets fewer and larger chunks.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use wit_bindgen::{FutureWriter, StreamResult, StreamWriter};

use crate::bindings::exports::corral::inference::inference::{Chunk, Outcome};
use crate::bindings::exports::corral::inference::inference_sync::GuestGeneration;
use crate::bindings::exports::corral::inference::types::Error;

/// A generation whose functions block.
pub(crate) trait BlockingGeneration {
    fn read(&self) -> Option<Chunk>;
    fn outcome(&self) -> Result<Outcome, Error>;
}

impl<T: GuestGeneration> BlockingGeneration for T {
    fn read(&self) -> Option<Chunk> {
        GuestGeneration::read(self)
    }

    fn outcome(&self) -> Result<Outcome, Error> {
        GuestGeneration::outcome(self)
    }
}

/// A generation and the writers of its stream and its future.
pub(crate) struct LiveGeneration {
    pub(crate) generation: Box<dyn BlockingGeneration>,
    pub(crate) outcome: FutureWriter<Result<Outcome, Error>>,
    chunks: Chunks,
    /// The chunk that the plugin has not read yet; at most one.
    pub(crate) unread: Vec<Chunk>,
}

enum Chunks {
    Idle(StreamWriter<Chunk>),
    Writing(Write),
    /// The plugin dropped the stream.
    Dropped,
}

/// A write that another task may interrupt.
struct Write {
    interrupt: Rc<Cell<bool>>,
    future: Pin<Box<dyn Future<Output = Written>>>,
}

/// The writer, the result, and the chunks that were not written.
type Written = (StreamWriter<Chunk>, StreamResult, Vec<Chunk>);

/// How a stream ended.
pub(crate) enum End {
    /// The plugin read all chunks.
    Complete,
    /// The plugin dropped the stream.
    Dropped,
}

impl LiveGeneration {
    pub(crate) fn new(
        generation: Box<dyn BlockingGeneration>,
        chunks: StreamWriter<Chunk>,
        outcome: FutureWriter<Result<Outcome, Error>>,
    ) -> Self {
        LiveGeneration {
            generation,
            outcome,
            chunks: Chunks::Idle(chunks),
            unread: Vec::new(),
        }
    }

    /// Writes chunks while the plugin reads them. Ready at the end.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<End> {
        loop {
            match ready!(self.poll_write(context)) {
                StreamResult::Dropped => return Poll::Ready(End::Dropped),
                StreamResult::Complete(0) if self.unread.is_empty() => {
                    // The plugin reads.
                    match self.generation.read() {
                        Some(chunk) => self.unread.push(chunk),
                        None => return Poll::Ready(End::Complete),
                    }
                }
                StreamResult::Complete(_) | StreamResult::Cancelled => {}
            }
        }
    }

    /// Whether the plugin has dropped the stream. Interrupts a write that waits.
    pub(crate) fn is_dropped(&mut self, context: &mut Context<'_>) -> bool {
        if self.poll_write(context).is_pending() {
            if let Chunks::Writing(write) = &self.chunks {
                write.interrupt.set(true);
            }
            let polled = self.poll_write(context);
            debug_assert!(polled.is_ready(), "an interrupted write ends");
        }
        matches!(self.chunks, Chunks::Dropped)
    }

    /// Writes the unread chunk, or nothing if there is none: ready once the plugin reads, drops the stream, or the
    /// write is interrupted.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<StreamResult> {
        let mut write = match std::mem::replace(&mut self.chunks, Chunks::Dropped) {
            Chunks::Idle(writer) => start(writer, std::mem::take(&mut self.unread)),
            Chunks::Writing(write) => write,
            Chunks::Dropped => return Poll::Ready(StreamResult::Dropped),
        };
        match write.future.as_mut().poll(context) {
            Poll::Pending => {
                self.chunks = Chunks::Writing(write);
                Poll::Pending
            }
            Poll::Ready((writer, result, unread)) => {
                self.unread = unread;
                if result != StreamResult::Dropped {
                    self.chunks = Chunks::Idle(writer);
                }
                Poll::Ready(result)
            }
        }
    }
}

fn start(mut writer: StreamWriter<Chunk>, chunks: Vec<Chunk>) -> Write {
    let interrupt = Rc::new(Cell::new(false));
    let interrupted = Rc::clone(&interrupt);
    let future = async move {
        let (result, rest) = {
            let mut write = pin!(writer.write(chunks));
            poll_fn(|context| match interrupted.get() {
                true => Poll::Ready(write.as_mut().cancel()),
                false => write.as_mut().poll(context),
            })
            .await
        };
        (writer, result, rest.into_vec())
    };
    Write {
        interrupt,
        future: Box::pin(future),
    }
}
