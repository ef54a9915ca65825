//! The engine over llama.cpp and the demo model. Sums are the oracle: a wrong KV cell gives a wrong
//! sum.

use corral_engine::{Caller, Engine, Error, GenerateOptions, LoadError, ModelConfig, Sampler};
use support::{block_on, demo_model, limit, load};

mod support;

#[test]
fn token_and_text_prompts_are_equivalent() {
    let engine = load(|_| {});
    for text in ["12+7=", "h\u{e9}llo \u{1f600}\n", "<|im_start|>user"] {
        let tokens = engine.tokenize(text, false).unwrap();
        assert_eq!(engine.detokenize(&tokens, false).unwrap(), text.as_bytes());
    }
    let special = engine.tokenize("<|im_end|>", true).unwrap();
    assert_eq!(special.len(), 1);
    assert_eq!(engine.detokenize(&special, true).unwrap(), b"<|im_end|>");
    assert_eq!(engine.detokenize(&special, false).unwrap(), b"");
    assert!(engine.info().end_of_generation.contains(&special[0]));
    let vocabulary = engine.info().vocabulary;
    assert!(matches!(
        engine.detokenize(&[vocabulary], false),
        Err(Error::Invalid(_))
    ));
}

#[test]
fn invalid_requests_are_refused() {
    let engine = load(|_| {});
    let context = engine.info().context;
    let stop = GenerateOptions {
        stop: vec![String::new()],
        ..limit(1)
    };
    let hot = GenerateOptions {
        samplers: vec![Sampler::Temperature(-1.0)],
        ..limit(1)
    };
    let invalid = |prompt: Vec<u32>, options| {
        let error = engine
            .generate(prompt, options, Caller::default())
            .unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    };
    invalid(vec![], limit(1));
    invalid(vec![u32::MAX], limit(1));
    invalid(vec![1], limit(0));
    invalid(vec![1], stop);
    invalid(vec![1], hot);
    let error = engine
        .generate(vec![1; context as usize], limit(1), Caller::default())
        .unwrap_err();
    let full = Error::ContextFull {
        needed: context + 1,
        limit: context,
    };
    assert_eq!(error, full);
    // The longest prompt that fits leaves room for one token.
    let mut generation = engine
        .generate(vec![40; context as usize - 1], limit(9), Caller::default())
        .unwrap();
    while block_on(generation.next()).is_some() {}
    assert_eq!(generation.outcome().unwrap().unwrap().generated_tokens, 1);
}

#[test]
fn too_long_context_is_refused() {
    let mut config = ModelConfig::new("x", demo_model());
    config.context = Some(1_000_000);
    assert!(matches!(Engine::load(config), Err(LoadError::Config(_))));
}
