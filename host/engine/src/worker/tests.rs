//! The engine thread over the simulator, which predicts `token + 1`, checks that each sequence is
//! sent whole, once and in order, and fails at a poisoned token.

use super::*;
use crate::backend::{DecodeError, SaveError};
use crate::engine_waker::EngineWaker;
use crate::generation::mailbox;
use crate::generation::{FinishReason, Outcome};
use crate::next_token::{Distribution, DistributionPart, NextTokenRequest};
use crate::reply::{self, Reply};
use crate::swap_store::{SwapBudget, SwapStore};
use crate::{Chunk, Generation, Tenant};
use corral_sampling::{Logits, TopLogits};
use corral_scheduler::PrefillPolicy;
use corral_scheduler::{Overlap, SeqId};
use corral_simulator::{Fault, Machine, Output, POISON, Simulator, Size};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::mpsc::sync_channel;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

mod ahead;
mod choices;
mod looks;
mod prefixes;
mod speculation;
mod states;
mod tops;
mod waiting;

const VOCABULARY: u32 = 1000;
/// Ends a generation.
const END: Token = 999;
/// Highest logits, where there are those alone.
const TOP: u32 = 8;
/// Bytes for prefixes: four for each token, and eight.
const PREFIXES: u64 = 600;

/// What a backend was asked, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Call {
    /// To compute so many inputs, of which these have outputs.
    Decode(usize, Vec<usize>),
    /// To compute so many ahead.
    Ahead(usize),
    /// For the output of this input.
    Output(usize),
}

/// A simulator whose steps take real time, and which remembers what it was asked.
struct Slow(Simulator, Duration, Arc<Mutex<Vec<Call>>>);

/// The inputs of a step as the simulator takes them.
fn simulated(step: &[TokenInput]) -> Vec<corral_simulator::Input> {
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

impl Slow {
    fn asked(&self, call: Call) {
        self.2.lock().unwrap().push(call);
    }
}

impl Backend for Slow {
    fn set_adapter(&mut self, adapter: AdapterId) -> Result<(), DecodeError> {
        self.0.adapt(adapter).map_err(decode_error)
    }

    fn decode(&mut self, step: &[TokenInput]) -> Result<(), DecodeError> {
        std::thread::sleep(self.1);
        let outputs = step.iter().enumerate().filter(|(_, input)| input.output);
        let outputs = outputs.map(|(index, _)| index).collect();
        self.asked(Call::Decode(step.len(), outputs));
        self.0.decode(&simulated(step)).map_err(decode_error)
    }

    fn can_overlap(&self) -> bool {
        true
    }

    fn decode_overlapped(&mut self, step: &[TokenInput]) -> Result<(), DecodeError> {
        self.asked(Call::Ahead(step.len()));
        self.0.decode_ahead(&simulated(step)).map_err(decode_error)
    }

    fn logits(&self, index: usize) -> Option<&[f32]> {
        self.0.logits(index)
    }

    fn output(&self, index: usize) -> Option<Logits<'_>> {
        self.asked(Call::Output(index));
        Some(match self.0.output(index)? {
            Output::All(logits) => Logits::Full(logits),
            Output::Top { tokens, logits } => Logits::TopK(TopLogits {
                tokens,
                logits,
                vocabulary: VOCABULARY as usize,
            }),
        })
    }

    fn top_k(&self) -> Option<u32> {
        self.0.top_k()
    }

    fn clear(&mut self, seq: SeqId) {
        self.0.clear(seq);
    }

    fn share(&mut self, from: SeqId, to: SeqId, length: u32) {
        self.0.share(from, to, length);
    }

    fn truncate(&mut self, seq: SeqId, length: u32) {
        self.0.truncate(seq, length);
    }

    fn save(&mut self, seq: SeqId, limit: usize) -> Result<Vec<u8>, SaveError> {
        self.0.save(seq, limit).map_err(save_error)
    }

    fn load(&mut self, seq: SeqId, state: &[u8]) -> bool {
        self.0.load(seq, state)
    }

    fn length(&self, seq: SeqId) -> u32 {
        self.0.length(seq)
    }
}

struct Digits;

impl Vocabulary for Digits {
    fn piece(&self, token: Token) -> &[u8] {
        b"0123456789"
            .get(token as usize..=token as usize)
            .unwrap_or_default()
    }

    fn ends_generation(&self, token: Token) -> bool {
        token == END
    }
}

struct Bench {
    commands: Arc<std::sync::mpsc::SyncSender<Command>>,
    counters: Arc<EngineMetrics>,
    waker: EngineWaker,
    calls: Arc<Mutex<Vec<Call>>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Bench {
    fn start() -> Self {
        Self::slow(Duration::ZERO)
    }

    /// One whose steps take so long.
    fn slow(step: Duration) -> Self {
        let budgets = SwapBudget {
            ram: 1 << 20,
            disk: None,
        };
        let (commands, inbox) = sync_channel(256);
        let spill = SwapStore::new(budgets, EngineWaker::default()).unwrap();
        Self::with(step, commands, inbox, spill)
    }

    /// One with so many ids more, for which there are the highest logits alone.
    fn with_top(top_ids: u16) -> Self {
        let budgets = SwapBudget {
            ram: 1 << 20,
            disk: None,
        };
        let (commands, inbox) = sync_channel(256);
        let spill = SwapStore::new(budgets, EngineWaker::default()).unwrap();
        let faults = BTreeMap::new();
        Self::of(
            Duration::ZERO,
            commands,
            inbox,
            spill,
            (top_ids, Overlap::Off, faults),
        )
    }

    /// One that reads prompts ahead wherever it can, and whose steps fail so, by their numbers from 0.
    fn ahead(step: Duration, faults: BTreeMap<u64, Fault>) -> Self {
        let budgets = SwapBudget {
            ram: 1 << 20,
            disk: None,
        };
        let (commands, inbox) = sync_channel(256);
        let spill = SwapStore::new(budgets, EngineWaker::default()).unwrap();
        Self::of(step, commands, inbox, spill, (0, Overlap::On, faults))
    }

    fn with(
        step: Duration,
        commands: std::sync::mpsc::SyncSender<Command>,
        inbox: Receiver<Command>,
        spill: SwapStore,
    ) -> Self {
        let faults = BTreeMap::new();
        Self::of(step, commands, inbox, spill, (0, Overlap::Off, faults))
    }

    fn of(
        step: Duration,
        commands: std::sync::mpsc::SyncSender<Command>,
        inbox: Receiver<Command>,
        spill: SwapStore,
        (top_ids, overlap, faults): (u16, Overlap, BTreeMap<u64, Fault>),
    ) -> Self {
        let limits = SchedulerConfig {
            seq_ids: 4 + top_ids,
            top_k_seq_ids: top_ids,
            cells: 256,
            max_step_tokens: 16,
            max_queue: 64,
            max_tenant_queue: 64,
            prefill: PrefillPolicy::default(),
            prefix_cache: true,
            can_truncate: true,
            swap: true,
            offload_prefixes: true,
            max_drafts: 16,
            overlap,
        };
        let size = Size {
            seq_ids: limits.seq_ids,
            cells: limits.cells,
            step_tokens: limits.max_step_tokens,
            vocabulary: VOCABULARY,
        };
        let simulator = Simulator::new(size, Machine::default(), faults);
        let simulator = simulator.with_top(top_ids, TOP);
        let counters = Arc::new(EngineMetrics::default());
        let calls = Arc::new(Mutex::new(Vec::new()));
        let budgets = SwapBudget {
            ram: PREFIXES,
            disk: None,
        };
        let prefixes = SwapStore::new(budgets, EngineWaker::default()).unwrap();
        let aside = Swap::default().with_sequences(spill, 1 << 20);
        let aside = aside.with_prefixes(prefixes, PREFIXES);
        let commands = Arc::new(commands);
        let waiting = Arc::downgrade(&commands);
        let waker = EngineWaker::new(move || {
            if let Some(commands) = waiting.upgrade() {
                let _ = commands.try_send(Command::Wake);
            }
        });
        let worker = Worker::new(
            Slow(simulator, step, calls.clone()),
            limits,
            Arc::new(Digits),
            inbox,
            counters.clone(),
            aside,
            SamplerMailbox::new(waker.clone()),
        );
        let thread = Some(std::thread::spawn(move || worker.run()));
        Self {
            commands,
            counters,
            waker,
            calls,
            thread,
        }
    }

    fn submit(&self, prompt: Vec<Token>, options: GenerateOptions) -> Generation {
        self.submit_for(Caller::default(), prompt, options)
    }

    fn submit_for(
        &self,
        caller: Caller,
        prompt: Vec<Token>,
        options: GenerateOptions,
    ) -> Generation {
        let (submission, generation) = self.submission(caller, prompt, options);
        self.commands
            .send(Command::Add(Box::new(submission)))
            .unwrap();
        generation
    }

    fn submission(
        &self,
        caller: Caller,
        prompt: Vec<Token>,
        options: GenerateOptions,
    ) -> (NewRequest, Generation) {
        let (delivery, generation) = mailbox(self.counters.clone(), self.waker.clone());
        // Adapters are named by their numbers here.
        let number = options.adapter.as_deref().map(str::parse);
        let adapter = AdapterId(number.map_or(0, |number| number.expect("a number")));
        let submission = NewRequest {
            prompt,
            caller,
            adapter,
            retention: WeakRetention::default(),
            continued: None,
            arrived: Instant::now(),
            permit: crate::permits::RequestPermit::unlimited(),
            kind: RequestKind::Generate {
                options,
                sender: delivery,
            },
        };
        (submission, generation)
    }

    /// Closes the channel and waits until the thread has ended by itself.
    fn end(mut self) -> Arc<EngineMetrics> {
        let thread = self.thread.take().unwrap();
        let counters = self.counters.clone();
        drop(self);
        thread.join().expect("the engine thread must not panic");
        counters
    }
}

fn limit(max_tokens: u32) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        ..GenerateOptions::default()
    }
}

struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Reads a generation to its end without a runtime.
fn read(mut generation: Generation) -> (Chunk, Result<Outcome, Error>) {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut all = Chunk::default();
    loop {
        match generation.poll_next(&mut Context::from_waker(&waker)) {
            Poll::Ready(Some(chunk)) => {
                all.tokens.extend(chunk.tokens);
                all.text.push_str(&chunk.text);
            }
            Poll::Ready(None) => return (all, generation.outcome().unwrap()),
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(5)),
        }
    }
}

fn value(counter: &std::sync::atomic::AtomicU64) -> u64 {
    counter.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn many_sequences_share_few_ids_and_each_gets_its_own_answer() {
    let bench = Bench::start();
    let running: Vec<_> = (0..50)
        .map(|n| {
            (
                n,
                bench.submit((n..n + 1 + n % 30).collect(), limit(1 + n % 9)),
            )
        })
        .collect();
    let mut tokens = 0;
    for (n, generation) in running {
        let (chunk, outcome) = read(generation);
        let first = n + 1 + n % 30;
        assert_eq!(chunk.tokens, (first..=first + n % 9).collect::<Vec<_>>());
        let outcome = outcome.unwrap();
        assert_eq!(
            (outcome.finish, outcome.generated_tokens),
            (FinishReason::Length, 1 + n % 9)
        );
        tokens += u64::from(outcome.prompt_tokens + outcome.generated_tokens - 1);
    }
    let counters = bench.end();
    assert_eq!(value(&counters.computed_tokens), tokens);
    assert_eq!(value(&counters.cells_leaked), 0);
    assert_eq!(value(&counters.sequence_ids_used), 0);
}

#[test]
fn a_generation_ends_at_its_end_token_its_stop_string_or_its_limit() {
    let bench = Bench::start();
    let (chunk, outcome) = read(bench.submit(vec![996], limit(9)));
    assert_eq!(chunk.tokens, [997, 998, END]);
    assert_eq!(outcome.unwrap().finish, FinishReason::End);

    let ignore_end = GenerateOptions {
        ignore_end: true,
        ..limit(4)
    };
    let (chunk, outcome) = read(bench.submit(vec![997], ignore_end));
    assert_eq!(chunk.tokens, [998, END, 0, 1]);
    assert_eq!(
        (outcome.unwrap().finish, chunk.text.as_str()),
        (FinishReason::Length, "01")
    );

    let fixed = GenerateOptions {
        fixed_token: Some(7),
        ..limit(3)
    };
    let (chunk, outcome) = read(bench.submit(vec![1], fixed));
    assert_eq!(chunk.tokens, [7, 7, 7], "whatever the model says");
    assert_eq!(outcome.unwrap().finish, FinishReason::Length);

    let stop = GenerateOptions {
        stop: vec!["45".into()],
        ..limit(20)
    };
    let (chunk, outcome) = read(bench.submit(vec![1], stop));
    assert_eq!(
        (outcome.unwrap().finish, chunk.text.as_str()),
        (FinishReason::Stop, "23")
    );
    bench.end();
}

#[test]
fn everyone_gets_the_adapter_that_was_asked_for() {
    let bench = Bench::start();
    let asked: Vec<_> = (0..60)
        .map(|n| {
            // The same few texts, so that there is something to find and not to take.
            let adapter = n % 3;
            let options = GenerateOptions {
                adapter: (adapter > 0).then(|| adapter.to_string()),
                ..limit(6)
            };
            let prompt: Vec<_> = (100..120 + n % 4).collect();
            let last = 119 + n % 4;
            (adapter, last, bench.submit(prompt, options))
        })
        .collect();
    for (adapter, last, generation) in asked {
        let (chunk, outcome) = read(generation);
        let steps = (1..=6).map(|i| last + i * (1 + adapter));
        assert_eq!(chunk.tokens, steps.collect::<Vec<_>>(), "adapter {adapter}");
        assert!(outcome.is_ok());
    }
    let counters = bench.end();
    assert!(value(&counters.adapter_changes) > 1);
    assert!(value(&counters.cached_tokens) > 0);
    assert_eq!(value(&counters.skipped_rows), 0);
    identity(&counters);
}

#[test]
fn one_bad_sequence_fails_alone() {
    let bench = Bench::start();
    let good: Vec<_> = (0..6)
        .map(|n| bench.submit(vec![n, n + 1, n + 2], limit(5)))
        .collect();
    let bad = bench.submit(vec![1, 2, POISON, 4], limit(5));
    let more: Vec<_> = (0..6).map(|n| bench.submit(vec![n], limit(5))).collect();
    assert!(matches!(read(bad).1, Err(Error::Failed(_))));
    for generation in good.into_iter().chain(more) {
        let (chunk, outcome) = read(generation);
        assert_eq!((chunk.tokens.len(), outcome.is_ok()), (5, true));
    }
    let counters = bench.end();
    assert_eq!(value(&counters.failed), 1);
    assert_eq!(value(&counters.cells_leaked), 0);
    identity(&counters);
}

fn identity(counters: &EngineMetrics) {
    let balance = value(&counters.prompt_tokens) - value(&counters.cached_tokens)
        + value(&counters.generated_tokens)
        - value(&counters.finished)
        - value(&counters.uncomputed_tokens)
        + value(&counters.rejected_drafts)
        + value(&counters.next_token_computed_tokens)
        + value(&counters.recomputed_tokens)
        + value(&counters.discarded_tokens);
    assert_eq!(value(&counters.computed_tokens), balance);
    assert_eq!(value(&counters.cells_leaked), 0);
    assert_eq!(value(&counters.sequence_ids_used), 0);
}

#[test]
fn whoever_goes_away_is_dropped_running_or_waiting() {
    let bench = Bench::slow(Duration::from_millis(100));
    // Four ids: the later ones wait.
    let left: Vec<_> = (0..12).map(|_| bench.submit(vec![1], endless())).collect();
    drop(left);
    let (chunk, _) = read(bench.submit(vec![5], limit(3)));
    assert_eq!(chunk.tokens, [6, 7, 8]);
    let counters = bench.end();
    assert_eq!(
        (value(&counters.cancelled), value(&counters.finished)),
        (12, 1)
    );
    assert!(value(&counters.computed_tokens) < 100);
    identity(&counters);
}

#[test]
fn what_can_never_fit_is_refused_and_shutting_down_cancels_the_rest() {
    let bench = Bench::start();
    let (_, outcome) = read(bench.submit(vec![1; 200], limit(100)));
    assert_eq!(
        outcome,
        Err(Error::ContextFull {
            needed: 299,
            limit: 256
        })
    );
    bench.end();
}

#[test]
fn shutting_down_cancels_what_runs_waits_or_has_not_been_looked_at() {
    let bench = Bench::slow(Duration::from_millis(20));
    let running: Vec<_> = (0..9).map(|_| bench.submit(vec![1], endless())).collect();
    // It does not come to the end before there is something behind it.
    let (open, gate) = sync_channel::<()>(1);
    let wait = move |_| {
        let _ = gate.recv_timeout(Duration::from_secs(20));
    };
    let hold = Command::Status(Box::new(wait));
    bench.commands.send(hold).unwrap();
    bench.commands.send(Command::Shutdown).unwrap();
    let late = bench.submit(vec![1], endless());
    drop(open);
    for generation in running.into_iter().chain([late]) {
        assert_eq!(read(generation).1, Err(Error::Cancelled));
    }
    identity(&bench.end());
}

fn endless() -> GenerateOptions {
    GenerateOptions {
        ignore_end: true,
        ..limit(60)
    }
}

#[test]
fn metrics_count_first_tokens_and_cell_usage() {
    let bench = Bench::slow(Duration::from_millis(10));
    let first = bench.submit(vec![1; 32], limit(60));
    let mut first = first;
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    while first
        .poll_next(&mut Context::from_waker(&waker))
        .is_pending()
    {
        std::thread::park_timeout(Duration::from_secs(5));
    }
    let (send, status) = sync_channel(1);
    let tell = move |status| drop(send.send(status));
    bench
        .commands
        .send(Command::Status(Box::new(tell)))
        .unwrap();
    let status: EngineStatus = status.recv().unwrap();
    let used = value(&bench.counters.cells_used_billionths);
    assert!(status.cells_pinned >= 32 && used >= 32 * 1_000_000_000 / 256);
    read(first).1.unwrap();
    read(bench.submit(vec![5], limit(1))).1.unwrap();
    let counters = bench.end();
    let list = counters.list();
    let find = |name: &str| {
        list.iter()
            .find(|metric| metric.name == name)
            .unwrap()
            .value
    };
    assert_eq!(find("corral_engine_time_to_first_token_seconds_count"), 2.0);
    assert!(find("corral_engine_time_to_first_token_seconds_sum") >= 0.02);
    assert_eq!(find("corral_engine_kv_cache_usage_ratio"), 0.0, "idle");
}
