//! The embedding thread: take up inputs in turn, compute a step, hand out vectors, and again.
//!
//! It makes its context when the first request comes and frees it when none came for a while, so
//! nobody pays who does not embed. With nothing to do it blocks on the channel; it holds no lock
//! across a step. Who goes away, or whose time is over, is gone at the next step.

use super::backend::Embeds;
use super::delivery::{Sender, Vectors};
use super::packing::{Active, Packing, Row, SHORT, Sizes};
use super::places::Place;
use super::pooling::{Pool, Pooling};
use super::turns::{Key, Turns};
use crate::backend::TokenInput;
use crate::metrics::{Counters, add, add_time, get, set};
use crate::{Caller, Error, Token};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

/// What the thread is asked.
pub enum Command {
    /// Compute vectors. The inputs are checked: none is empty or too long, all tokens are in the
    /// vocabulary, and the model can pool so.
    Embed(Box<Request>),
    /// Cancel everything and end.
    Shutdown,
}

/// A request on its way in.
pub struct Request {
    pub inputs: Vec<Vec<Token>>,
    pub pooling: Pooling,
    pub normalize: bool,
    pub caller: Caller,
    pub sender: Sender,
    pub submitted: Instant,
    /// Held until the request has ended: bounds how many there are.
    pub place: Place,
}

/// A request that is not done.
struct Open {
    request: Request,
    tokens: u64,
    /// The first input that was not taken up.
    next: usize,
    vectors: Vec<Option<Vec<f32>>>,
    missing: usize,
    started: Option<Instant>,
}

impl Open {
    /// Length of the next input.
    fn next_length(&self) -> Option<u32> {
        let input = self.request.inputs.get(self.next)?;
        Some(u32::try_from(input.len()).unwrap_or(u32::MAX))
    }

    /// When it ends if nothing is taken up or done before.
    fn overdue(&self, now: Instant) -> Option<Error> {
        let Request {
            caller, submitted, ..
        } = &self.request;
        if caller.deadline.is_some_and(|deadline| deadline <= now) {
            return Some(Error::Deadline);
        }
        let waited = now.saturating_duration_since(*submitted);
        let late = caller.queue_time.is_some_and(|most| most <= waited);
        (late && self.started.is_none()).then(|| Error::Overdue {
            reason: format!("it was not its turn within {:.1} s", waited.as_secs_f64()),
            retry_after: waited.clamp(Duration::from_secs(1), Duration::from_secs(60)),
        })
    }
}

/// Makes a context.
pub type Make<B> = Box<dyn FnMut() -> Result<B, Error> + Send>;

/// The embedding thread's state.
pub struct Thread<B> {
    make: Make<B>,
    backend: Option<B>,
    sizes: Sizes,
    /// Numbers in a vector.
    width: usize,
    /// How long the context stays with nothing to do.
    idle: Duration,
    requests: BTreeMap<Key, Open>,
    next_key: u64,
    turns: Turns,
    packing: Packing,
    commands: Receiver<Command>,
    counters: Arc<Counters>,
    inputs: Vec<TokenInput>,
}

impl<B: Embeds> Thread<B> {
    pub fn new(
        make: Make<B>,
        sizes: Sizes,
        width: usize,
        idle: Duration,
        commands: Receiver<Command>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            make,
            backend: None,
            sizes,
            width,
            idle,
            requests: BTreeMap::new(),
            next_key: 0,
            turns: Turns::default(),
            packing: Packing::new(sizes),
            commands,
            counters,
            inputs: Vec::new(),
        }
    }

    /// Runs until it is told to end, or every handle is gone and all requests are done.
    pub fn run(mut self) {
        while self.listen() {
            self.drop_gone();
            if !self.requests.is_empty() && self.have_backend() {
                self.take_up();
                self.step();
            }
            set(&self.counters.embed_open, self.requests.len() as u64);
        }
        self.end_all(&Error::Cancelled, |counters| &counters.embed_cancelled);
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Embed(request) = command {
                add(&self.counters.embed_cancelled, 1);
                drop(request.place);
                request.sender.finish(Err(Error::Cancelled));
            }
        }
        self.free();
        set(&self.counters.embed_open, 0);
    }

    /// Takes in what was sent; waits when nothing is to do. False at the end.
    fn listen(&mut self) -> bool {
        while self.requests.is_empty() {
            let command = if self.backend.is_some() {
                match self.commands.recv_timeout(self.idle) {
                    Ok(command) => Some(command),
                    Err(RecvTimeoutError::Timeout) => {
                        add(&self.counters.embed_wake_ups, 1);
                        self.free();
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => None,
                }
            } else {
                self.commands.recv().ok()
            };
            add(&self.counters.embed_wake_ups, 1);
            if !command.is_some_and(|command| self.take(command)) {
                return false;
            }
        }
        loop {
            match self.commands.try_recv() {
                Ok(command) => {
                    if !self.take(command) {
                        return false;
                    }
                }
                // Those who still wait get their answers.
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return true,
            }
        }
    }

    /// False if the thread shall end.
    fn take(&mut self, command: Command) -> bool {
        let Command::Embed(request) = command else {
            return false;
        };
        let key = Key(self.next_key);
        self.next_key += 1;
        let many = request.inputs.len();
        self.turns
            .enter(key, request.caller.tenant, request.caller.priority);
        let open = Open {
            tokens: request.inputs.iter().map(|input| input.len() as u64).sum(),
            next: 0,
            vectors: vec![None; many],
            missing: many,
            started: None,
            request: *request,
        };
        self.requests.insert(key, open);
        true
    }

    /// Whether there is a context; makes one. Without one all requests fail.
    fn have_backend(&mut self) -> bool {
        if self.backend.is_none() {
            match (self.make)() {
                Ok(backend) => {
                    self.backend = Some(backend);
                    set(&self.counters.embed_contexts, 1);
                }
                Err(error) => self.end_all(&error, |counters| &counters.embed_failed),
            }
        }
        self.backend.is_some()
    }

    fn free(&mut self) {
        self.backend = None;
        set(&self.counters.embed_contexts, 0);
    }

    /// Ends the requests that nobody waits for and those whose time is over.
    fn drop_gone(&mut self) {
        let now = Instant::now();
        let mut gone = Vec::new();
        for (key, open) in &self.requests {
            if open.request.sender.is_abandoned() {
                gone.push((*key, Error::Cancelled, true));
            } else if let Some(error) = open.overdue(now) {
                gone.push((*key, error, false));
            }
        }
        for (key, error, cancelled) in gone {
            let counter = if cancelled {
                &self.counters.embed_cancelled
            } else {
                &self.counters.embed_expired
            };
            add(counter, 1);
            self.end(key, Err(error));
        }
    }

    /// Takes up inputs in turn. Who finds no room keeps the turn: nobody of its kind goes before it.
    fn take_up(&mut self) {
        let (mut short, mut long) = (true, true);
        let now = Instant::now();
        while short || long {
            let lane = |length: u32| self.sizes.whole || length <= SHORT;
            let open = |key: Key| {
                let length = self.requests.get(&key).and_then(Open::next_length);
                length.is_some_and(|length| {
                    (if lane(length) { short } else { long })
                        && !self.packing.holds_its_part(key, length)
                })
            };
            let Some(key) = self.turns.next(open) else {
                return;
            };
            let Some(open) = self.requests.get_mut(&key) else {
                return;
            };
            let Some(length) = open.next_length() else {
                return;
            };
            if !self.packing.has_room(length) {
                if lane(length) {
                    short = false;
                } else {
                    long = false;
                }
                continue;
            }
            if open.started.is_none() {
                open.started = Some(now);
                let waited = now.saturating_duration_since(open.request.submitted);
                add_time(&self.counters.embed_queue_nanos, waited);
            }
            let pool = Pool::new(open.request.pooling, self.width, length as usize);
            self.packing.take_up(key, open.next, length, pool);
            open.next += 1;
            self.turns.charge(key, u64::from(length));
        }
    }

    fn step(&mut self) {
        let rows = self.packing.step();
        self.inputs.clear();
        for row in &rows {
            let Some(open) = self.requests.get(&row.key) else {
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
        let busy = get(&self.counters.running) > 0;
        let started = Instant::now();
        let computed = backend.compute(&self.inputs, busy);
        add_time(&self.counters.embed_step_nanos, started.elapsed());
        add(&self.counters.embed_steps, 1);
        match computed {
            Ok(()) => {
                add(&self.counters.embed_computed, self.inputs.len() as u64);
                match collect(backend, &mut self.packing, &rows) {
                    Ok(()) => self.hand_out(&rows),
                    Err(error) => self.failed(&rows, &error),
                }
            }
            Err(error) => self.failed(&rows, &error.to_string()),
        }
    }

    /// Gives the answers of the inputs that are done to their requests.
    fn hand_out(&mut self, rows: &[Row]) {
        for active in self.packing.computed(rows) {
            let (key, input) = (active.key, active.input);
            let Some(open) = self.requests.get_mut(&key) else {
                continue;
            };
            let normalize = open.request.normalize;
            let vector = finished(self.backend.as_mut(), active).finish(normalize);
            let Some(vector) = vector else {
                let what = format!(
                    "the model's numbers for input {input} are not finite; \
                     its weights may be damaged or overflow in this format"
                );
                add(&self.counters.embed_failed, 1);
                self.end(key, Err(Error::Failed(what)));
                continue;
            };
            if let Some(slot) = open.vectors.get_mut(input) {
                *slot = Some(vector);
            }
            open.missing -= 1;
            if open.missing == 0 {
                self.finish(key);
            }
        }
    }

    /// Gives the whole answer to a request.
    fn finish(&mut self, key: Key) {
        let Some(open) = self.requests.get_mut(&key) else {
            return;
        };
        let now = Instant::now();
        let started = open.started.unwrap_or(now);
        let pooling = open.request.pooling;
        let answer = Vectors {
            pooling,
            width: self.width,
            inputs: open.vectors.drain(..).flatten().collect(),
            tokens: open.tokens,
            queue_time: started.saturating_duration_since(open.request.submitted),
            compute_time: now.saturating_duration_since(started),
        };
        add(&self.counters.embed_finished, 1);
        add(&self.counters.embed_inputs, answer.inputs.len() as u64);
        add(&self.counters.embed_tokens, answer.tokens);
        self.end(key, Ok(answer));
    }

    fn failed(&mut self, rows: &[Row], cause: &str) {
        add(&self.counters.embed_failed_steps, 1);
        if let Some(backend) = &mut self.backend {
            for row in rows {
                backend.clear(row.seq);
            }
        }
        for culprit in self.packing.failed(rows) {
            let what = format!("input {} can't be computed: {cause}", culprit.input);
            add(&self.counters.embed_failed, 1);
            self.end(culprit.key, Err(Error::Failed(what)));
        }
    }

    /// Ends a request and frees what it held.
    fn end(&mut self, key: Key, answer: Result<Vectors, Error>) {
        self.turns.leave(key);
        for active in self.packing.remove(key) {
            finished(self.backend.as_mut(), active);
        }
        let Some(open) = self.requests.remove(&key) else {
            return;
        };
        if open.started.is_none() {
            let waited = open.request.submitted.elapsed();
            add_time(&self.counters.embed_queue_nanos, waited);
        }
        let Request { sender, place, .. } = open.request;
        set(&self.counters.embed_open, self.requests.len() as u64);
        // Before the caller knows: it may come again at once.
        drop(place);
        sender.finish(answer);
    }

    fn end_all(&mut self, error: &Error, counter: fn(&Counters) -> &AtomicU64) {
        let all: Vec<_> = self.requests.keys().copied().collect();
        for key in all {
            add(counter(&self.counters), 1);
            self.end(key, Err(error.clone()));
        }
    }
}

/// Takes the step's vectors into the pools of its inputs.
fn collect<B: Embeds>(backend: &B, packing: &mut Packing, rows: &[Row]) -> Result<(), String> {
    let mut index = 0;
    for row in rows {
        let Some(Active { pool, .. }) = packing.get(row.seq) else {
            continue;
        };
        let missing = || "the model gave no vector".to_owned();
        let count = row.count as usize;
        if pool.is_rank() {
            pool.add(backend.scores(row.seq).ok_or_else(missing)?);
        } else {
            for token in index..index + count {
                pool.add(backend.vector(token).ok_or_else(missing)?);
            }
        }
        index += count;
    }
    Ok(())
}

/// Frees an input's sequence; what was learnt of it remains.
fn finished<B: Embeds>(backend: Option<&mut B>, active: Active) -> Pool {
    if let Some(backend) = backend {
        backend.clear(active.seq);
    }
    active.pool
}
