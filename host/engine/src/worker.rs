//! The engine thread: receives commands, plans a step, decodes it, samples and delivers tokens, and repeats. It blocks
//! on the command channel when there is nothing to do.
//!
//! The [`Scheduler`] decides what a step contains; the worker executes it and reports the result. Each request has one
//! entry in `requests`, from [`Worker::enqueue`] to its end.

mod cache_change_feed;
mod constrained;
mod device_top_k;
mod draft_model;
mod external_sampling;
mod next_token;
mod overlap;
mod prefix_files;
mod prompt;
mod request_work;
mod requests;
mod sampling;
mod sampling_budget;
mod step;
mod step_metrics;
mod step_output;
mod swap;

pub use prefix_files::PrefixFiles;
pub use prompt::Prompt;
pub use request_work::RequestWork;
pub use swap::{ExportState, ExportedState, ImportState, MAX_COMPACTION_BYTES, Swap};

use crate::backend::{Backend, TokenInput};
use crate::cache_change_feed::CacheFeedWriter;
use crate::caller::Caller;
use crate::compute_threads::ComputeThreads;
use crate::draft_model::DraftModel;
use crate::external_sampler::SamplerMailbox;
use crate::generation::Sender;
use crate::generation_trace::GenerationTrace;
use crate::machine_memory::MemoryPressure;
use crate::media::Image;
use crate::metrics::{EngineMetrics, add, set};
use crate::next_token::{Distribution, NextTokenRequest};
use crate::open_request_limits::RequestPermit;
use crate::prompt_lookup::PromptLookup;
use crate::reader_wake_batch::WakeBatch;
use crate::reader_wake_queue::WakeQueue;
use crate::request_observer::{GenerationPhase, ObservedGeneration};
use crate::status::EngineStatus;
use crate::text_decoder::TextDecoder;
use crate::{Error, GenerateOptions, Token, reply};
use constrained::ConstrainedSampler;
use corral_sampling::{SamplerChain, Scratch};
use corral_scheduler::{
    AdapterId, DroppedPrefixes, EntryId, EntryStatus, RequestId, RequestProgress, Retention,
    Scheduler, SchedulerConfig, Step, Time, WeakRetention,
};
use external_sampling::ExternalSamplerState;
use overlap::OverlapEstimate;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

/// A command to the engine thread.
pub enum Command {
    /// Adds a request. The sender has checked its arguments: the prompt is not empty, its tokens are in the
    /// vocabulary, and prompt and `max_tokens` together fit the context.
    Add(Box<NewRequest>),
    /// Adds several requests, without a step between them.
    AddAll(Vec<NewRequest>),
    /// Wakes the thread: a swapped-out state or a sampled token arrived, or a reader went away.
    Wake,
    /// Calls the function with the engine's status.
    Status(Box<dyn FnOnce(EngineStatus) + Send>),
    /// Drops all prefix cache entries that are not retained.
    ClearPrefixCache,
    /// Drops some prefix cache entries.
    DropPrefixes(Box<DropPrefixes>),
    /// Sets how short memory is.
    SetMemoryPressure(MemoryPressure),
    /// Offloads all prefixes that are not retained.
    #[cfg(test)]
    OffloadPrefixes,
    /// Copies the state of a sequence.
    ExportState(Box<ExportState>),
    /// Adds a saved state.
    ImportState(Box<ImportState>),
    /// Cancels all requests and ends the thread.
    Shutdown,
}

/// Drops the prefix cache entries that `select` names, of all in the order of the prefix tree, unless they are retained or a
/// request waits for them.
pub struct DropPrefixes {
    pub select: SelectEntries,
    pub reply: Box<dyn FnOnce(DroppedPrefixes) + Send>,
}

type SelectEntries = Box<dyn FnOnce(&[EntryStatus]) -> Vec<EntryId> + Send>;

/// A request that the scheduler has not seen yet.
pub struct NewRequest {
    pub prompt: Prompt,
    pub caller: Caller,
    /// The adapter to compute with.
    pub adapter: AdapterId,
    /// Retains the sequence after the request, if alive.
    pub retention: WeakRetention,
    /// Retention of the sequence that the request continues.
    pub continued: Option<Retention>,
    pub arrived: Instant,
    /// Bounds the number of requests; held until the request ends.
    pub permit: RequestPermit,
    pub work: RequestWork,
}

/// What the worker needs of a model's vocabulary.
pub trait Vocabulary: Send + Sync {
    /// The bytes of a token, empty for control tokens.
    fn piece(&self, token: Token) -> &[u8];
    /// Whether a token ends a generation.
    fn ends_generation(&self, token: Token) -> bool;
}

/// A request from its arrival to its end.
struct ActiveRequest {
    arrived: Instant,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    /// Tokens computed, without rejected drafts.
    computed: u64,
    observer: Option<ObservedGeneration>,
    permit: RequestPermit,
    /// Keeps the embeddings of the prompt's images.
    _images: Vec<Arc<Image>>,
    work: ActiveWork,
}

enum ActiveWork {
    Generate(Box<GenerationState>),
    NextToken {
        request: NextTokenRequest,
        sender: reply::ReplySender<Distribution>,
    },
}

/// A request that generates.
struct GenerationState {
    prompt_tokens: u32,
    generated_tokens: u32,
    options: GenerateOptions,
    chain: SamplerChain,
    /// Set at admission if the options have a constraint, so that sequence ids bound the number of matchers.
    constrained: Option<ConstrainedSampler>,
    /// Samples in place of `chain`.
    external: Option<ExternalSamplerState>,
    text: TextDecoder,
    sender: Sender,
    /// Proposes drafts, if the request allows them.
    lookup: Option<PromptLookup>,
    /// Whether the draft model may draft for it.
    uses_draft_model: bool,
}

/// How long each phase of a request took; zero for a phase that it did not reach.
struct RequestTimes {
    queue: Duration,
    prefill: Duration,
    decode: Duration,
}

impl ActiveRequest {
    fn generation(&self) -> Option<&GenerationState> {
        match &self.work {
            ActiveWork::Generate(generation) => Some(generation),
            ActiveWork::NextToken { .. } => None,
        }
    }

    fn generation_mut(&mut self) -> Option<&mut GenerationState> {
        match &mut self.work {
            ActiveWork::Generate(generation) => Some(generation),
            ActiveWork::NextToken { .. } => None,
        }
    }

    /// Its record, if it is traced.
    fn trace(&self) -> Option<&GenerationTrace> {
        self.observer.as_ref()?.trace.as_deref()
    }

    /// Completes its record but for how it ends. Without `progress`, which ends with the scheduler's request, its
    /// counts stay.
    fn record_end(&self, now: Instant, progress: Option<RequestProgress>) {
        let (Some(trace), Some(generation)) = (self.trace(), self.generation()) else {
            return;
        };
        trace.update(|record| {
            record.arrived = self.arrived;
            record.admitted = self.admitted;
            record.first_token = self.first_token;
            record.ended = Some(now);
            record.prompt_tokens = generation.prompt_tokens;
            record.generated_tokens = generation.generated_tokens;
            if let Some(progress) = progress {
                record.cached_tokens = progress.cached.min(generation.prompt_tokens);
                record.recomputed_tokens = progress.recomputed;
                record.preemptions = progress.preempted;
            }
        });
    }

    /// Records `count` new tokens. `cached`: how many of the prompt's tokens came from the prefix cache.
    fn record_tokens(
        &mut self,
        now: Instant,
        count: usize,
        cached: impl FnOnce() -> u32,
        metrics: &EngineMetrics,
    ) {
        let mut observer = self.observer.as_mut();
        match self.last_token.replace(now) {
            None => {
                self.first_token = Some(now);
                let since = now - self.arrived;
                metrics.time_to_first_token.observe(since.as_secs_f64());
                if let Some(observer) = &mut observer {
                    observer.enter(GenerationPhase::Decode);
                    observer.first_token(since, cached());
                }
            }
            Some(last) => {
                let since = now - last;
                metrics.inter_token_latency.observe(since.as_secs_f64());
                if let Some(observer) = &observer {
                    observer.next_token(since);
                }
            }
        }
        if let Some(observer) = observer {
            observer.generated(u32::try_from(count).unwrap_or(u32::MAX));
        }
    }

    fn times(&self, now: Instant) -> RequestTimes {
        let admitted = self.admitted.unwrap_or(now);
        let first_token = self.first_token.unwrap_or(now);
        RequestTimes {
            queue: admitted - self.arrived,
            prefill: first_token - admitted,
            decode: now - first_token,
        }
    }
}

/// Poll interval once all senders of commands are gone: then nothing can wake the thread.
const DISCONNECTED_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The engine thread's state.
pub struct Worker<B> {
    backend: B,
    scheduler: Scheduler,
    config: SchedulerConfig,
    /// The k of device top-k, if some sequence ids use it.
    top_k: Option<u32>,
    requests: HashMap<RequestId, ActiveRequest>,
    next_id: u64,
    /// Zero of the scheduler's time.
    started: Instant,
    vocabulary: Arc<dyn Vocabulary>,
    commands: Receiver<Command>,
    metrics: Arc<EngineMetrics>,
    swap: Swap,
    sampler_mailbox: Arc<SamplerMailbox>,
    overlap: OverlapEstimate,
    compute_threads: ComputeThreads,
    draft_model: Option<DraftModel<B>>,
    cache_feed: Option<CacheFeedWriter>,
    inputs: Vec<TokenInput>,
    scratch: Scratch,
    text: String,
    drafts: Vec<Token>,
    history: Vec<Token>,
    wake_batch: WakeBatch,
    /// Requests whose rows were not sampled in their last step.
    deferred: Vec<RequestId>,
    /// Tokens generated since the start, whatever becomes of their requests.
    generated_tokens: u64,
}

impl<B: Backend> Worker<B> {
    pub fn new(
        backend: B,
        config: SchedulerConfig,
        vocabulary: Arc<dyn Vocabulary>,
        commands: Receiver<Command>,
        metrics: Arc<EngineMetrics>,
        swap: Swap,
        sampler_mailbox: Arc<SamplerMailbox>,
    ) -> Self {
        let compute_threads = ComputeThreads::new(backend.threads());
        set(&metrics.compute_threads, compute_threads.threads().into());
        Self {
            compute_threads,
            top_k: backend.top_k().filter(|_| config.top_k_seq_ids > 0),
            backend,
            scheduler: Scheduler::new(config),
            config,
            requests: HashMap::new(),
            next_id: 0,
            started: Instant::now(),
            vocabulary,
            commands,
            metrics,
            swap,
            sampler_mailbox,
            overlap: OverlapEstimate::default(),
            draft_model: None,
            cache_feed: None,
            inputs: Vec::with_capacity(config.max_step_tokens as usize),
            scratch: Scratch::default(),
            text: String::new(),
            drafts: Vec::new(),
            history: Vec::new(),
            wake_batch: WakeBatch::default(),
            deferred: Vec::new(),
            generated_tokens: 0,
        }
    }

    /// Wakes readers through this queue.
    #[must_use]
    pub fn with_wake_queue(mut self, queue: Arc<WakeQueue>) -> Self {
        self.wake_batch = WakeBatch::new(queue);
        self
    }

    /// Drafts with this model, if there is one.
    #[must_use]
    pub fn with_draft_model(mut self, draft_model: Option<DraftModel<B>>) -> Self {
        self.draft_model = draft_model;
        self
    }

    /// From now on, computes with fewer threads while they wait for cores.
    pub fn enable_adaptive_threads(&mut self) {
        self.compute_threads.enable_adaptation(&mut self.backend);
        if let Some(model) = &mut self.draft_model {
            model.backend_mut().prepare_fewer_threads();
        }
    }

    /// Runs until [`Command::Shutdown`], or until all senders of commands are gone and all requests have ended.
    pub fn run(mut self) {
        let mut has_work = false;
        while self.receive_commands(has_work) {
            self.cancel_abandoned();
            self.swap_in();
            self.take_external_samples();
            self.run_draft_model();
            let now = Instant::now();
            let step = self.scheduler.plan(self.time(now));
            has_work = self.run_step(&step, now);
            self.report(&step);
            self.report_cache_changes();
        }
        while let Ok(command) = self.commands.try_recv() {
            refuse(command);
        }
        let ids: Vec<_> = self.requests.keys().copied().collect();
        self.cancel(&ids, &Error::ShuttingDown);
        // Frees the sequences of the draft model.
        self.run_draft_model();
        self.run_memory_ops();
        self.save_prefixes();
        self.report(&Step::default());
        self.check_leaks();
    }

    fn time(&self, at: Instant) -> Time {
        at.saturating_duration_since(self.started)
    }

    /// Handles the received commands. Without work it first waits for a command or for the scheduler's timer. Returns
    /// false if the thread must end.
    fn receive_commands(&mut self, has_work: bool) -> bool {
        self.wake_batch.flush();
        if !has_work {
            if self.scheduler.is_idle() {
                self.check_leaks();
            }
            let received = match self.scheduler.next_timer() {
                None => self
                    .commands
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
                Some(time) => {
                    let wait = time.saturating_sub(self.time(Instant::now()));
                    self.commands.recv_timeout(wait)
                }
            };
            add(&self.metrics.wake_ups, 1);
            match received {
                Ok(command) => {
                    if !self.handle_command(command) {
                        return false;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) if self.scheduler.is_idle() => return false,
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(DISCONNECTED_POLL_INTERVAL);
                }
            }
        }
        loop {
            match self.commands.try_recv() {
                Ok(command) => {
                    if !self.handle_command(command) {
                        return false;
                    }
                }
                Err(TryRecvError::Empty) => return true,
                // Requests that still have a reader run to their end.
                Err(TryRecvError::Disconnected) => return !self.scheduler.is_idle(),
            }
        }
    }

    /// Returns false if the thread must end.
    fn handle_command(&mut self, command: Command) -> bool {
        match command {
            Command::Shutdown => return false,
            Command::Add(request) => self.enqueue(*request),
            Command::AddAll(requests) => {
                requests
                    .into_iter()
                    .for_each(|request| self.enqueue(request));
            }
            Command::Wake => {}
            Command::Status(receive) => receive(self.status()),
            Command::ClearPrefixCache => {
                self.scheduler.clear_prefix_cache();
                self.swap.clear_files();
                self.run_memory_ops();
                self.report(&Step::default());
            }
            Command::DropPrefixes(request) => {
                let dropped = self.scheduler.drop_entries(request.select);
                self.run_memory_ops();
                self.report(&Step::default());
                (request.reply)(dropped);
            }
            Command::SetMemoryPressure(pressure) => {
                self.set_memory_pressure(pressure);
                self.report(&Step::default());
            }
            #[cfg(test)]
            Command::OffloadPrefixes => {
                self.scheduler.offload_all_prefixes();
                self.run_memory_ops();
                self.report(&Step::default());
            }
            Command::ExportState(export) => self.export_state(*export),
            Command::ImportState(import) => self.import_state(*import),
        }
        true
    }
}

/// Ends the requests of a command that came too late.
fn refuse(command: Command) {
    match command {
        Command::Add(request) => request.work.refuse(Error::ShuttingDown),
        Command::AddAll(requests) => requests
            .into_iter()
            .for_each(|request| request.work.refuse(Error::ShuttingDown)),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
