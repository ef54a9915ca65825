//! The task that writes the streams of all generations.
//!
//! `generate` and `frame` are synchronous functions, and a task of theirs ends when they return. So they pass their
//! generations to a task of the component model that an async function has started, and that goes on after it has
//! returned. A host may wait for all tasks of a call. So the background task ends once the program holds nothing that a
//! generation could start from, and no stream is left to write; the next async function starts another one.
//!
//! `collect` and `frame` get a stream that `generate` has returned. A component must not read a stream of records that
//! it writes, and a handle does not tell which stream it is. So the background task drops the stream, and looks for the
//! generation whose writer finds its stream dropped.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use wit_bindgen::{FutureReader, StreamReader, StreamWriter};

use crate::bindings::exports::corral::inference::inference::{Chunk, Outcome};
use crate::bindings::exports::corral::inference::inference_async::Framing;
use crate::bindings::exports::corral::inference::types::Error;
use crate::bindings::{wit_future, wit_stream};
use crate::collect;
use crate::framed_body;
use crate::live_generation::{BlockingGeneration, End, LiveGeneration};
use crate::notifier::{Notified, Notifier, notifier};

/// Most bytes of a framing, as on a Corral host.
const MAX_FRAMING: usize = 64 << 10;

/// Work that other tasks pass to the background task.
enum Job {
    Write(LiveGeneration),
    Collect {
        chunks: StreamReader<Chunk>,
        result: Rc<Cell<Option<Result<Chunk, Error>>>>,
        done: Notifier,
    },
    Frame {
        chunks: StreamReader<Chunk>,
        framing: Framing,
        rest: StreamReader<u8>,
        body: StreamWriter<u8>,
    },
}

/// The jobs, and what wakes the background task. Bounded by the handles that the host allows.
struct Queue {
    jobs: RefCell<VecDeque<Job>>,
    wake: Notifier,
}

impl Queue {
    fn push(&self, job: Job) {
        self.jobs.borrow_mut().push_back(job);
        self.wake.notify();
    }

    fn pop(&self) -> Option<Job> {
        self.jobs.borrow_mut().pop_front()
    }
}

thread_local! {
    /// The queue of the background task, while it runs.
    static QUEUE: RefCell<Option<Rc<Queue>>> = const { RefCell::new(None) };
    /// The program's models and sequences.
    static ORIGINS: Cell<usize> = const { Cell::new(0) };
}

/// Part of each model and sequence of the program: the background task runs while there is one.
pub struct OriginGuard(());

impl OriginGuard {
    /// Counts a model or a sequence.
    #[allow(clippy::new_without_default, reason = "it changes a count")]
    pub fn new() -> Self {
        ORIGINS.set(ORIGINS.get() + 1);
        OriginGuard(())
    }
}

impl Drop for OriginGuard {
    fn drop(&mut self) {
        ORIGINS.set(ORIGINS.get() - 1);
        if ORIGINS.get() == 0
            && let Some(queue) = QUEUE.with_borrow(Clone::clone)
        {
            queue.wake.notify();
        }
    }
}

fn queue() -> Result<Rc<Queue>, Error> {
    let queue = QUEUE.with_borrow(Clone::clone);
    queue.ok_or_else(|| {
        Error::Failed(
            "open a model with inference-async before a generation: its streams need a task that such a call starts"
                .into(),
        )
    })
}

/// Starts the background task in the task of the current async function, unless it runs.
pub(crate) fn start() {
    QUEUE.with_borrow_mut(|running| {
        if running.is_some() {
            return;
        }
        let (wake, woken) = notifier();
        let queue = Rc::new(Queue {
            jobs: RefCell::default(),
            wake,
        });
        *running = Some(Rc::clone(&queue));
        wit_bindgen::spawn_local(run(queue, woken));
    });
}

/// The chunks of a generation, and its outcome.
type Streams = (StreamReader<Chunk>, FutureReader<Result<Outcome, Error>>);

/// Starts a generation whose chunks the background task writes.
pub(crate) fn generate(
    start: impl FnOnce() -> Result<Box<dyn BlockingGeneration>, Error>,
) -> Result<Streams, Error> {
    let queue = queue()?;
    let generation = start()?;
    let (chunk_writer, chunks) = wit_stream::new();
    let (outcome_writer, outcome) = wit_future::new(|| Err(Error::Cancelled));
    queue.push(Job::Write(LiveGeneration::new(
        generation,
        chunk_writer,
        outcome_writer,
    )));
    Ok((chunks, outcome))
}

/// Waits for the end of a generation and returns its remaining output.
pub(crate) async fn collect(chunks: StreamReader<Chunk>) -> Result<Chunk, Error> {
    start();
    let (done, mut notified) = notifier();
    let result = Rc::new(Cell::new(None));
    queue()?.push(Job::Collect {
        chunks,
        result: Rc::clone(&result),
        done,
    });
    let poll = |_: &mut Context<'_>| match result.take() {
        Some(result) => Poll::Ready(result),
        None => Poll::Pending,
    };
    notified.wait(poll).await
}

/// Converts a generation's text to a byte stream. A stream that is no generation's gives an empty one.
pub(crate) fn frame(
    chunks: StreamReader<Chunk>,
    framing: Framing,
    rest: StreamReader<u8>,
) -> Result<StreamReader<u8>, Error> {
    let length = framing.first.len() + framing.before.len() + framing.after.len();
    if length > MAX_FRAMING {
        let text = format!("the framing has {length} bytes; it may have {MAX_FRAMING}");
        return Err(Error::Invalid(text));
    }
    let (body, reader) = wit_stream::new();
    // Without the task, no generation is left. Dropping the body ends it.
    if let Ok(queue) = queue() {
        queue.push(Job::Frame {
            chunks,
            framing,
            rest,
            body,
        });
    }
    Ok(reader)
}

/// Writes that go on until the plugin has read them.
type Writes = FuturesUnordered<Pin<Box<dyn Future<Output = ()>>>>;

/// What the background task does next.
enum Next {
    Jobs,
    End,
}

async fn run(queue: Rc<Queue>, mut woken: Notified) {
    let mut live = Vec::new();
    let mut writes = Writes::new();
    loop {
        while let Some(job) = queue.pop() {
            start_job(job, &mut live, &mut writes).await;
        }
        let poll = |context: &mut Context<'_>| {
            poll_all(&mut live, &mut writes, context);
            // A write may have caused further jobs.
            if !queue.jobs.borrow().is_empty() {
                return Poll::Ready(Next::Jobs);
            }
            match ORIGINS.get() == 0 && live.is_empty() && writes.is_empty() {
                true => Poll::Ready(Next::End),
                false => Poll::Pending,
            }
        };
        if let Next::End = woken.wait(poll).await {
            QUEUE.set(None);
            return;
        }
    }
}

/// Polls all generations and writes, and drops those that ended.
fn poll_all(live: &mut Vec<LiveGeneration>, writes: &mut Writes, context: &mut Context<'_>) {
    let mut index = 0;
    while let Some(generation) = live.get_mut(index) {
        match generation.poll(context) {
            Poll::Pending => index += 1,
            Poll::Ready(end) => {
                let LiveGeneration {
                    generation,
                    outcome,
                    ..
                } = live.swap_remove(index);
                let result = match end {
                    End::Complete => generation.outcome(),
                    End::Dropped => Err(Error::Cancelled),
                };
                // Dropping a generation that has not ended cancels it.
                drop(generation);
                writes.push(Box::pin(async move {
                    // An error says that the plugin dropped the future.
                    let _ = outcome.write(result).await;
                }));
            }
        }
    }
    while let Poll::Ready(Some(())) = writes.poll_next_unpin(context) {}
}

async fn start_job(job: Job, live: &mut Vec<LiveGeneration>, writes: &mut Writes) {
    match job {
        Job::Write(generation) => live.push(generation),
        Job::Collect {
            chunks,
            result,
            done,
        } => {
            let claimed = claim(live, chunks).await;
            let collected = claimed.map(|generation| collect_rest(generation, writes));
            result.set(Some(collected.ok_or_else(|| {
                Error::Invalid("chunks is not a stream that generate returned".into())
            })));
            done.notify();
        }
        Job::Frame {
            chunks,
            framing,
            rest,
            body,
        } => {
            // Dropping the body ends it.
            if let Some(generation) = claim(live, chunks).await {
                let written = framed_body::write(generation, framing, rest, body);
                writes.push(Box::pin(written));
            }
        }
    }
}

/// Takes the generation of a stream. Drops the stream.
async fn claim(
    live: &mut Vec<LiveGeneration>,
    chunks: StreamReader<Chunk>,
) -> Option<LiveGeneration> {
    let mut chunks = Some(chunks);
    poll_fn(|context| {
        let open = live.iter_mut().enumerate();
        let open: Vec<_> = open
            .filter_map(|(index, generation)| (!generation.is_dropped(context)).then_some(index))
            .collect();
        drop(chunks.take());
        let mut open = open.into_iter();
        let dropped = open.find(|&index| live[index].is_dropped(context));
        Poll::Ready(dropped.map(|index| live.swap_remove(index)))
    })
    .await
}

/// Waits for the end of a generation, and passes its outcome to the plugin.
fn collect_rest(generation: LiveGeneration, writes: &mut Writes) -> Chunk {
    let LiveGeneration {
        generation,
        outcome,
        unread,
        ..
    } = generation;
    let all = collect::collect(unread.into_iter().next(), || generation.read());
    let result = generation.outcome();
    writes.push(Box::pin(async move {
        let _ = outcome.write(result).await;
    }));
    all
}
