//! Guest sampling over llama.cpp and the demo model: each token is computed once, and forks and truncated sequences reuse
//! their prefix. `guest_sampling.rs` of the whole program compares the output with the engine's, and has the errors.

use corral_engine::{
    Distribution, DistributionPart, Engine, Error, NextTokenRequest, Sequence, Token,
};
use support::{block_on, check_empty, limit, load, metric, read, sequence, settle};

mod support;

fn distribution(sequence: &mut Sequence, part: DistributionPart) -> Distribution {
    block_on(sequence.next(NextTokenRequest::new(part)).unwrap()).unwrap()
}

/// Greedy answer by next-token requests, without the end token.
fn answer(sequence: &mut Sequence, engine: &Engine) -> Vec<Token> {
    let from = sequence.tokens().len();
    while sequence.tokens().len() < from + 12 {
        let distribution = distribution(sequence, DistributionPart::Top(3));
        assert_eq!(distribution.position as usize, sequence.tokens().len());
        let (token, _) = distribution.candidates[0];
        if engine.info().end_of_generation.contains(&token) {
            break;
        }
        sequence.append(&[token]).unwrap();
    }
    sequence.tokens()[from..].to_vec()
}

fn generated(engine: &Engine, text: &str) -> Vec<Token> {
    let (chunk, outcome) = read(sequence(engine, text).generate(limit(12)).unwrap());
    outcome.unwrap();
    let ends = |token: &Token| engine.info().end_of_generation.contains(token);
    chunk
        .tokens
        .into_iter()
        .filter(|token| !ends(token))
        .collect()
}

#[test]
fn guest_sampling_computes_each_token_once() {
    let engine = load(|_| {});
    let text = "The quiet owl looks at the river and the stone.\n12+7=";
    let mut own = sequence(&engine, text);
    let prompt = own.tokens().len();
    let output = answer(&mut own, &engine);
    settle(&engine);
    let computed = metric(&engine, "computed_tokens_total");
    assert_eq!(computed, (prompt + output.len()) as f64);
    assert_eq!(
        metric(&engine, "next_token_requests_total"),
        (output.len() + 1) as f64
    );
    // Two requests at one position compute one token and return equal results.
    let first = distribution(&mut own, DistributionPart::Logits);
    let again = distribution(&mut own, DistributionPart::Logits);
    settle(&engine);
    assert_eq!(metric(&engine, "computed_tokens_total"), computed + 2.0);
    assert_eq!(first.logits.len(), engine.info().vocabulary as usize);
    let far = first.logits.iter().zip(&again.logits);
    assert!(far.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) < 0.05);
    drop(own);
    check_empty(&engine);
}

#[test]
fn forks_and_truncations_compute_only_new_tokens() {
    let engine = load(|_| {});
    let story = "The quiet owl looks at the river and the stone. ".repeat(20) + "\n";
    let mut trunk = sequence(&engine, &story);
    distribution(&mut trunk, DistributionPart::Top(1));
    settle(&engine);
    let before = metric(&engine, "computed_tokens_total");
    let mut new = 0;
    let mut forks: Vec<_> = ["12+7=", "20+22=", "3+4=", "31+27="]
        .iter()
        .map(|question| {
            let mut fork = trunk.fork();
            let tokens = engine.tokenize(question, true).unwrap();
            fork.append(&tokens).unwrap();
            new += tokens.len();
            fork
        })
        .collect();
    // Concurrent requests, three times: four rows per step.
    for _ in 0..3 {
        let requests = forks
            .iter_mut()
            .map(|fork| (fork, NextTokenRequest::new(DistributionPart::Top(1))));
        let distribution: Vec<_> = Sequence::next_many(requests)
            .into_iter()
            .map(|reply| block_on(reply.unwrap()).unwrap())
            .collect();
        for (fork, distribution) in forks.iter_mut().zip(distribution) {
            fork.append(&[distribution.candidates[0].0]).unwrap();
        }
    }
    settle(&engine);
    let computed = metric(&engine, "computed_tokens_total") - before;
    assert_eq!(computed, (new + 4 * 2) as f64, "the story is read once");
    // The truncated sequence reuses the story.
    let mut cut = forks.remove(0);
    cut.truncate(trunk.tokens().len()).unwrap();
    cut.append(&engine.tokenize("45+54=", true).unwrap())
        .unwrap();
    let output = answer(&mut cut, &engine);
    settle(&engine);
    let after = metric(&engine, "computed_tokens_total") - before - computed;
    assert_eq!(after, (6 + output.len()) as f64);
    assert_eq!(metric(&engine, "requests_failed_total"), 0.0);
    drop((trunk, forks, cut));
    check_empty(&engine);
}

#[test]
fn guest_sampling_is_correct_under_cell_pressure() {
    // The cells fit two or three of the twelve sequences.
    let engine = load(|config| {
        config.context = Some(256);
        config.cells = Some(512);
        config.max_running = 3;
    });
    std::thread::scope(|scope| {
        for client in 0..12 {
            let engine = &engine;
            scope.spawn(move || {
                let text = "The old fox looks at the stone. ".repeat(4);
                let text = format!("{text}\n{}=", ["12+7", "20+22"][client % 2]);
                let mut own = sequence(engine, &text);
                let output = answer(&mut own, engine);
                assert_eq!(output, generated(engine, &text), "{text}");
            });
        }
    });
    settle(&engine);
    check_empty(&engine);
}

#[test]
fn full_context_has_a_distribution_but_no_room() {
    let engine = load(|config| config.context = Some(64));
    let mut own = sequence(&engine, "1+1=");
    let rest = vec![own.tokens()[0]; 64 - own.tokens().len()];
    own.append(&rest).unwrap();
    assert_eq!(
        distribution(&mut own, DistributionPart::Top(1)).position,
        64
    );
    assert!(matches!(
        own.append(&[1]),
        Err(Error::ContextFull {
            needed: 65,
            limit: 64
        })
    ));
    drop(own);
    check_empty(&engine);
}
