//! Guessed tokens change nothing but the number of steps.

use super::*;
use crate::Sampler;

/// What is generated with up to so many drafts, and the counters after it.
fn generated(
    prompt: &[Token],
    options: &GenerateOptions,
    speculate: u8,
) -> (Chunk, Outcome, Arc<EngineMetrics>) {
    let bench = Bench::start();
    let options = GenerateOptions {
        max_draft_tokens: speculate,
        ..options.clone()
    };
    let (chunk, outcome) = read(bench.submit(prompt.to_vec(), options));
    let counters = bench.end();
    identity(&counters);
    (chunk, outcome.unwrap(), counters)
}

/// The same with and without drafts. Returns the accepted and the rejected ones, and the steps with
/// and without.
fn compare(prompt: &[Token], options: &GenerateOptions) -> ((u64, u64), (u64, u64)) {
    let (plain, end, without) = generated(prompt, options, 0);
    let (chunk, outcome, with) = generated(prompt, options, 8);
    assert_eq!(chunk, plain);
    assert_eq!(outcome.finish, end.finish);
    assert_eq!(outcome.generated_tokens, end.generated_tokens);
    assert_eq!(value(&without.accepted_drafts), 0);
    assert_eq!(value(&without.rejected_drafts), 0);
    let drafts = (value(&with.accepted_drafts), value(&with.rejected_drafts));
    let steps = (value(&with.steps), value(&without.steps));
    // Each draft that was right saves a step, but for what comes after the end.
    assert_eq!(steps.0 + drafts.0, steps.1, "{drafts:?}");
    (drafts, steps)
}

#[test]
fn a_text_that_repeats_itself_takes_fewer_steps() {
    let prompt: Vec<_> = (10..60).chain(10..14).collect();
    let ((accepted, rejected), steps) = compare(&prompt, &limit(30));
    // How many are guessed depends on how long steps take; the first guesses do not.
    assert!(accepted >= 8 && rejected == 0, "{accepted} {rejected}");
    assert!(steps.0 < steps.1, "{steps:?}");
}

#[test]
fn guesses_that_are_wrong_leave_nothing_behind() {
    let prompt = [20, 21, 22, 23, 900, 901, 902, 20, 21, 22];
    let ((accepted, rejected), _) = compare(&prompt, &limit(9));
    assert!(rejected > 0 && accepted == 0, "{accepted} {rejected}");
    // The first one is right, the second is not.
    let prompt = [20, 21, 22, 23, 24, 901, 902, 20, 21, 22];
    let ((accepted, rejected), _) = compare(&prompt, &limit(9));
    assert!(rejected > 0 && accepted > 0, "{accepted} {rejected}");
}

#[test]
fn an_end_among_the_drafts_is_the_end() {
    // The token that ends, the limit, and a stop string, which goes over two tokens.
    let prompt: Vec<_> = (980..1000).chain(0..30).chain(980..990).collect();
    for (most, ignore_end) in (1..16).flat_map(|most| [(most, false), (most, true)]) {
        let options = GenerateOptions {
            ignore_end,
            ..limit(most)
        };
        compare(&prompt, &options);
    }
    let prompt: Vec<_> = (0..9).chain(900..905).chain(0..2).collect();
    for stop in ["3", "34", "4567"] {
        let options = GenerateOptions {
            stop: vec![stop.into()],
            ..limit(20)
        };
        let ((accepted, _), _) = compare(&prompt, &options);
        assert!(accepted > 0 || stop == "3");
    }
}

/// One number is drawn for each token, whether it was guessed or not.
#[test]
fn a_seed_draws_the_same_tokens_with_drafts_and_without() {
    let prompt: Vec<_> = (10..60).chain(10..14).collect();
    let mut sum = (0, 0);
    for seed in 0..20 {
        let options = GenerateOptions {
            samplers: vec![Sampler::Temperature(1.0)],
            seed: Some(seed),
            ..limit(40)
        };
        let ((accepted, rejected), _) = compare(&prompt, &options);
        sum = (sum.0 + accepted, sum.1 + rejected);
    }
    assert!(sum.0 > 0 && sum.1 > 0, "{sum:?}");
}

#[test]
fn many_with_drafts_end_leave_and_give_way_like_others() {
    let bench = Bench::slow(Duration::from_micros(300));
    let speculating = |most| GenerateOptions {
        max_draft_tokens: 8,
        ..limit(most)
    };
    let prompt = |n| (n..n + 20).chain(n..n + 4).collect::<Vec<Token>>();
    let mut running = Vec::new();
    for n in 0..60 {
        let generation = bench.submit(prompt(n), speculating(10 + n % 60));
        match n % 5 {
            0 => drop(generation),
            _ => running.push((n, generation)),
        }
    }
    let bad = bench.submit(vec![1, 2, POISON, 4], speculating(5));
    assert!(matches!(read(bad).1, Err(Error::Failed(_))));
    for (n, generation) in running {
        let (chunk, outcome) = read(generation);
        let expected: Vec<_> = (n + 4..n + 4 + 10 + n % 60).collect();
        assert_eq!(chunk.tokens, expected);
        assert!(outcome.is_ok());
    }
    let counters = bench.end();
    assert!(value(&counters.accepted_drafts) > 0);
    identity(&counters);
}
