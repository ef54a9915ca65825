//! A worker over the simulator, which predicts `token + 1` and records the calls that it gets.

pub use crate::block_on::block_on;

use crate::backend::{Backend, DecodeError, SaveError, TokenInput};
use crate::draft_model::{DraftModel, DraftSizes};
use crate::engine_waker::EngineWaker;
use crate::external_sampler::SamplerMailbox;
use crate::generation::{Generation, Outcome, mailbox};
use crate::metrics::{EngineMetrics, get};
use crate::model_config::ModelConfig;
use crate::next_token::{Distribution, DistributionPart, NextTokenRequest};
use crate::open_request_limits::RequestPermit;
use crate::reply::{self, Reply};
use crate::swap_store::{SwapBudget, SwapStore};
use crate::worker::{Command, NewRequest, PrefixFiles, RequestWork, Swap, Vocabulary, Worker};
use crate::{Caller, Chunk, Error, GenerateOptions, Token};
use corral_sampling::Logits;
use corral_scheduler::{
    AdapterId, Overlap, PrefillPolicy, Retention, SchedulerConfig, SeqId, WeakRetention,
};
use corral_simulator::{Fault, Machine, SimulatedBackend, Size};
use std::collections::BTreeMap;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const VOCABULARY: u32 = 1000;
/// Ends a generation.
pub const END: Token = 999;
/// Bytes for offloaded prefixes. A state takes four bytes per token and eight more.
const PREFIX_BYTES: u64 = 600;

/// A call to the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// The number of inputs, and the indices of those with outputs.
    Decode(usize, Vec<usize>),
    /// The number of inputs.
    DecodeOverlapped(usize),
    /// The index of the input.
    Output(usize),
}

/// A simulator whose steps take real time.
pub struct SlowBackend {
    simulator: SimulatedBackend,
    /// After these tokens it predicts 0.
    is_wrong_after: fn(Token) -> bool,
    /// The logits that predict 0.
    wrong_logits: Vec<f32>,
    /// The tokens of the last step.
    tokens: Vec<Token>,
    step_time: Duration,
    calls: Arc<Mutex<Vec<Call>>>,
    threads: u32,
    threads_used: u32,
    has_fixed_threads: bool,
    queue_delay: Duration,
}

fn simulator_inputs(step: &[TokenInput]) -> Vec<corral_simulator::Input> {
    let input = |input: &TokenInput| corral_simulator::Input {
        token: input.token,
        position: input.position,
        seq: input.seq,
        output: input.output,
    };
    step.iter().map(input).collect()
}

fn decode_error(error: corral_simulator::DecodeError) -> DecodeError {
    match error {
        corral_simulator::DecodeError::NoRoom => DecodeError::NoRoom,
        corral_simulator::DecodeError::Failed(code) => DecodeError::Failed(code),
    }
}

fn save_error(error: corral_simulator::SaveError) -> SaveError {
    match error {
        corral_simulator::SaveError::TooLarge { bytes, limit } => {
            SaveError::TooLarge { bytes, limit }
        }
        corral_simulator::SaveError::NoMemory { bytes } => SaveError::NoMemory { bytes },
    }
}

impl SlowBackend {
    /// A backend whose steps take no time.
    pub fn new(simulator: SimulatedBackend) -> Self {
        let mut wrong_logits = vec![0.0; VOCABULARY as usize];
        wrong_logits[0] = 10.0;
        Self {
            simulator,
            is_wrong_after: |_| false,
            wrong_logits,
            tokens: Vec::new(),
            step_time: Duration::ZERO,
            calls: Arc::default(),
            threads: 1,
            threads_used: 1,
            has_fixed_threads: false,
            queue_delay: Duration::ZERO,
        }
    }

    fn record(&self, call: Call) {
        self.calls.lock().unwrap().push(call);
    }
}

impl Backend for SlowBackend {
    fn set_adapter(&mut self, adapter: AdapterId) -> Result<(), DecodeError> {
        self.simulator.adapt(adapter).map_err(decode_error)
    }

    fn decode(&mut self, step: &[TokenInput]) -> Result<(), DecodeError> {
        let start = Instant::now();
        std::thread::sleep(self.step_time);
        if self.threads_used > 1 {
            // One thread waits while the others compute.
            self.queue_delay += start.elapsed();
        }
        let outputs = step.iter().enumerate().filter(|(_, input)| input.output);
        let outputs = outputs.map(|(index, _)| index).collect();
        self.record(Call::Decode(step.len(), outputs));
        self.tokens.clear();
        self.tokens.extend(step.iter().map(|input| input.token));
        let decoded = self.simulator.decode(&simulator_inputs(step));
        decoded.map_err(decode_error)
    }

    fn threads(&self) -> u32 {
        self.threads
    }

    fn use_threads(&mut self, threads: u32) {
        self.threads_used = threads;
    }

    fn prepare_fewer_threads(&mut self) -> bool {
        !self.has_fixed_threads
    }

    fn queue_delays(&self) -> Option<Vec<Duration>> {
        let mut delays = vec![Duration::ZERO; self.threads_used as usize];
        *delays.first_mut()? = self.queue_delay;
        Some(delays)
    }

    fn can_overlap(&self) -> bool {
        true
    }

    fn decode_overlapped(&mut self, step: &[TokenInput]) -> Result<(), DecodeError> {
        self.record(Call::DecodeOverlapped(step.len()));
        let decoded = self.simulator.decode_ahead(&simulator_inputs(step));
        decoded.map_err(decode_error)
    }

    fn logits(&self, index: usize) -> Option<&[f32]> {
        let is_wrong = self
            .tokens
            .get(index)
            .copied()
            .is_some_and(self.is_wrong_after);
        let logits = self.simulator.logits(index)?;
        Some(if is_wrong { &self.wrong_logits } else { logits })
    }

    fn output(&self, index: usize) -> Option<Logits<'_>> {
        self.record(Call::Output(index));
        self.simulator.logits(index).map(Logits::Full)
    }

    fn clear(&mut self, seq: SeqId) {
        self.simulator.clear(seq);
    }

    fn share(&mut self, from: SeqId, to: SeqId, length: u32) {
        self.simulator.share(from, to, length);
    }

    fn truncate(&mut self, seq: SeqId, length: u32) {
        self.simulator.truncate(seq, length);
    }

    fn save(&mut self, seq: SeqId, limit: usize) -> Result<Vec<u8>, SaveError> {
        self.simulator.save(seq, limit).map_err(save_error)
    }

    fn load(&mut self, seq: SeqId, state: &[u8]) -> bool {
        self.simulator.load(seq, state)
    }

    fn length(&self, seq: SeqId) -> u32 {
        self.simulator.length(seq)
    }
}

struct Digits;

impl Vocabulary for Digits {
    fn piece(&self, token: Token) -> &[u8] {
        let digits = b"0123456789";
        let index = token as usize;
        digits.get(index..=index).unwrap_or_default()
    }

    fn ends_generation(&self, token: Token) -> bool {
        token == END
    }
}

/// Settings of a [`TestEngine`]: four sequence ids, 256 cells, and steps of at most 16 tokens.
#[derive(Default)]
pub struct TestConfig {
    pub step_time: Duration,
    pub overlap: bool,
    /// Compute threads, of which one always waits for a core; 0 for one thread.
    pub threads: u32,
    /// Whether fewer threads would change results.
    pub has_fixed_threads: bool,
    /// Faults by the number of the step, from 0.
    pub faults: BTreeMap<u64, Fault>,
    pub draft: Option<TestDraft>,
    /// The model whose prefixes are on disk.
    pub prefixes: Option<ModelConfig>,
}

/// A draft model whose steps take no time.
pub struct TestDraft {
    pub cells: u32,
    /// After these tokens its prediction is wrong.
    pub is_wrong_after: fn(Token) -> bool,
    /// Faults by the number of the step, from 0.
    pub faults: BTreeMap<u64, Fault>,
}

impl Default for TestDraft {
    fn default() -> Self {
        Self {
            cells: 256,
            is_wrong_after: |_| false,
            faults: BTreeMap::new(),
        }
    }
}

impl TestDraft {
    /// The draft model, with the sequence ids of a [`TestConfig`].
    pub fn model(self, context: u32) -> DraftModel<SlowBackend> {
        let size = Size {
            seq_ids: 4,
            cells: self.cells,
            step_tokens: 64,
            vocabulary: VOCABULARY,
        };
        let backend = SlowBackend {
            is_wrong_after: self.is_wrong_after,
            ..SlowBackend::new(SimulatedBackend::new(size, Machine::default(), self.faults))
        };
        let sizes = DraftSizes {
            seq_ids: size.seq_ids,
            cells: size.cells,
            step_tokens: size.step_tokens,
            context,
            vocabulary: VOCABULARY,
            end_of_generation: vec![END],
        };
        DraftModel::new(backend, sizes)
    }
}

impl TestConfig {
    pub fn start(self) -> TestEngine {
        self.start_with_store(|_| ram_store(1 << 20))
    }

    /// Starts with this store for swapped-out sequences.
    pub fn start_with_store(self, store: impl FnOnce(EngineWaker) -> SwapStore) -> TestEngine {
        let config = SchedulerConfig {
            seq_ids: 4,
            top_k_seq_ids: 0,
            cells: 256,
            max_step_tokens: 16,
            max_compaction_tokens: u32::MAX,
            max_queue: 64,
            max_tenant_queue: 64,
            prefill: PrefillPolicy::default(),
            prefix_cache: true,
            can_truncate: true,
            swap: true,
            offload_prefixes: true,
            max_drafts: 16,
            overlap: if self.overlap {
                Overlap::On
            } else {
                Overlap::Off
            },
        };
        let size = Size {
            seq_ids: config.seq_ids,
            cells: config.cells,
            step_tokens: config.max_step_tokens,
            vocabulary: VOCABULARY,
        };
        let simulator = SimulatedBackend::new(size, Machine::default(), self.faults);
        let calls = Arc::new(Mutex::new(Vec::new()));
        let backend = SlowBackend {
            step_time: self.step_time,
            calls: calls.clone(),
            threads: self.threads.max(1),
            threads_used: self.threads.max(1),
            has_fixed_threads: self.has_fixed_threads,
            ..SlowBackend::new(simulator)
        };
        let metrics = Arc::new(EngineMetrics::default());
        let (commands, receiver) = sync_channel(256);
        let commands = Arc::new(commands);
        let weak = Arc::downgrade(&commands);
        let waker = EngineWaker::new(move || {
            if let Some(commands) = weak.upgrade() {
                let _ = commands.try_send(Command::Wake);
            }
        });
        let swap = Swap::default()
            .with_sequences(store(waker.clone()), 1 << 20)
            .with_prefixes(ram_store(PREFIX_BYTES), PREFIX_BYTES)
            .with_files(
                self.prefixes
                    .and_then(|config| PrefixFiles::open(&config, &waker).unwrap()),
            );
        let mut worker = Worker::new(
            backend,
            config,
            Arc::new(Digits),
            receiver,
            metrics.clone(),
            swap,
            SamplerMailbox::new(waker.clone()),
        )
        .with_draft_model(self.draft.map(|draft| draft.model(256)));
        worker.enable_adaptive_threads();
        let thread = Some(std::thread::spawn(move || worker.run()));
        TestEngine {
            commands,
            metrics,
            waker,
            calls,
            thread,
        }
    }
}

fn ram_store(bytes: u64) -> SwapStore {
    let budget = SwapBudget {
        ram: bytes,
        disk: None,
    };
    SwapStore::new(budget, EngineWaker::default()).unwrap()
}

/// A worker on its own thread.
pub struct TestEngine {
    commands: Arc<SyncSender<Command>>,
    pub metrics: Arc<EngineMetrics>,
    waker: EngineWaker,
    pub calls: Arc<Mutex<Vec<Call>>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl TestEngine {
    pub fn start() -> Self {
        TestConfig::default().start()
    }

    /// Starts with steps that take this long.
    pub fn slow(step_time: Duration) -> Self {
        TestConfig {
            step_time,
            ..TestConfig::default()
        }
        .start()
    }

    pub fn send(&self, command: Command) {
        self.commands.send(command).unwrap();
    }

    pub fn generate(&self, prompt: Vec<Token>, options: GenerateOptions) -> Generation {
        self.generate_for(Caller::default(), prompt, options)
    }

    pub fn generate_for(
        &self,
        caller: Caller,
        prompt: Vec<Token>,
        options: GenerateOptions,
    ) -> Generation {
        let (request, generation) = self.generate_request(caller, prompt, options);
        self.send(Command::Add(Box::new(request)));
        generation
    }

    /// The same with an adapter.
    pub fn generate_adapted(
        &self,
        caller: Caller,
        adapter: AdapterId,
        prompt: Vec<Token>,
        options: GenerateOptions,
    ) -> Generation {
        let (request, generation) = self.generate_request(caller, prompt, options);
        let request = NewRequest { adapter, ..request };
        self.send(Command::Add(Box::new(request)));
        generation
    }

    /// Adds several requests without a step between them.
    pub fn generate_all<const N: usize>(
        &self,
        requests: [(Vec<Token>, GenerateOptions); N],
    ) -> [Generation; N] {
        let mut new = Vec::new();
        let generations = requests.map(|(prompt, options)| {
            let (request, generation) = self.generate_request(Caller::default(), prompt, options);
            new.push(request);
            generation
        });
        self.send(Command::AddAll(new));
        generations
    }

    fn generate_request(
        &self,
        caller: Caller,
        prompt: Vec<Token>,
        options: GenerateOptions,
    ) -> (NewRequest, Generation) {
        let (sender, generation) = mailbox(self.metrics.clone(), self.waker.clone());
        let request = NewRequest {
            caller,
            ..new_request(prompt, RequestWork::Generate { options, sender })
        };
        (request, generation)
    }

    /// Adds next-token requests without a step between them. Each continues its retention, which is replaced.
    pub fn next_tokens(
        &self,
        prompts: &[Vec<Token>],
        part: &DistributionPart,
        retentions: &mut [Retention],
    ) -> Vec<Reply<Distribution>> {
        let requests = prompts.iter().zip(retentions).map(|(prompt, retention)| {
            let continued = Some(std::mem::take(retention));
            let (sender, reply) = reply::reply();
            let request = NextTokenRequest::new(part.clone());
            let work = RequestWork::NextToken { request, sender };
            let request = NewRequest {
                retention: retention.downgrade(),
                continued,
                ..new_request(prompt.clone(), work)
            };
            (request, reply)
        });
        let (requests, replies): (Vec<_>, Vec<_>) = requests.unzip();
        self.send(Command::AddAll(requests));
        replies
    }

    /// Closes the command channel, waits until the worker has ended, and checks its counters.
    pub fn end(mut self) -> Arc<EngineMetrics> {
        let thread = self.thread.take().unwrap();
        let metrics = self.metrics.clone();
        drop(self);
        thread.join().expect("the worker must not panic");
        let expected = get(&metrics.prompt_tokens) - get(&metrics.cached_tokens)
            + get(&metrics.generated_tokens)
            - get(&metrics.finished)
            - get(&metrics.uncomputed_tokens)
            + get(&metrics.rejected_drafts)
            + get(&metrics.next_token_computed_tokens)
            + get(&metrics.recomputed_tokens)
            + get(&metrics.discarded_tokens);
        assert_eq!(get(&metrics.computed_tokens), expected);
        assert_eq!(get(&metrics.cells_leaked), 0);
        let verified = get(&metrics.model_drafts_accepted) + get(&metrics.model_drafts_rejected);
        assert!(verified <= get(&metrics.model_drafts_proposed));
        assert_eq!(get(&metrics.sequence_ids_used), 0);
        metrics
    }
}

fn new_request(prompt: Vec<Token>, work: RequestWork) -> NewRequest {
    NewRequest {
        prompt: prompt.into(),
        caller: Caller::default(),
        adapter: AdapterId::NONE,
        retention: WeakRetention::default(),
        continued: None,
        arrived: Instant::now(),
        permit: RequestPermit::unlimited(),
        work,
    }
}

pub fn limit(max_tokens: u32) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        ..GenerateOptions::default()
    }
}

/// Generates 60 tokens without regard to end tokens.
pub fn long() -> GenerateOptions {
    GenerateOptions {
        ignore_eos: true,
        ..limit(60)
    }
}

/// Reads a generation to its end.
pub fn read(mut generation: Generation) -> (Chunk, Result<Outcome, Error>) {
    let mut all = Chunk::default();
    while let Some(chunk) = block_on(generation.next()) {
        all.tokens.extend(chunk.tokens);
        all.text.push_str(&chunk.text);
    }
    (all, generation.outcome().unwrap())
}

/// Reads a generation that must succeed with exactly these tokens.
#[track_caller]
pub fn read_tokens(generation: Generation, expected: impl IntoIterator<Item = Token>) -> Outcome {
    let (chunk, outcome) = read(generation);
    assert_eq!(chunk.tokens, expected.into_iter().collect::<Vec<_>>());
    outcome.expect("the generation succeeds")
}

/// Waits until a condition holds, for at most a minute.
#[track_caller]
pub fn wait_until(condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "the condition does not become true");
        std::thread::sleep(Duration::from_millis(1));
    }
}
