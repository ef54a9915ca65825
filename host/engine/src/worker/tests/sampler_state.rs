//! The state of samplers: random numbers, mirostat's limit, and the history that penalties and DRY read.

use super::support::*;
use crate::generation::Generation;
use crate::metrics::get;
use crate::{Caller, GenerateOptions, Priority, Sampler, Token};
use corral_sampling::{Dry, Penalties};
use corral_simulator::POISON;
use std::sync::Arc;
use std::time::Duration;

/// Chains that draw far from the highest logit.
fn chains() -> [Vec<Sampler>; 4] {
    let dry = Sampler::Dry(Dry {
        multiplier: 3.0,
        base: 1.5,
        allowed_length: 1,
        last_n: 64,
        breakers: Arc::default(),
    });
    let penalties = Sampler::OutputPenalties(Penalties {
        last_n: 1000,
        repeat: 1.2,
        frequency: 0.5,
        presence: 0.5,
    });
    let xtc = Sampler::Xtc {
        probability: 0.5,
        threshold: 0.05,
    };
    let dynamic = Sampler::DynamicTemperature {
        temperature: 2.0,
        range: 1.0,
        exponent: 1.0,
    };
    let mirostat = Sampler::Mirostat { tau: 4.0, eta: 0.3 };
    [
        vec![dry.clone(), Sampler::Temperature(2.0)],
        vec![penalties, xtc, dynamic],
        vec![
            Sampler::Temperature(5.0),
            Sampler::TopK(20),
            Sampler::TypicalP(0.9),
            dry,
        ],
        vec![Sampler::Temperature(2.0), mirostat],
    ]
}

/// Prompts with options; the first ones generate the most.
fn requests() -> Vec<(Vec<Token>, GenerateOptions)> {
    let request = |n: u32| {
        let ban = Sampler::LogitBias(vec![(POISON, f32::NEG_INFINITY)]);
        let chain = chains()[n as usize % 4].clone();
        let options = GenerateOptions {
            samplers: std::iter::once(ban).chain(chain).collect(),
            seed: Some(u64::from(n)),
            ignore_eos: true,
            ..limit(if n < 4 { 150 } else { 30 })
        };
        ((5 * n..5 * n + 30).collect(), options)
    };
    (0..12).map(request).collect()
}

/// The tokens of all requests, and how often one was preempted. The first four run before the others, of higher
/// priority, arrive.
fn generate_together() -> (Vec<Vec<Token>>, u64) {
    let engine = TestEngine::slow(Duration::from_millis(1));
    let mut generations: Vec<Generation> = Vec::new();
    let mut first = Vec::new();
    for (n, (prompt, options)) in requests().into_iter().enumerate() {
        if n == 4 {
            let chunk = block_on(generations[0].next()).expect("a chunk");
            first = chunk.tokens;
        }
        let caller = Caller {
            priority: Priority(u8::from(n >= 4)),
            ..Caller::default()
        };
        generations.push(engine.generate_for(caller, prompt, options));
    }
    let mut tokens: Vec<Vec<Token>> = Vec::new();
    for generation in generations {
        let (chunk, outcome) = read(generation);
        outcome.expect("the generation succeeds");
        tokens.push(chunk.tokens);
    }
    first.append(&mut tokens[0]);
    tokens[0] = first;
    (tokens, get(&engine.end().preemptions))
}

#[test]
fn preempted_generations_draw_same_tokens() {
    const ROUNDS: usize = 10;
    let alone = requests().into_iter().map(|(prompt, options)| {
        let engine = TestEngine::start();
        let tokens = read(engine.generate(prompt, options)).0.tokens;
        engine.end();
        let is_likeliest = |pair: &[Token]| pair[1] == (pair[0] + 1) % VOCABULARY;
        let likeliest = tokens.windows(2).filter(|pair| is_likeliest(pair)).count();
        assert!(likeliest + 2 < tokens.len(), "not greedy: {tokens:?}");
        tokens
    });
    let alone: Vec<_> = alone.collect();
    let preempted = (0..ROUNDS).any(|_| {
        let (together, preemptions) = generate_together();
        assert_eq!(together, alone);
        preemptions > 0
    });
    assert!(preempted, "in {ROUNDS} rounds no request was preempted");
}
