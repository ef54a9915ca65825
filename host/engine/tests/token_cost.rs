//! Cost of a token in counted events, because times vary on a shared machine. Eight sequences
//! generate concurrently over the demo model, each read by a thread.
//!
//! The only test of its binary, because its allocator counts all threads. It does not count the
//! allocations of llama.cpp.

use corral_engine::{Engine, Generation, ModelConfig};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;
use support::{check_empty, demo_model, exactly, metric, start};

mod support;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const SEQUENCES: u32 = 8;
/// Tokens per sequence in a short and a long run. The cost per request cancels out.
const TOKENS: [u32; 2] = [100, 500];

/// Maximum allocations per token, including its step and its reader.
const MOST_ALLOCATIONS: f64 = 12.0;
/// Extra steps beyond one per token of a sequence.
const MOST_OTHER_STEPS: f64 = 4.0;
/// Maximum wakes of the engine thread in a run.
const MOST_WAKE_UPS: f64 = 2.0;

/// Counts of a run.
#[derive(Debug)]
struct Cost {
    allocations: u32,
    steps: f64,
    rows: f64,
    wake_ups: f64,
}

/// A reader thread and its number of wakes.
struct Reader {
    thread: Thread,
    woken: AtomicU64,
}

impl Wake for Reader {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Ordering::Relaxed);
        self.thread.unpark();
    }
}

/// Reads a generation to its end and checks that each wake has a chunk.
fn read(mut generation: Generation, tokens: u32) {
    let reader = Arc::new(Reader {
        thread: std::thread::current(),
        woken: AtomicU64::new(0),
    });
    let waker = Waker::from(Arc::clone(&reader));
    let mut context = Context::from_waker(&waker);
    let (mut chunks, mut read) = (0, 0);
    loop {
        match generation.poll_next(&mut context) {
            Poll::Ready(Some(chunk)) => {
                chunks += 1;
                read += chunk.tokens.len();
            }
            Poll::Ready(None) => break,
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(10)),
        }
    }
    let outcome = generation.outcome().expect("it was read to its end");
    assert_eq!(outcome.unwrap().generated_tokens, tokens);
    assert_eq!(read, tokens as usize);
    let woken = reader.woken.load(Ordering::Relaxed);
    assert!(
        woken <= chunks + 1,
        "woken {woken} times for {chunks} chunks"
    );
}

/// Runs all sequences concurrently with this many tokens each.
fn round(engine: &Engine, tokens: u32) -> Cost {
    let numbers =
        || ["steps_total", "rows_total", "wakeups_total"].map(|name| metric(engine, name));
    let before = numbers();
    let allocated = ALLOCATOR.stats();
    // The engine thread waits for all requests, so that they start in one step.
    let (release, held) = sync_channel::<()>(1);
    engine
        .status(move |_| {
            let _ = held.recv_timeout(Duration::from_secs(60));
        })
        .unwrap();
    std::thread::scope(|scope| {
        for number in 0..SEQUENCES {
            let generation = start(engine, &format!("{number}+{number}="), exactly(tokens));
            scope.spawn(move || read(generation, tokens));
        }
        release.send(()).unwrap();
    });
    let allocated = {
        let after = ALLOCATOR.stats();
        let new = after.allocations - allocated.allocations;
        new + after.reallocations - allocated.reallocations
    };
    let after = numbers();
    check_empty(engine);
    Cost {
        allocations: u32::try_from(allocated).unwrap(),
        steps: after[0] - before[0],
        rows: after[1] - before[1],
        wake_ups: after[2] - before[2],
    }
}

#[test]
fn token_cost_does_not_increase() {
    let mut config = ModelConfig::new("tiny", demo_model());
    config.threads = Some(1);
    let engine = Engine::load(config).unwrap();
    // Warm up: first use grows buffers.
    round(&engine, TOKENS[1]);
    let costs = TOKENS.map(|tokens| round(&engine, tokens));
    println!("{costs:#?}");
    for (tokens, cost) in TOKENS.into_iter().zip(&costs) {
        let tokens = f64::from(tokens);
        assert!(cost.steps <= tokens + MOST_OTHER_STEPS, "{cost:?}");
        assert_eq!(cost.rows, tokens * f64::from(SEQUENCES), "{cost:?}");
        assert!(cost.wake_ups <= MOST_WAKE_UPS, "{cost:?}");
    }
    let [few, many] = costs.map(|cost| f64::from(cost.allocations));
    let tokens = SEQUENCES * (TOKENS[1] - TOKENS[0]);
    let each = (many - few) / f64::from(tokens);
    println!("{each} allocations a token");
    assert!(
        each <= MOST_ALLOCATIONS,
        "{each} allocations a token, at most {MOST_ALLOCATIONS}"
    );
    // Check that the counters work: each token needs a step, and a step allocates its rows.
    assert!(each > 1.0 / f64::from(SEQUENCES), "{each}");
}
