//! The embedding thread: starts inputs, computes steps and delivers vectors.
//!
//! It creates its context with the first request and frees it after an idle time. Without requests it
//! blocks on its channel; it holds no lock across a step. Abandoned and expired requests end before the
//! next step.

use super::backend::EmbeddingBackend;
use super::batch::{ActiveInput, BatchLimits, EmbeddingBatch, InputRow, MAX_SHORT_TOKENS};
use super::fair_queue::{FairQueue, FairQueueId};
use super::pooling::{Pooler, Pooling};
use super::vectors::{VectorSender, Vectors};
use crate::backend::TokenInput;
use crate::metrics::{EngineMetrics, add, add_time, get, set};
use crate::open_request_limits::RequestPermit;
use crate::{Caller, Error, Token};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

/// A command to the thread.
pub enum EmbeddingCommand {
    /// Compute vectors. The request is checked: no input is empty or too long, all tokens are in the
    /// vocabulary, and the model supports the pooling.
    Embed(Box<EmbeddingRequest>),
    /// Cancel all requests and end.
    Shutdown,
}

/// A checked request.
pub struct EmbeddingRequest {
    pub inputs: Vec<Vec<Token>>,
    pub pooling: Pooling,
    pub normalize: bool,
    pub caller: Caller,
    pub sender: VectorSender,
    pub arrived: Instant,
    /// Held until the request ends.
    pub permit: RequestPermit,
}

/// An open request.
struct OpenRequest {
    request: EmbeddingRequest,
    tokens: u64,
    /// The next input to start.
    next: usize,
    vectors: Vec<Option<Vec<f32>>>,
    /// Vectors that are not computed yet.
    missing: usize,
    started: Option<Instant>,
}

impl OpenRequest {
    /// Length of the next input.
    fn next_length(&self) -> Option<u32> {
        let input = self.request.inputs.get(self.next)?;
        Some(u32::try_from(input.len()).unwrap_or(u32::MAX))
    }

    /// The error if the request has expired.
    fn expired(&self, now: Instant) -> Option<Error> {
        let EmbeddingRequest {
            caller, arrived, ..
        } = &self.request;
        if caller.deadline.is_some_and(|deadline| deadline <= now) {
            return Some(Error::DeadlineExceeded);
        }
        let waited = now.saturating_duration_since(*arrived);
        let late = caller.queue_time.is_some_and(|most| most <= waited);
        (late && self.started.is_none()).then(|| Error::QueueTimeout {
            reason: format!(
                "the request for embeddings did not start within {:.1} s",
                waited.as_secs_f64()
            ),
            retry_after: waited.clamp(Duration::from_secs(1), Duration::from_secs(60)),
        })
    }
}

/// Creates a context.
pub type MakeBackend<B> = Box<dyn FnMut() -> Result<B, Error> + Send>;

/// The embedding thread's state.
pub struct EmbeddingWorker<B> {
    make: MakeBackend<B>,
    backend: Option<B>,
    limits: BatchLimits,
    /// Numbers in a vector.
    width: usize,
    /// How long the context stays without requests.
    idle: Duration,
    requests: BTreeMap<FairQueueId, OpenRequest>,
    next_id: u64,
    queue: FairQueue,
    batch: EmbeddingBatch,
    commands: Receiver<EmbeddingCommand>,
    metrics: Arc<EngineMetrics>,
    inputs: Vec<TokenInput>,
}

impl<B: EmbeddingBackend> EmbeddingWorker<B> {
    pub fn new(
        make: MakeBackend<B>,
        limits: BatchLimits,
        width: usize,
        idle: Duration,
        commands: Receiver<EmbeddingCommand>,
        metrics: Arc<EngineMetrics>,
    ) -> Self {
        Self {
            make,
            backend: None,
            limits,
            width,
            idle,
            requests: BTreeMap::new(),
            next_id: 0,
            queue: FairQueue::default(),
            batch: EmbeddingBatch::new(limits),
            commands,
            metrics,
            inputs: Vec::new(),
        }
    }

    /// Runs until it is shut down, or until its channel is closed and all requests are done.
    pub fn run(mut self) {
        while self.receive() {
            self.end_abandoned();
            if !self.requests.is_empty() && self.ensure_backend() {
                self.start_inputs();
                self.step();
            }
            set(&self.metrics.embed_open, self.requests.len() as u64);
        }
        self.end_all(&Error::ShuttingDown, |metrics| &metrics.embed_canceled);
        while let Ok(command) = self.commands.try_recv() {
            if let EmbeddingCommand::Embed(request) = command {
                add(&self.metrics.embed_canceled, 1);
                drop(request.permit);
                request.sender.finish(Err(Error::ShuttingDown));
            }
        }
        self.free();
        set(&self.metrics.embed_open, 0);
    }

    /// Receives commands; blocks while there are no requests. Returns false at the end.
    fn receive(&mut self) -> bool {
        while self.requests.is_empty() {
            let command = if self.backend.is_some() {
                match self.commands.recv_timeout(self.idle) {
                    Ok(command) => Some(command),
                    Err(RecvTimeoutError::Timeout) => {
                        add(&self.metrics.embed_wake_ups, 1);
                        self.free();
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => None,
                }
            } else {
                self.commands.recv().ok()
            };
            add(&self.metrics.embed_wake_ups, 1);
            if !command.is_some_and(|command| self.handle(command)) {
                return false;
            }
        }
        loop {
            match self.commands.try_recv() {
                Ok(command) => {
                    if !self.handle(command) {
                        return false;
                    }
                }
                // Open requests are still computed.
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return true,
            }
        }
    }

    /// Returns false if the thread must end.
    fn handle(&mut self, command: EmbeddingCommand) -> bool {
        let EmbeddingCommand::Embed(request) = command else {
            return false;
        };
        let id = FairQueueId(self.next_id);
        self.next_id += 1;
        let count = request.inputs.len();
        self.queue
            .add(id, request.caller.tenant, request.caller.priority);
        let open = OpenRequest {
            tokens: request.inputs.iter().map(|input| input.len() as u64).sum(),
            next: 0,
            vectors: vec![None; count],
            missing: count,
            started: None,
            request: *request,
        };
        self.requests.insert(id, open);
        true
    }

    /// Creates a context if there is none. If that fails, fails all requests and returns false.
    fn ensure_backend(&mut self) -> bool {
        if self.backend.is_none() {
            match (self.make)() {
                Ok(backend) => {
                    self.backend = Some(backend);
                    set(&self.metrics.embed_contexts, 1);
                }
                Err(error) => self.end_all(&error, |metrics| &metrics.embed_failed),
            }
        }
        self.backend.is_some()
    }

    fn free(&mut self) {
        self.backend = None;
        set(&self.metrics.embed_contexts, 0);
    }

    /// Ends abandoned and expired requests.
    fn end_abandoned(&mut self) {
        let now = Instant::now();
        let mut ended = Vec::new();
        for (id, open) in &self.requests {
            if open.request.sender.is_abandoned() {
                ended.push((*id, Error::Canceled, true));
            } else if let Some(error) = open.expired(now) {
                ended.push((*id, error, false));
            }
        }
        for (id, error, canceled) in ended {
            let counter = if canceled {
                &self.metrics.embed_canceled
            } else {
                &self.metrics.embed_expired
            };
            add(counter, 1);
            self.end(id, Err(error));
        }
    }

    /// Starts inputs in the order of the queue. If the first short (or long) one has no room, no later
    /// short (or long) one starts.
    fn start_inputs(&mut self) {
        let (mut short, mut long) = (true, true);
        let now = Instant::now();
        while short || long {
            let is_short = |length: u32| self.limits.whole || length <= MAX_SHORT_TOKENS;
            let eligible = |id: FairQueueId| {
                let length = self.requests.get(&id).and_then(OpenRequest::next_length);
                length.is_some_and(|length| {
                    (if is_short(length) { short } else { long })
                        && !self.batch.exceeds_request_limit(id, length)
                })
            };
            let Some(id) = self.queue.next(eligible) else {
                return;
            };
            let Some(open) = self.requests.get_mut(&id) else {
                return;
            };
            let Some(length) = open.next_length() else {
                return;
            };
            if !self.batch.has_room(length) {
                if is_short(length) {
                    short = false;
                } else {
                    long = false;
                }
                continue;
            }
            if open.started.is_none() {
                open.started = Some(now);
                let waited = now.saturating_duration_since(open.request.arrived);
                add_time(&self.metrics.embed_queue_nanos, waited);
            }
            let pooler = Pooler::new(open.request.pooling, self.width, length as usize);
            self.batch.start(id, open.next, length, pooler);
            open.next += 1;
            self.queue.charge(id, u64::from(length));
        }
    }

    fn step(&mut self) {
        let rows = self.batch.step();
        self.inputs.clear();
        for row in &rows {
            let Some(open) = self.requests.get(&row.id) else {
                continue;
            };
            let tokens = open.request.inputs[row.input].iter();
            let (start, count) = (row.start as usize, row.count as usize);
            let positions = row.start..;
            let part = tokens.skip(start).take(count).zip(positions);
            self.inputs
                .extend(part.map(|(&token, position)| TokenInput {
                    token,
                    position,
                    seq: row.seq,
                    output: true,
                }));
        }
        let Some(backend) = &mut self.backend else {
            return;
        };
        if self.inputs.is_empty() {
            return;
        }
        let busy = get(&self.metrics.running) > 0;
        let started = Instant::now();
        let computed = backend.compute(&self.inputs, busy);
        add_time(&self.metrics.embed_step_nanos, started.elapsed());
        add(&self.metrics.embed_steps, 1);
        match computed {
            Ok(()) => {
                add(&self.metrics.embed_computed, self.inputs.len() as u64);
                match pool_step(backend, &mut self.batch, &rows) {
                    Ok(()) => self.deliver(&rows),
                    Err(error) => self.fail_step(&rows, &error),
                }
            }
            Err(error) => self.fail_step(&rows, &error.to_string()),
        }
    }

    /// Stores the vectors of finished inputs in their requests.
    fn deliver(&mut self, rows: &[InputRow]) {
        for active in self.batch.complete_step(rows) {
            let (id, input) = (active.id, active.input);
            let Some(open) = self.requests.get_mut(&id) else {
                continue;
            };
            let normalize = open.request.normalize;
            let vector = release(self.backend.as_mut(), active).finish(normalize);
            let Some(vector) = vector else {
                let what = format!(
                    "the model's numbers for input {input} are not finite; \
                     its weights may be damaged or overflow in this format"
                );
                add(&self.metrics.embed_failed, 1);
                self.end(id, Err(Error::Failed(what)));
                continue;
            };
            if let Some(slot) = open.vectors.get_mut(input) {
                *slot = Some(vector);
            }
            open.missing -= 1;
            if open.missing == 0 {
                self.finish(id);
            }
        }
    }

    /// Sends the result of a request.
    fn finish(&mut self, id: FairQueueId) {
        let Some(open) = self.requests.get_mut(&id) else {
            return;
        };
        let now = Instant::now();
        let started = open.started.unwrap_or(now);
        let pooling = open.request.pooling;
        let vectors = Vectors {
            pooling,
            width: self.width,
            inputs: open.vectors.drain(..).flatten().collect(),
            tokens: open.tokens,
            queue_time: started.saturating_duration_since(open.request.arrived),
            compute_time: now.saturating_duration_since(started),
        };
        add(&self.metrics.embed_finished, 1);
        add(&self.metrics.embed_inputs, vectors.inputs.len() as u64);
        add(&self.metrics.embed_tokens, vectors.tokens);
        self.end(id, Ok(vectors));
    }

    fn fail_step(&mut self, rows: &[InputRow], cause: &str) {
        add(&self.metrics.embed_failed_steps, 1);
        if let Some(backend) = &mut self.backend {
            for row in rows {
                backend.clear(row.seq);
            }
        }
        for failed in self.batch.fail_step(rows) {
            let what = format!("input {} cannot be computed: {cause}", failed.input);
            add(&self.metrics.embed_failed, 1);
            self.end(failed.id, Err(Error::Failed(what)));
        }
    }

    /// Ends a request and frees its inputs.
    fn end(&mut self, id: FairQueueId, result: Result<Vectors, Error>) {
        self.queue.remove(id);
        for active in self.batch.remove(id) {
            release(self.backend.as_mut(), active);
        }
        let Some(open) = self.requests.remove(&id) else {
            return;
        };
        if open.started.is_none() {
            let waited = open.request.arrived.elapsed();
            add_time(&self.metrics.embed_queue_nanos, waited);
        }
        let EmbeddingRequest { sender, permit, .. } = open.request;
        set(&self.metrics.embed_open, self.requests.len() as u64);
        // Before the result, since the caller may send another request at once.
        drop(permit);
        sender.finish(result);
    }

    fn end_all(&mut self, error: &Error, counter: fn(&EngineMetrics) -> &AtomicU64) {
        let all: Vec<_> = self.requests.keys().copied().collect();
        for id in all {
            add(counter(&self.metrics), 1);
            self.end(id, Err(error.clone()));
        }
    }
}

/// Adds the vectors of a step to the poolers of its inputs.
fn pool_step<B: EmbeddingBackend>(
    backend: &B,
    batch: &mut EmbeddingBatch,
    rows: &[InputRow],
) -> Result<(), String> {
    let mut index = 0;
    for row in rows {
        let Some(ActiveInput { pooler, .. }) = batch.get(row.seq) else {
            continue;
        };
        let missing = || "the model returned no vector".to_owned();
        let count = row.count as usize;
        if pooler.is_rank() {
            pooler.add(backend.scores(row.seq).ok_or_else(missing)?);
        } else {
            for token in index..index + count {
                pooler.add(backend.vector(token).ok_or_else(missing)?);
            }
        }
        index += count;
    }
    Ok(())
}

/// Frees an input's sequence and returns its pooler.
fn release<B: EmbeddingBackend>(backend: Option<&mut B>, active: ActiveInput) -> Pooler {
    if let Some(backend) = backend {
        backend.clear(active.seq);
    }
    active.pooler
}
