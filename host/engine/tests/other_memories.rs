//! The engine over models of other memory kinds, with random weights: what they say has no sense,
//! but each says the same whoever is beside it.

use corral_engine::random_model::{Qwen3, Shape, write_random};
use corral_engine::{Caller, Config, Engine, Generation, Options};
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

fn engine(shape: &Shape, name: &str) -> Engine {
    let tiny = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
    let file = format!("corral-random-{name}-{}.gguf", std::process::id());
    let file = std::env::temp_dir().join(file);
    write_random(shape, &tiny, &file, 7).expect("the model is written");
    let mut config = Config::new(name, &file);
    config.threads = Some(1);
    let engine = Engine::load(config).expect("the model loads");
    std::fs::remove_file(&file).expect("it can be removed");
    engine
}

/// Waits for a future on this thread.
fn wait<F: Future>(future: F) -> F::Output {
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

fn start(engine: &Engine, prompt: &str) -> Generation {
    let options = Options {
        max_tokens: 20,
        ignore_end: true,
        ..Options::default()
    };
    let tokens = engine.tokenize(prompt, true).unwrap();
    engine.generate(tokens, options, Caller::default()).unwrap()
}

fn finish(mut generation: Generation) -> Vec<u32> {
    let mut tokens = Vec::new();
    while let Some(chunk) = wait(generation.next()) {
        tokens.extend(chunk.tokens);
    }
    assert_eq!(generation.outcome().unwrap().unwrap().generated_tokens, 20);
    tokens
}

/// Generates alone, again, and beside others of other lengths.
fn check(shape: &Shape, name: &str, can_fork: bool) {
    let engine = engine(shape, name);
    assert_eq!(engine.info().can_fork, can_fork);
    let prompts = [
        "a".to_owned(),
        "The quick brown fox jumps over the lazy dog. ".repeat(3),
        "1+1=2, 2+2=4, 3+3=".to_owned(),
    ];
    let alone: Vec<_> = prompts
        .iter()
        .map(|prompt| finish(start(&engine, prompt)))
        .collect();
    assert_ne!(alone[0], alone[1]);
    for (prompt, tokens) in prompts.iter().zip(&alone) {
        assert_eq!(&finish(start(&engine, prompt)), tokens, "{prompt:?}, again");
    }
    let running: Vec<_> = prompts
        .iter()
        .map(|prompt| start(&engine, prompt))
        .collect();
    for ((prompt, tokens), generation) in prompts.iter().zip(&alone).zip(running) {
        assert_eq!(&finish(generation), tokens, "{prompt:?}, beside others");
    }
}

#[test]
fn a_recurrent_model_generates_alone_and_beside_others_and_cannot_fork() {
    check(&Shape::Mamba, "mamba", false);
}

#[test]
fn a_hybrid_model_generates_alone_and_beside_others_and_cannot_fork() {
    check(&Shape::Hybrid, "hybrid", false);
}

#[test]
fn a_model_with_a_sliding_window_generates_alone_and_beside_others() {
    check(&Shape::SlidingWindow, "window", true);
}

#[test]
fn a_plain_model_generates_alone_and_beside_others() {
    check(&Shape::Qwen3(Qwen3::tiny()), "qwen3", true);
}

/// A larger vocabulary and quantised weights, as the benchmark's model has them.
#[test]
fn a_plain_model_may_have_more_tokens_and_quantised_weights() {
    use corral_engine::random_model::Weights;
    let sizes = Qwen3 {
        width: 256,
        head_size: 64,
        feed_forward: 512,
        vocabulary: Some(1000),
        matrices: Weights::Q4K,
        embedding: Weights::Q6K,
        ..Qwen3::tiny()
    };
    let engine = engine(&Shape::Qwen3(sizes), "quantised");
    assert_eq!(engine.info().vocabulary, 1000);
    assert_eq!(finish(start(&engine, "a")), finish(start(&engine, "a")));
}
