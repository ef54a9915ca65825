//! What the tests of the engine share. Not all of them use all of it.
#![allow(dead_code)]

use corral_engine::{Chunk, Engine, Error, Generation, Outcome, View};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// The demo model.
pub fn demo_model() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf")
}

/// Waits for a future on this thread.
pub fn wait<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(10)),
        }
    }
}

/// Reads a generation to its end.
pub fn read(mut generation: Generation) -> (Chunk, Result<Outcome, Error>) {
    let mut all = Chunk::default();
    while let Some(chunk) = wait(generation.next()) {
        all.tokens.extend(chunk.tokens);
        all.text.push_str(&chunk.text);
    }
    (all, generation.outcome().expect("it was read to its end"))
}

/// One of the engine's numbers.
pub fn metric(engine: &Engine, name: &str) -> f64 {
    let name = format!("corral_engine_{name}");
    let metrics = engine.metrics();
    let found = metrics.iter().find(|metric| metric.name == name);
    found.unwrap_or_else(|| panic!("no metric {name}")).value
}

/// What goes on in an engine.
pub fn view(engine: &Engine) -> View {
    let (tell, told) = sync_channel(1);
    let tell = move |view| tell.send(view).expect("the test waits for it");
    engine.view(tell).expect("the engine looks");
    told.recv().expect("the engine answers")
}

/// Waits until nothing runs and everything behind the last answer is counted.
pub fn settle(engine: &Engine) {
    let until = Instant::now() + Duration::from_secs(20);
    while metric(engine, "sequence_ids_used") + metric(engine, "sequences_waiting") > 0.0 {
        assert!(Instant::now() < until, "sequence ids are still in use");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Checks that every token was computed once, but for those that were found, lost or left.
pub fn check_identity(engine: &Engine) {
    let count = |name: &str| metric(engine, &format!("{name}_total"));
    let expected = count("prompt_tokens") - count("cached_tokens") + count("generated_tokens")
        - count("sequences_finished")
        - count("uncomputed_tokens")
        + count("rejected_drafts")
        + count("looked_tokens")
        + count("recomputed_tokens")
        + count("abandoned_tokens");
    assert_eq!(count("tokens_decoded"), expected);
}

/// Checks that nothing runs, and that nothing stays once nobody claims it.
pub fn check_empty(engine: &Engine) {
    settle(engine);
    engine.clear_cache().expect("the engine looks");
    let view = view(engine);
    assert!(
        view.sequences.is_empty() && view.entries.is_empty(),
        "{view:?}"
    );
    assert_eq!((view.cells_used, view.ids_used), (0, 0));
    assert_eq!((view.spilled_ram, view.spilled_disk), (0, 0));
    assert_eq!(metric(engine, "cells_leaked"), 0.0);
    check_identity(engine);
}
