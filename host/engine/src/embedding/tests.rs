//! The worker with a fake backend, whose steps the tests release one by one.

use super::backend::EmbeddingBackend;
use super::batch::BatchLimits;
use super::pooling::Pooling;
use super::vectors::Embedding;
use super::worker::{EmbeddingCommand, EmbeddingRequest, EmbeddingWorker};
use crate::backend::{DecodeError, TokenInput};
use crate::block_on::block_on;
use crate::metrics::{EngineMetrics, get, set};
use crate::open_request_limits::RequestPermit;
use crate::reply::reply;
use crate::{Caller, Error, Token};
use corral_scheduler::{SeqId, Tenant};
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const LIMITS: BatchLimits = BatchLimits {
    whole: false,
    step_tokens: 32,
    shared_tokens: 32,
    seq_ids: 4,
    max_input: 1000,
};
/// Steps with this token fail.
const POISON: Token = 666;
/// Its vector is not finite.
const OVERFLOW: Token = 667;

/// A step that the backend was called with.
#[derive(Debug)]
struct FakeStep {
    tokens: Vec<Token>,
    busy: bool,
}

/// Gives each token the vector (token, position), and waits for its release before each step.
struct FakeBackend {
    release: Arc<Mutex<Receiver<()>>>,
    steps: Sender<FakeStep>,
    lengths: HashMap<SeqId, u32>,
    vectors: Vec<[f32; 2]>,
}

impl EmbeddingBackend for FakeBackend {
    fn compute(&mut self, step: &[TokenInput], busy: bool) -> Result<(), DecodeError> {
        assert!((1..=LIMITS.step_tokens as usize).contains(&step.len()));
        let tokens = step.iter().map(|input| input.token).collect();
        let step_call = FakeStep { tokens, busy };
        self.steps.send(step_call).expect("the test runs");
        let release = self.release.lock().expect("no panic");
        release.recv().expect("the test runs");
        let poisoned = step.iter().any(|input| input.token == POISON);
        self.vectors.clear();
        for input in step {
            // Positions have no gaps, even after a failure.
            let length = self.lengths.entry(input.seq).or_default();
            assert_eq!(*length, input.position, "{input:?}");
            *length += 1;
            let number = if input.token == OVERFLOW {
                f32::NAN
            } else {
                input.token as f32
            };
            self.vectors.push([number, input.position as f32]);
        }
        if poisoned {
            Err(DecodeError::Failed(-3))
        } else {
            Ok(())
        }
    }

    fn vector(&self, index: usize) -> Option<&[f32]> {
        self.vectors.get(index).map(|vector| &vector[..])
    }

    fn scores(&self, _seq: SeqId) -> Option<&[f32]> {
        None
    }

    fn clear(&mut self, seq: SeqId) {
        self.lengths.remove(&seq);
    }
}

struct TestWorker {
    commands: Option<SyncSender<EmbeddingCommand>>,
    release: Sender<()>,
    steps: Receiver<FakeStep>,
    metrics: Arc<EngineMetrics>,
    thread: Option<JoinHandle<()>>,
}

impl TestWorker {
    /// The first `broken` attempts to create a context fail.
    fn new(idle: Duration, mut broken: u32) -> Self {
        let (release, released) = channel();
        let (step, steps) = channel();
        let released = Arc::new(Mutex::new(released));
        let make = Box::new(move || {
            if broken > 0 {
                broken -= 1;
                return Err(Error::Failed("no memory for a context".into()));
            }
            Ok(FakeBackend {
                release: released.clone(),
                steps: step.clone(),
                lengths: HashMap::new(),
                vectors: Vec::new(),
            })
        });
        let (commands, receiver) = sync_channel(100);
        let metrics = Arc::new(EngineMetrics::default());
        let worker = EmbeddingWorker::new(make, LIMITS, 2, idle, receiver, metrics.clone());
        Self {
            commands: Some(commands),
            release,
            steps,
            metrics,
            thread: Some(std::thread::spawn(move || worker.run())),
        }
    }

    fn without_idle() -> Self {
        Self::new(Duration::from_secs(3600), 0)
    }

    fn embed(&self, inputs: &[Vec<Token>], caller: Caller) -> Embedding {
        let (sender, embedding) = reply();
        let request = EmbeddingRequest {
            inputs: inputs.to_vec(),
            pooling: Pooling::Last,
            normalize: false,
            caller,
            sender,
            arrived: Instant::now(),
            permit: RequestPermit::unlimited(),
        };
        let command = EmbeddingCommand::Embed(Box::new(request));
        let commands = self.commands.as_ref().expect("it has not ended");
        commands.try_send(command).expect("there is room");
        embedding
    }

    /// Waits for the next step and releases it.
    fn step(&self) -> FakeStep {
        let step = self.wait_for_step();
        self.release();
        step
    }

    /// Waits for the next step without releasing it.
    fn wait_for_step(&self) -> FakeStep {
        let step = self.steps.recv_timeout(Duration::from_secs(60));
        step.expect("a step")
    }

    /// Releases a step.
    fn release(&self) {
        self.release.send(()).expect("the thread runs");
    }

    fn count(&self, counter: fn(&EngineMetrics) -> &AtomicU64) -> u64 {
        get(counter(&self.metrics))
    }

    fn end(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it ends well");
        }
    }
}

fn input(token: Token, length: usize) -> Vec<Token> {
    vec![token; length]
}

fn tenant(tenant: u32) -> Caller {
    Caller {
        tenant: Tenant(tenant),
        ..Caller::default()
    }
}

#[test]
fn small_request_passes_a_large_one() {
    let mut worker = TestWorker::without_idle();
    let large = worker.embed(&vec![input(1, 500); 4], tenant(1));
    worker.wait_for_step();
    let small = worker.embed(&[input(2, 3), input(3, 4)], tenant(1));
    worker.release();
    let mut tokens = worker.step().tokens;
    tokens.retain(|&token| token != 1);
    assert_eq!(tokens, [2, 2, 2, 3, 3, 3, 3]);
    let answer = block_on(small).expect("it is computed");
    assert_eq!(answer.inputs, [[2.0, 2.0], [3.0, 3.0]]);
    assert_eq!((answer.tokens, answer.width), (7, 2));
    for _ in 0..100 {
        worker.release();
    }
    let answer = block_on(large).expect("it is computed");
    assert_eq!(answer.inputs, vec![[1.0, 499.0]; 4]);
    worker.end();
    assert_eq!(worker.count(|c| &c.embed_computed), 2007);
    assert_eq!(worker.count(|c| &c.embed_tokens), 2007);
    assert_eq!(worker.count(|c| &c.embed_open), 0);
}

#[test]
fn abandoned_and_expired_requests_end_before_next_step() {
    let mut worker = TestWorker::without_idle();
    let abandoned = worker.embed(&[input(1, 500)], tenant(1));
    worker.wait_for_step();
    let passed = Instant::now();
    let at_once = |caller: Caller| Caller {
        queue_time: Some(Duration::ZERO),
        ..caller
    };
    let late = worker.embed(
        &[input(2, 1)],
        Caller {
            deadline: Some(passed),
            ..tenant(2)
        },
    );
    let hasty = worker.embed(&[input(3, 1)], at_once(tenant(3)));
    let patient = worker.embed(&[input(4, 1)], tenant(4));
    drop(abandoned);
    worker.release();
    assert_eq!(worker.step().tokens, [4], "only the open request");
    assert_eq!(block_on(late), Err(Error::DeadlineExceeded));
    assert!(matches!(block_on(hasty), Err(Error::QueueTimeout { .. })));
    assert!(block_on(patient).is_ok());
    worker.end();
    assert_eq!(worker.count(|c| &c.embed_canceled), 1);
    assert_eq!(worker.count(|c| &c.embed_expired), 2);
    assert_eq!(worker.count(|c| &c.embed_computed), 33);
}

#[test]
fn faulty_input_fails_its_request_alone() {
    let mut worker = TestWorker::without_idle();
    let first = worker.embed(&[input(1, 100)], tenant(1));
    worker.wait_for_step();
    let bad = worker.embed(&[input(2, 3), input(POISON, 3)], tenant(1));
    let last = worker.embed(&[input(3, 3)], tenant(2));
    for _ in 0..20 {
        worker.release();
    }
    let error = block_on(bad).expect_err("it cannot be computed");
    assert!(error.to_string().contains("input 1"), "{error}");
    assert_eq!(block_on(first).map(|a| a.inputs), Ok(vec![vec![1.0, 99.0]]));
    assert_eq!(block_on(last).map(|a| a.inputs), Ok(vec![vec![3.0, 2.0]]));
    worker.end();
    assert_eq!(worker.count(|c| &c.embed_failed), 1);
    assert_eq!(worker.count(|c| &c.embed_failed_steps), 3);
}

#[test]
fn numbers_that_are_not_finite_fail_their_request() {
    let worker = TestWorker::without_idle();
    let bad = worker.embed(&[input(1, 1), input(OVERFLOW, 1)], tenant(1));
    worker.wait_for_step();
    let good = worker.embed(&[input(1, 1)], tenant(1));
    worker.release();
    worker.step();
    let error = block_on(bad).expect_err("not finite");
    assert!(error.to_string().contains("not finite"), "{error}");
    assert!(block_on(good).is_ok());
}

#[test]
fn failed_context_fails_only_open_requests() {
    let worker = TestWorker::new(Duration::from_secs(3600), 1);
    let error = block_on(worker.embed(&[input(1, 1)], tenant(1)));
    assert_eq!(error, Err(Error::Failed("no memory for a context".into())));
    let later = worker.embed(&[input(1, 1)], tenant(1));
    worker.step();
    assert!(block_on(later).is_ok());
    assert_eq!(worker.count(|c| &c.embed_contexts), 1);
}

#[test]
fn idle_context_is_freed_and_created_again() {
    let worker = TestWorker::new(Duration::from_millis(5), 0);
    for _ in 0..2 {
        let embedding = worker.embed(&[input(1, 1)], tenant(1));
        worker.step();
        assert!(block_on(embedding).is_ok());
        let until = Instant::now() + Duration::from_secs(60);
        while worker.count(|c| &c.embed_contexts) > 0 {
            assert!(Instant::now() < until, "the context is not freed");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // One per request, and one to free the context.
    assert_eq!(worker.count(|c| &c.embed_wake_ups), 4);
}

#[test]
fn shutdown_cancels_all_requests() {
    let mut worker = TestWorker::without_idle();
    let running = worker.embed(&[input(1, 100)], tenant(1));
    worker.wait_for_step();
    let commands = worker.commands.clone().expect("it runs");
    commands
        .try_send(EmbeddingCommand::Shutdown)
        .expect("there is room");
    let waiting = worker.embed(&[input(1, 100)], tenant(1));
    worker.release();
    assert_eq!(block_on(running), Err(Error::ShuttingDown));
    assert_eq!(block_on(waiting), Err(Error::ShuttingDown));
    drop(commands);
    worker.end();
    assert_eq!(worker.count(|c| &c.embed_canceled), 2);
}

#[test]
fn closed_channel_ends_after_open_requests() {
    let mut worker = TestWorker::without_idle();
    let embedding = worker.embed(&[input(1, 64)], tenant(1));
    worker.release();
    worker.release();
    worker.end();
    assert!(block_on(embedding).is_ok());
}

#[test]
fn busy_reflects_running_generations() {
    let worker = TestWorker::without_idle();
    for running in [0, 1] {
        set(&worker.metrics.running, running);
        let embedding = worker.embed(&[input(1, 1)], tenant(1));
        assert_eq!(worker.step().busy, running > 0);
        assert!(block_on(embedding).is_ok());
    }
}
