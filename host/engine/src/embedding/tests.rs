//! The thread over a stand-in for the model, whose steps the tests let through one by one.

use super::backend::Embeds;
use super::delivery::{Embedding, Vectors};
use super::packing::Sizes;
use super::places::{Load, Places};
use super::pooling::Pooling;
use super::thread::{Command, Request, Thread};
use crate::backend::{DecodeError, TokenInput};
use crate::metrics::{Counters, get, set};
use crate::reply::reply;
use crate::{Caller, Error, Token};
use corral_scheduler::{SeqId, Tenant};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const SIZES: Sizes = Sizes {
    whole: false,
    step_tokens: 32,
    together: 32,
    seq_ids: 4,
    longest: 1000,
};
/// Steps with this token fail.
const POISON: Token = 666;
/// Its vector is not finite.
const OVERFLOW: Token = 667;

/// What a step looked like.
#[derive(Debug)]
struct Seen {
    tokens: Vec<Token>,
    busy: bool,
}

/// Gives each token the vector (token, position), and waits for leave before each step.
struct Fake {
    leave: Arc<Mutex<Receiver<()>>>,
    seen: Sender<Seen>,
    lengths: HashMap<SeqId, u32>,
    vectors: Vec<[f32; 2]>,
}

impl Embeds for Fake {
    fn compute(&mut self, step: &[TokenInput], busy: bool) -> Result<(), DecodeError> {
        assert!((1..=SIZES.step_tokens as usize).contains(&step.len()));
        let tokens = step.iter().map(|input| input.token).collect();
        self.seen.send(Seen { tokens, busy }).expect("a test looks");
        let leave = self.leave.lock().expect("nobody panicked");
        leave.recv().expect("the test gives leave");
        let poisoned = step.iter().any(|input| input.token == POISON);
        self.vectors.clear();
        for input in step {
            // Positions come in order and without gaps, also after a failure.
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

struct Rig {
    commands: Option<SyncSender<Command>>,
    leave: Sender<()>,
    seen: Receiver<Seen>,
    places: Places,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

impl Rig {
    /// The first `broken` attempts to make a context fail.
    fn new(idle: Duration, mut broken: u32) -> Self {
        let (leave, wait) = channel();
        let (see, seen) = channel();
        let wait = Arc::new(Mutex::new(wait));
        let make = Box::new(move || {
            if broken > 0 {
                broken -= 1;
                return Err(Error::Failed("no memory for a context".into()));
            }
            Ok(Fake {
                leave: wait.clone(),
                seen: see.clone(),
                lengths: HashMap::new(),
                vectors: Vec::new(),
            })
        });
        let (commands, inbox) = sync_channel(100);
        let counters = Arc::new(Counters::default());
        let thread = Thread::new(make, SIZES, 2, idle, inbox, counters.clone());
        Self {
            commands: Some(commands),
            leave,
            seen,
            places: Places::new(Load {
                requests: 100,
                tokens: 100_000,
                numbers: 100_000,
            }),
            counters,
            thread: Some(std::thread::spawn(move || thread.run())),
        }
    }

    fn steady() -> Self {
        Self::new(Duration::from_secs(3600), 0)
    }

    fn ask(&self, inputs: &[Vec<Token>], caller: Caller) -> Embedding {
        let (sender, embedding) = reply();
        let load = Load {
            requests: 1,
            tokens: 1,
            numbers: 1,
        };
        let request = Request {
            inputs: inputs.to_vec(),
            pooling: Pooling::Last,
            normalize: false,
            caller,
            sender,
            submitted: Instant::now(),
            place: self.places.take(caller.tenant, load).expect("a place"),
        };
        let command = Command::Embed(Box::new(request));
        let commands = self.commands.as_ref().expect("it is not ended");
        commands.try_send(command).expect("there is room");
        embedding
    }

    /// Waits for the next step and lets it through.
    fn step(&self) -> Seen {
        let seen = self.see();
        self.leave.send(()).expect("the thread runs");
        seen
    }

    /// Waits for the next step, which stays.
    fn see(&self) -> Seen {
        let long = Duration::from_secs(20);
        self.seen.recv_timeout(long).expect("a step comes")
    }

    fn count(&self, counter: fn(&Counters) -> &AtomicU64) -> u64 {
        get(counter(&self.counters))
    }

    fn end(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it ends well");
        }
    }
}

fn wait(embedding: &mut Embedding) -> Result<Vectors, Error> {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match Pin::new(&mut *embedding).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(20)),
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
fn a_small_request_passes_a_giant_one_by() {
    let mut rig = Rig::steady();
    let mut giant = rig.ask(&vec![input(1, 500); 4], tenant(1));
    rig.see();
    let mut small = rig.ask(&[input(2, 3), input(3, 4)], tenant(1));
    rig.leave.send(()).expect("the thread runs");
    let mut tokens = rig.step().tokens;
    tokens.retain(|&token| token != 1);
    assert_eq!(tokens, [2, 2, 2, 3, 3, 3, 3]);
    let answer = wait(&mut small).expect("it is computed");
    assert_eq!(answer.inputs, [[2.0, 2.0], [3.0, 3.0]]);
    assert_eq!((answer.tokens, answer.width), (7, 2));
    for _ in 0..100 {
        rig.leave.send(()).expect("the thread runs");
    }
    let answer = wait(&mut giant).expect("it is computed");
    assert_eq!(answer.inputs, vec![[1.0, 499.0]; 4]);
    rig.end();
    assert_eq!(rig.count(|c| &c.embed_computed), 2007);
    assert_eq!(rig.count(|c| &c.embed_tokens), 2007);
    assert_eq!(rig.count(|c| &c.embed_open), 0);
}

#[test]
fn who_goes_away_or_is_late_is_gone_at_the_next_step() {
    let mut rig = Rig::steady();
    let gone = rig.ask(&[input(1, 500)], tenant(1));
    rig.see();
    let passed = Instant::now();
    let at_once = |caller: Caller| Caller {
        queue_time: Some(Duration::ZERO),
        ..caller
    };
    let mut late = rig.ask(
        &[input(2, 1)],
        Caller {
            deadline: Some(passed),
            ..tenant(2)
        },
    );
    let mut hasty = rig.ask(&[input(3, 1)], at_once(tenant(3)));
    let mut patient = rig.ask(&[input(4, 1)], tenant(4));
    drop(gone);
    rig.leave.send(()).expect("the thread runs");
    assert_eq!(rig.step().tokens, [4], "nothing of the others");
    assert_eq!(wait(&mut late), Err(Error::Deadline));
    assert!(matches!(wait(&mut hasty), Err(Error::Overdue { .. })));
    assert!(wait(&mut patient).is_ok());
    rig.end();
    assert_eq!(rig.count(|c| &c.embed_cancelled), 1);
    assert_eq!(rig.count(|c| &c.embed_expired), 2);
    assert_eq!(rig.count(|c| &c.embed_computed), 33);
}

#[test]
fn the_culprit_of_a_failed_step_fails_alone() {
    let mut rig = Rig::steady();
    let mut first = rig.ask(&[input(1, 100)], tenant(1));
    rig.see();
    let mut bad = rig.ask(&[input(2, 3), input(POISON, 3)], tenant(1));
    let mut last = rig.ask(&[input(3, 3)], tenant(2));
    for _ in 0..20 {
        rig.leave.send(()).expect("the thread runs");
    }
    let error = wait(&mut bad).expect_err("it can't be computed");
    assert!(error.to_string().contains("input 1"), "{error}");
    assert_eq!(
        wait(&mut first).map(|a| a.inputs),
        Ok(vec![vec![1.0, 99.0]])
    );
    assert_eq!(wait(&mut last).map(|a| a.inputs), Ok(vec![vec![3.0, 2.0]]));
    rig.end();
    assert_eq!(rig.count(|c| &c.embed_failed), 1);
    assert_eq!(rig.count(|c| &c.embed_failed_steps), 3);
}

#[test]
fn numbers_that_are_none_fail_their_request_alone() {
    let rig = Rig::steady();
    let mut bad = rig.ask(&[input(1, 1), input(OVERFLOW, 1)], tenant(1));
    rig.see();
    let mut good = rig.ask(&[input(1, 1)], tenant(1));
    rig.leave.send(()).expect("the thread runs");
    rig.step();
    let error = wait(&mut bad).expect_err("there is no answer");
    assert!(error.to_string().contains("not finite"), "{error}");
    assert!(wait(&mut good).is_ok());
}

#[test]
fn a_context_that_cannot_be_made_fails_who_asked_and_not_who_comes_later() {
    let rig = Rig::new(Duration::from_secs(3600), 1);
    let error = wait(&mut rig.ask(&[input(1, 1)], tenant(1)));
    assert_eq!(error, Err(Error::Failed("no memory for a context".into())));
    let mut later = rig.ask(&[input(1, 1)], tenant(1));
    rig.step();
    assert!(wait(&mut later).is_ok());
    assert_eq!(rig.count(|c| &c.embed_contexts), 1);
}

#[test]
fn an_idle_context_is_freed_and_made_again() {
    let rig = Rig::new(Duration::from_millis(5), 0);
    for _ in 0..2 {
        let mut embedding = rig.ask(&[input(1, 1)], tenant(1));
        rig.step();
        assert!(wait(&mut embedding).is_ok());
        let until = Instant::now() + Duration::from_secs(20);
        while rig.count(|c| &c.embed_contexts) > 0 {
            assert!(Instant::now() < until, "the context is still there");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // For each request once, and once to free.
    assert_eq!(rig.count(|c| &c.embed_wake_ups), 4);
}

#[test]
fn the_end_cancels_what_waits_and_what_is_computed() {
    let mut rig = Rig::steady();
    let mut running = rig.ask(&[input(1, 100)], tenant(1));
    rig.see();
    let commands = rig.commands.clone().expect("it runs");
    commands.try_send(Command::Shutdown).expect("there is room");
    let mut waiting = rig.ask(&[input(1, 100)], tenant(1));
    rig.leave.send(()).expect("the thread runs");
    assert_eq!(wait(&mut running), Err(Error::Cancelled));
    assert_eq!(wait(&mut waiting), Err(Error::Cancelled));
    drop(commands);
    rig.end();
    assert_eq!(rig.count(|c| &c.embed_cancelled), 2);
}

#[test]
fn without_handles_left_it_ends_when_all_have_their_answers() {
    let mut rig = Rig::steady();
    let mut embedding = rig.ask(&[input(1, 64)], tenant(1));
    rig.leave.send(()).expect("the thread runs");
    rig.leave.send(()).expect("the thread runs");
    rig.end();
    assert!(wait(&mut embedding).is_ok());
}

#[test]
fn it_says_when_others_compute() {
    let rig = Rig::steady();
    for running in [0, 1] {
        set(&rig.counters.running, running);
        let mut embedding = rig.ask(&[input(1, 1)], tenant(1));
        assert_eq!(rig.step().busy, running > 0);
        assert!(wait(&mut embedding).is_ok());
    }
}
