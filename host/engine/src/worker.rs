//! The engine thread: plan, decode, sample, deliver, and again. Blocks on the command channel when
//! there is nothing to do.

use crate::Token;
use crate::backend::{Backend, TokenInput};
use crate::caller::Caller;
use crate::cpu_time::thread_cpu_time;
use crate::external_sampler::SamplerMailbox;
use crate::generation::Sender;
use crate::metrics::{EngineMetrics, add, add_time};
use crate::prompt_lookup::PromptLookup;
use crate::status::EngineStatus;
use crate::text_decoder::TextDecoder;
use crate::wake_batch::WakeBatch;
use crate::{Error, GenerateOptions};
use corral_sampling::{SamplerChain, Scratch};
use corral_scheduler::{
    AdapterId, EnqueueError, Expired, MemoryOp, Request, RequestId, RequestProgress, Retention,
    Row, Scheduler, SchedulerConfig, Step, StepResult, Time, WeakRetention,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

/// What the engine thread is asked.
pub enum Command {
    /// Generate after a prompt, or look at what may come next. The arguments are checked: the prompt is
    /// not empty, its tokens are in the vocabulary, and prompt and `max_tokens` together fit the context.
    Add(Box<NewRequest>),
    /// The same with several, which no step comes between.
    AddAll(Vec<NewRequest>),
    /// Something that was put aside is at hand.
    Wake,
    /// Tell what goes on.
    Status(Box<dyn FnOnce(EngineStatus) + Send>),
    /// Keep nothing that nobody means to go on with.
    ClearPrefixCache,
    /// Move all prefixes that nobody claims out of the cells.
    #[cfg(test)]
    MovePrefixes,
    /// Copy the state of a text, as far as there is one.
    ExportState(Box<ExportState>),
    /// Take in a state that was saved.
    ImportState(Box<ImportState>),
    /// Cancel everything and end.
    Shutdown,
}

/// A sequence on its way in.
pub struct NewRequest {
    pub prompt: Vec<Token>,
    pub caller: Caller,
    /// The one that was named.
    pub adapter: AdapterId,
    /// Whether somebody means to go on with the sequence.
    pub retention: WeakRetention,
    /// Of what it goes on with.
    pub continued: Option<Retention>,
    pub arrived: Instant,
    /// Held until the sequence has ended: bounds how many there are.
    pub permit: crate::permits::RequestPermit,
    pub kind: RequestKind,
}

/// What the worker reads of a model.
pub trait Vocabulary: Send + Sync {
    /// The bytes of a token, empty for control tokens.
    fn piece(&self, token: Token) -> &[u8];
    /// Whether a token ends a generation.
    fn ends_generation(&self, token: Token) -> bool;
}

struct Sequence {
    prompt: u32,
    generated: u32,
    options: GenerateOptions,
    chain: SamplerChain,
    /// The grammar that its text has to follow, from when it is admitted: so there are no more of them
    /// than ids.
    follows: Option<Follows>,
    /// Who chooses its tokens, if not the chain.
    asking: Option<Asking>,
    text: TextDecoder,
    delivery: Sender,
    submitted: Instant,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    /// Tokens that were computed for it, but for drafts that were wrong.
    computed: u64,
    /// What it has said before, if its next tokens are to be guessed from that.
    lookup: Option<PromptLookup>,
    place: crate::permits::RequestPermit,
}

/// Where a sequence's time went; what it did not live to see took none.
struct Times {
    queue: Duration,
    prefill: Duration,
    decode: Duration,
}

impl Sequence {
    /// Notes the time of the first token. Returns the time from the arrival, once.
    fn time_to_first_token(&mut self, now: Instant) -> Option<f64> {
        if self.first_token.is_some() {
            return None;
        }
        self.first_token = Some(now);
        Some((now - self.submitted).as_secs_f64())
    }

    fn times(&self, now: Instant) -> Times {
        let admitted = self.admitted.unwrap_or(now);
        let first = self.first_token.unwrap_or(now);
        Times {
            queue: admitted - self.submitted,
            prefill: first - admitted,
            decode: now - first,
        }
    }
}

/// How often it is looked what goes on once every handle is gone.
const FORSAKEN: Duration = Duration::from_millis(1);

/// The engine thread's state.
pub struct Worker<B> {
    backend: B,
    scheduler: Scheduler,
    limits: SchedulerConfig,
    /// How many logits there are of a row where there are not all.
    top_k: Option<u32>,
    sequences: HashMap<RequestId, Sequence>,
    looks: HashMap<RequestId, Looking>,
    next_key: u64,
    /// The scheduler's time counts from here.
    started: Instant,
    vocabulary: Arc<dyn Vocabulary>,
    commands: Receiver<Command>,
    counters: Arc<EngineMetrics>,
    aside: Swap,
    desk: Arc<SamplerMailbox>,
    pastime: Pastime,
    inputs: Vec<TokenInput>,
    scratch: Scratch,
    text: String,
    draft: Vec<Token>,
    history: Vec<Token>,
    bell: WakeBatch,
}

impl<B: Backend> Worker<B> {
    pub fn new(
        backend: B,
        limits: SchedulerConfig,
        vocabulary: Arc<dyn Vocabulary>,
        commands: Receiver<Command>,
        counters: Arc<EngineMetrics>,
        aside: Swap,
        desk: Arc<SamplerMailbox>,
    ) -> Self {
        Self {
            top_k: backend.top_k().filter(|_| limits.top_k_seq_ids > 0),
            backend,
            scheduler: Scheduler::new(limits),
            limits,
            sequences: HashMap::new(),
            looks: HashMap::new(),
            next_key: 0,
            started: Instant::now(),
            vocabulary,
            commands,
            counters,
            aside,
            desk,
            pastime: Pastime::default(),
            inputs: Vec::with_capacity(limits.max_step_tokens as usize),
            scratch: Scratch::default(),
            text: String::new(),
            draft: Vec::new(),
            history: Vec::new(),
            bell: WakeBatch::default(),
        }
    }

    /// Runs until it is told to end, or every handle is gone and all sequences have ended.
    pub fn run(mut self) {
        let mut works = false;
        while self.listen(works) {
            self.drop_abandoned();
            self.bring_back();
            self.take_choices();
            let now = Instant::now();
            let step = self.scheduler.plan(self.time(now));
            works = self.step(&step, now);
            self.report(&step);
        }
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Add(one) => one.kind.refuse(Error::Cancelled),
                Command::AddAll(all) => {
                    all.into_iter()
                        .for_each(|one| one.kind.refuse(Error::Cancelled));
                }
                _ => {}
            }
        }
        let keys = self.sequences.keys().chain(self.looks.keys());
        let left: Vec<_> = keys.copied().collect();
        for key in left {
            self.scheduler.cancel(key);
            self.drop_sequence(key, |counters| &counters.cancelled, Error::Cancelled);
        }
        self.see_to_memory();
        self.report(&Step::default());
        self.check_empty();
    }

    fn time(&self, at: Instant) -> Time {
        at.saturating_duration_since(self.started)
    }

    /// Takes in what was sent. Waits, unless there was work to do at the last look: until something
    /// is sent or a sequence's time is over. False at the end.
    fn listen(&mut self, works: bool) -> bool {
        self.bell.flush();
        if !works {
            if self.scheduler.is_idle() {
                self.check_empty();
            }
            let timer = self.scheduler.next_timer();
            let received = match timer {
                None => self
                    .commands
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
                Some(time) => {
                    let left = time.saturating_sub(self.time(Instant::now()));
                    self.commands.recv_timeout(left)
                }
            };
            add(&self.counters.wake_ups, 1);
            match received {
                Ok(command) => {
                    if !self.take(command) {
                        return false;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) if self.scheduler.is_idle() => return false,
                // Nobody can wake this thread any more; those that still read wait for what is chosen.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(FORSAKEN),
            }
        }
        loop {
            match self.commands.try_recv() {
                Ok(command) => {
                    if !self.take(command) {
                        return false;
                    }
                }
                Err(TryRecvError::Empty) => return true,
                // Those who still read get their answers.
                Err(TryRecvError::Disconnected) => return !self.scheduler.is_idle(),
            }
        }
    }

    /// False if the thread shall end.
    fn take(&mut self, command: Command) -> bool {
        match command {
            Command::Shutdown => return false,
            Command::Add(submission) => self.enqueue(*submission),
            Command::AddAll(all) => all.into_iter().for_each(|one| self.enqueue(one)),
            Command::Wake => {}
            Command::Status(tell) => tell(self.view()),
            Command::ClearPrefixCache => {
                self.scheduler.clear_prefix_cache();
                self.see_to_memory();
                self.report(&Step::default());
            }
            #[cfg(test)]
            Command::MovePrefixes => {
                self.scheduler.offload_all_prefixes();
                self.see_to_memory();
                self.report(&Step::default());
            }
            Command::ExportState(order) => self.save(*order),
            Command::ImportState(adoption) => self.adopt(*adoption),
        }
        true
    }

    fn enqueue(&mut self, submission: NewRequest) {
        let NewRequest {
            prompt,
            caller,
            adapter,
            retention: claim,
            continued: goes_on,
            arrived: submitted,
            permit: place,
            kind: wants,
        } = submission;
        let key = RequestId(self.next_key);
        self.next_key += 1;
        let length = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        let asking = wants.asking(&prompt);
        let arrived = self.time(submitted);
        let request = Request {
            id: key,
            tenant: caller.tenant,
            scope: caller.scope().with(adapter),
            priority: caller.priority,
            tokens: prompt,
            max_tokens: wants.max_tokens(),
            arrived_at: arrived,
            queue_until: caller.queue_time.map(|time| arrived.saturating_add(time)),
            deadline: caller.deadline.map(|deadline| self.time(deadline)),
            quota: caller.cell_share.map(|share| share.of(self.limits.cells)),
            retention: claim,
            continues: goes_on,
            logits: wants.rows(self.top_k),
            progress: RequestProgress::default(),
        };
        let now = self.time(Instant::now());
        if let Err(refused) = self.scheduler.enqueue(now, request) {
            let counter = match refused {
                EnqueueError::DeadlinePassed => &self.counters.expired,
                _ => &self.counters.refused,
            };
            add(counter, 1);
            // Before the caller knows: it may come again at once.
            drop(place);
            wants.refuse(refusal(refused, self.limits));
            return;
        }
        let (options, delivery) = match wants {
            RequestKind::Generate {
                options,
                sender: delivery,
            } => (options, delivery),
            RequestKind::NextToken {
                request: look,
                sender: reply,
            } => {
                let looking = Looking {
                    look,
                    reply,
                    submitted,
                    admitted: None,
                    computed: 0,
                    place,
                };
                self.looks.insert(key, looking);
                return;
            }
        };
        let speculate = match asking {
            None => self.limits.max_drafts.min(options.max_draft_tokens.into()),
            Some(_) => 0,
        };
        let seed = options.seed.unwrap_or_else(rand::random);
        let sequence = Sequence {
            prompt: length,
            generated: 0,
            chain: SamplerChain::new(options.samplers.clone(), seed)
                .with_prompt_length(length as usize),
            follows: None,
            asking,
            text: TextDecoder::new(options.stop.clone()),
            options,
            delivery,
            submitted,
            admitted: None,
            first_token: None,
            last_token: None,
            computed: 0,
            lookup: (speculate > 0).then(PromptLookup::default),
            place,
        };
        self.sequences.insert(key, sequence);
    }

    /// Ends the sequences that nobody reads any more, waiting ones too.
    fn drop_abandoned(&mut self) {
        let abandoned = |(key, sequence): (&RequestId, &Sequence)| {
            sequence.delivery.is_abandoned().then_some(*key)
        };
        let sequences = self.sequences.iter().filter_map(abandoned);
        let abandoned: Vec<_> = sequences.chain(self.abandoned_looks()).collect();
        for key in abandoned {
            self.scheduler.cancel(key);
            self.drop_sequence(key, |counters| &counters.cancelled, Error::Cancelled);
        }
    }

    /// Ends a sequence before its time, and counts it.
    fn drop_sequence(
        &mut self,
        key: RequestId,
        counter: fn(&EngineMetrics) -> &AtomicU64,
        error: Error,
    ) {
        let Some(error) = self.drop_look(key, counter, error) else {
            return;
        };
        let Some(sequence) = self.sequences.remove(&key) else {
            return;
        };
        add(counter(&self.counters), 1);
        add(&self.counters.discarded_tokens, sequence.computed);
        self.count_times(&sequence.times(Instant::now()));
        let Sequence {
            delivery, place, ..
        } = sequence;
        // Before the caller knows: it may come again at once.
        drop(place);
        self.bell.add(delivery.finish("", Err(error)));
    }

    /// Adds a sequence's times to their sums.
    fn count_times(&self, times: &Times) {
        add_time(&self.counters.queue_nanos, times.queue);
        add_time(&self.counters.prefill_nanos, times.prefill);
        add_time(&self.counters.decode_nanos, times.decode);
    }

    /// Does what was planned. False if there was nothing to compute.
    fn step(&mut self, step: &Step, now: Instant) -> bool {
        for &(key, expired) in &step.expired {
            self.expire(key, expired);
        }
        let wanted = self.aside.wanted();
        let moves =
            |memory: &MemoryOp| matches!(memory, MemoryOp::SwapOut { .. } | MemoryOp::Compact(_));
        if step.memory_ops.iter().any(moves) {
            // What ran ahead counts as computed, and not as moved.
            self.backend.wait();
        }
        let moving = Instant::now();
        self.do_memory(&step.memory_ops);
        let moving = moving.elapsed();
        for key in &step.admitted {
            if let Some(look) = self.looks.get_mut(key) {
                look.admitted.get_or_insert(now);
            }
            if let Some(sequence) = self.sequences.get_mut(key) {
                sequence.admitted.get_or_insert(now);
                if let Some(asking) = &mut sequence.asking {
                    asking.begin();
                }
                if let Some(constraint) = &sequence.options.constraint {
                    let begin = || Follows::new(constraint.start());
                    sequence.follows.get_or_insert_with(begin);
                }
            }
        }
        if step.rows.is_empty() {
            // What could not be put aside may have left something to forget, and nobody may come for
            // long.
            self.see_to_memory();
            let relocated = step
                .memory_ops
                .iter()
                .any(|m| matches!(m, MemoryOp::Compact(_)));
            return relocated || self.aside.wanted() > wanted;
        }
        // Whoever was told something before this step does not wait for it.
        self.bell.flush();
        self.gather(&step.rows);
        let (before, spent) = (Instant::now(), thread_cpu_time());
        let adapted = self.backend.set_adapter(step.adapter);
        let decoded = adapted.and_then(|()| self.backend.decode(&self.inputs));
        if decoded.is_ok() {
            self.backend.wait();
        }
        let after = Instant::now();
        add_time(&self.counters.compute_nanos, after - before);
        let spent = thread_cpu_time().saturating_sub(spent);
        add_time(&self.counters.compute_cpu_nanos, spent);
        let owed = self.pastime.settle();
        match decoded {
            Ok(()) => {
                self.count(step);
                let ahead = self.begin_ahead();
                let before = Instant::now();
                let sampled = self.sample(&step.rows, after);
                let sampling = before.elapsed();
                if step.rows.iter().any(|row| row.output) {
                    self.pastime.sampled(sampling);
                }
                add_time(&self.counters.sampling_nanos, sampling);
                // What everyone waits for is the whole round, not the computation alone; what went ahead counts with
                // what is next.
                let begun = ahead.as_ref().map_or(Duration::ZERO, |ahead| ahead.took);
                let round = now.elapsed().saturating_sub(begun);
                self.counters.step_duration.observe(round.as_secs_f64());
                // What grammars took, and what was moved, tells nothing of what rows cost.
                let others = sampled.grammars + moving;
                let took = (round + owed).saturating_sub(others);
                self.scheduler.applied(StepResult::Decoded {
                    sampled: &sampled.tokens,
                    finished: &sampled.ended,
                    sampled_externally: &sampled.asked,
                    needs_all_logits: &sampled.unsettled,
                    took,
                });
                if let Some(ahead) = ahead {
                    self.finish_ahead(ahead);
                }
                for &key in &sampled.broken {
                    self.scheduler.fail_request(key);
                }
                self.propose(&sampled);
            }
            Err(error) => {
                tracing::warn!(%error, tokens = self.inputs.len(), "a step failed");
                add(&self.counters.failed_steps, 1);
                let now = self.time(after);
                if let Some(key) = self.scheduler.applied(StepResult::Failed { now }) {
                    self.fail(key, Error::Failed(error.to_string()));
                }
            }
        }
        true
    }

    fn expire(&mut self, key: RequestId, expired: Expired) {
        let looks = self.looks.get(&key).map(|look| look.submitted);
        let submitted = self.sequences.get(&key).map(|s| s.submitted).or(looks);
        let waited = submitted.map(|submitted| submitted.elapsed());
        let error = match expired {
            Expired::Deadline => Error::DeadlineExceeded,
            Expired::Queue { retry_after } => Error::QueueTimeout {
                reason: format!(
                    "it was not its turn within {:.1} s",
                    waited.unwrap_or_default().as_secs_f64()
                ),
                retry_after,
            },
        };
        self.drop_sequence(key, |counters| &counters.expired, error);
    }

    fn gather(&mut self, rows: &[Row]) {
        self.inputs.clear();
        for row in rows {
            let tokens = self.scheduler.tokens(row.request);
            let new = tokens.get(row.from as usize..row.certain() as usize);
            debug_assert!(new.is_some(), "a row of a sequence that is gone");
            let positions = row.from..row.to;
            let certain = new.unwrap_or_default().iter();
            let tokens = certain.chain(self.scheduler.draft(row));
            for (&token, position) in tokens.zip(positions) {
                self.inputs.push(TokenInput {
                    token,
                    position,
                    seq: row.seq,
                    output: row.is_output(position),
                });
            }
        }
    }

    fn fail(&mut self, key: RequestId, error: Error) {
        self.drop_sequence(key, |counters| &counters.failed, error);
    }
}

fn refusal(refused: EnqueueError, limits: SchedulerConfig) -> Error {
    match refused {
        EnqueueError::TooLarge { needed, limit } => Error::ContextFull { needed, limit },
        EnqueueError::QueueFull { retry_after } => Error::Overloaded {
            reason: format!("{} sequences wait already", limits.max_queue),
            retry_after,
        },
        EnqueueError::TenantQueueFull { retry_after } => Error::Overloaded {
            reason: format!(
                "{} sequences of this deployment wait already",
                limits.max_tenant_queue
            ),
            retry_after,
        },
        EnqueueError::DeadlinePassed => Error::DeadlineExceeded,
    }
}

mod ahead;
mod aside;
mod choose;
mod follows;
mod look;
mod report;
mod sample;
mod wants;

use ahead::Pastime;
use choose::Asking;
use follows::Follows;
use look::Looking;

pub use aside::{ExportState, ExportedState, ImportState, Swap};
pub use wants::RequestKind;

#[cfg(test)]
mod tests;
