//! Grammars and log probabilities with the demo model. `constraints.rs` of the whole program has each kind of grammar and a
//! mixed load, `test_constraints.py` of the clients random schemas.

use corral_engine::{
    Caller, Engine, Error, FinishReason, GenerateOptions, Grammar, Sampler, Tenant,
};
use support::{answer, block_on, check_empty, exactly, limit, load, metric, read, settle, start};

mod support;

fn constrained(engine: &Engine, grammar: Grammar, max_tokens: u32) -> GenerateOptions {
    GenerateOptions {
        constraint: Some(
            engine
                .compile(Tenant(0), &grammar)
                .expect("the grammar is valid"),
        ),
        ..limit(max_tokens)
    }
}

#[test]
fn forced_tokens_need_no_step() {
    let engine = load(|_| {});
    // The grammar requires a sentence before the sum.
    let sentence = constrained(&engine, Grammar::Regex("The sum is [0-9]{2}[.]".into()), 40);
    let (chunk, outcome) = answer(&engine, "12+7=", sentence);
    assert!(chunk.text.starts_with("The sum is ") && chunk.text.ends_with('.'));
    assert_eq!(outcome.finish, FinishReason::End);
    settle(&engine);
    let taken = metric(&engine, "steps_total");
    let tokens = f64::from(outcome.generated_tokens);
    assert!(
        taken <= 6.0 && tokens >= 14.0,
        "{taken} steps, {tokens} tokens"
    );
    check_empty(&engine);
}

#[test]
fn complete_text_ends_with_ignored_end_token() {
    let engine = load(|_| {});
    let mut options = constrained(&engine, Grammar::Regex("[0-9]+".into()), 20);
    options.ignore_eos = true;
    let (chunk, outcome) = answer(&engine, "1+1=", options);
    assert!(chunk.text.starts_with('2'), "{}", chunk.text);
    assert!(matches!(
        outcome.finish,
        FinishReason::End | FinishReason::Length
    ));
    check_empty(&engine);
}

#[test]
fn drafts_do_not_change_constrained_output() {
    let engine = load(|_| {});
    let grammar = Grammar::JsonSchema(
        r#"{"type":"array","items":{"type":"object","properties":{"name":{"enum":["Ada","Bob"]},
            "years":{"type":"integer","minimum":1,"maximum":99}},"required":["name","years"]},
            "minItems":3,"maxItems":6}"#
            .into(),
    );
    for seed in 0..8 {
        let plain = GenerateOptions {
            samplers: vec![Sampler::Temperature(0.7)],
            seed: Some(seed),
            ..constrained(&engine, grammar.clone(), 300)
        };
        let drafted = GenerateOptions {
            max_draft_tokens: Some(8),
            ..plain.clone()
        };
        let (expected, plain_outcome) = answer(&engine, "Ada is 36 years old\n", plain);
        let (chunk, outcome) = answer(&engine, "Ada is 36 years old\n", drafted);
        assert_eq!(chunk, expected);
        assert_eq!(outcome.finish, plain_outcome.finish);
    }
    check_empty(&engine);
}

#[test]
fn bias_against_the_grammar_fails_only_its_request() {
    let engine = load(|_| {});
    // The bias bans all tokens that the grammar allows.
    let mut options = constrained(&engine, Grammar::Regex("[0-9]".into()), 5);
    let digits = (0..10).map(|digit: u32| {
        let tokens = engine.tokenize(&digit.to_string(), false).unwrap();
        (tokens[tokens.len() - 1], f32::NEG_INFINITY)
    });
    options.samplers = vec![Sampler::LogitBias(digits.collect())];
    let (_, outcome) = read(start(&engine, "1+1=", options));
    assert!(matches!(outcome, Err(Error::Invalid(_))), "{outcome:?}");
    assert_eq!(answer(&engine, "1+1=", limit(5)).0.text, "2");
    check_empty(&engine);
}

#[test]
fn logprobs_equal_a_second_evaluation() {
    let engine = load(|_| {});
    let prompt = "Ada is 36 years old\nrepeat: ";
    let options = |seed| GenerateOptions {
        samplers: vec![Sampler::Temperature(2.0)],
        seed: Some(seed),
        logprobs: Some(5),
        ..exactly(12)
    };
    for seed in 0..5 {
        let (chunk, _) = answer(&engine, prompt, options(seed));
        assert_eq!(chunk.logprobs.len(), chunk.tokens.len());
        let before = engine.tokenize(prompt, true).unwrap();
        for (at, (token, logprobs)) in chunk.tokens.iter().zip(&chunk.logprobs).enumerate() {
            assert_eq!(logprobs.top.len(), 5);
            assert!(logprobs.top.is_sorted_by(|a, b| a.1 >= b.1));
            let total: f32 = logprobs.top.iter().map(|(_, logprob)| logprob.exp()).sum();
            assert!(total <= 1.0 + 1e-4 && logprobs.logprob <= logprobs.top[0].1 + 1e-6);
            // The same position in a new request: greedy takes the most likely token.
            let mut tokens = before.clone();
            tokens.extend(&chunk.tokens[..at]);
            let again = GenerateOptions {
                logprobs: Some(20),
                ..limit(1)
            };
            let mut generation = engine.generate(tokens, again, Caller::default()).unwrap();
            let second = block_on(generation.next()).expect("a chunk");
            assert_eq!(second.tokens[0], second.logprobs[0].top[0].0);
            if let Some((_, logprob)) = second.logprobs[0].top.iter().find(|(t, _)| t == token) {
                assert!(
                    (logprob - logprobs.logprob).abs() < 0.05,
                    "{logprob} {logprobs:?}"
                );
            }
        }
    }
    check_empty(&engine);
}
