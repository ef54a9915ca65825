//! The engine over recurrent, hybrid and windowed models with random weights. Output is meaningless
//! but must not depend on concurrent requests.

use corral_engine::{Caller, Engine, Error, Generation, Sequence};
use corral_random_model::{Architecture, Qwen3};
use support::{check_empty, exactly, random_engine, read, sequence};

mod support;

fn start(engine: &Engine, prompt: &str) -> Generation {
    support::start(engine, prompt, exactly(20))
}

fn finish(generation: Generation) -> Vec<u32> {
    let (chunk, outcome) = read(generation);
    assert_eq!(outcome.unwrap().generated_tokens, 20);
    chunk.tokens
}

/// Generates alone, again, and with concurrent requests of other lengths.
fn check(shape: &Architecture, name: &str, can_truncate: bool) {
    let engine = random_engine(shape, name);
    assert_eq!(engine.info().can_truncate, can_truncate);
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
    check_sequences(&engine, can_truncate);
    check_empty(&engine);
}

/// Continues a sequence, forks it, and truncates it if the memory supports that.
fn check_sequences(engine: &Engine, can_truncate: bool) {
    let text = "All is well that ends. ".repeat(4);
    let more = engine.tokenize(" And then?", true).unwrap();
    let generate = |sequence: &mut Sequence| {
        let (chunk, outcome) = read(sequence.generate(exactly(20)).unwrap());
        (chunk.tokens, outcome.unwrap().cached_tokens)
    };
    let mut first = sequence(engine, &text);
    let length = first.tokens().len();
    let (output, _) = generate(&mut first);
    first.append(&output).unwrap();
    let mut fork = first.fork();
    first.append(&more).unwrap();
    let (continued, cached) = generate(&mut first);
    // All but the last token, which was never computed.
    assert_eq!(cached as usize, length + output.len() - 1);
    let fresh = first.tokens().to_vec();
    engine.clear_prefix_cache().unwrap();
    let fresh = engine.generate(fresh, exactly(20), Caller::default());
    assert_eq!(continued, finish(fresh.unwrap()));
    // The fork does not depend on the original.
    fork.append(&more).unwrap();
    assert_eq!(generate(&mut fork).0, continued);
    match first.truncate(length) {
        Err(Error::Unsupported(why)) if !can_truncate => {
            assert!(why.contains("cannot be truncated"), "{why}");
        }
        Ok(()) if can_truncate => {
            let (again, cached) = generate(&mut first);
            assert_eq!((again, cached as usize), (output, length - 1));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn recurrent_model_generates_and_continues_sequences() {
    check(&Architecture::Mamba, "mamba", false);
}

#[test]
fn hybrid_model_generates_and_continues_sequences() {
    check(&Architecture::Hybrid, "hybrid", false);
}

#[test]
fn sliding_window_model_generates_and_continues_sequences() {
    check(&Architecture::SlidingWindow, "window", false);
}

#[test]
fn plain_model_generates_alone_and_concurrently() {
    check(&Architecture::Qwen3(Qwen3::tiny()), "qwen3", true);
}
