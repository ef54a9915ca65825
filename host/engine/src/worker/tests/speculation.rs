//! Drafts change nothing but the number of steps.

use super::support::*;
use crate::generation::Outcome;
use crate::metrics::{EngineMetrics, get};
use crate::{Chunk, Error, GenerateOptions, Sampler, Token};
use corral_simulator::POISON;
use std::sync::Arc;
use std::time::Duration;

fn with_drafts(max_draft_tokens: u8, options: GenerateOptions) -> GenerateOptions {
    GenerateOptions {
        max_draft_tokens: Some(max_draft_tokens),
        ..options
    }
}

fn generate(prompt: &[Token], options: GenerateOptions) -> (Chunk, Outcome, Arc<EngineMetrics>) {
    let engine = TestEngine::start();
    let (chunk, outcome) = read(engine.generate(prompt.to_vec(), options));
    (chunk, outcome.unwrap(), engine.end())
}

struct Drafts {
    accepted: u64,
    rejected: u64,
}

/// Generates with and without drafts, compares the results, and returns the drafts.
fn compare(prompt: &[Token], options: &GenerateOptions) -> Drafts {
    let (plain, plain_outcome, plain_metrics) = generate(prompt, options.clone());
    let (chunk, outcome, metrics) = generate(prompt, with_drafts(8, options.clone()));
    assert_eq!(chunk, plain);
    assert_eq!(outcome.finish, plain_outcome.finish);
    assert_eq!(outcome.generated_tokens, plain_outcome.generated_tokens);
    assert_eq!(get(&plain_metrics.accepted_drafts), 0);
    assert_eq!(get(&plain_metrics.rejected_drafts), 0);
    let drafts = Drafts {
        accepted: get(&metrics.accepted_drafts),
        rejected: get(&metrics.rejected_drafts),
    };
    let steps = get(&metrics.steps) + drafts.accepted;
    assert_eq!(
        steps,
        get(&plain_metrics.steps),
        "each accepted draft saves a step"
    );
    drafts
}

#[test]
fn rejected_drafts_leave_nothing() {
    let prompt = [20, 21, 22, 23, 900, 901, 902, 20, 21, 22];
    let drafts = compare(&prompt, &limit(9));
    assert!(drafts.rejected > 0 && drafts.accepted == 0);
    // The first draft is right, the second is not.
    let prompt = [20, 21, 22, 23, 24, 901, 902, 20, 21, 22];
    let drafts = compare(&prompt, &limit(9));
    assert!(drafts.rejected > 0 && drafts.accepted > 0);
}

#[test]
fn seed_gives_the_same_tokens_with_drafts() {
    let prompt: Vec<_> = (10..60).chain(10..14).collect();
    let (mut accepted, mut rejected) = (0, 0);
    for seed in 0..20 {
        let options = GenerateOptions {
            samplers: vec![Sampler::Temperature(1.0)],
            seed: Some(seed),
            ..limit(40)
        };
        let drafts = compare(&prompt, &options);
        accepted += drafts.accepted;
        rejected += drafts.rejected;
    }
    assert!(accepted > 0 && rejected > 0, "{accepted} and {rejected}");
}

#[test]
fn generation_ends_within_drafts() {
    let prompt: Vec<_> = (980..1000).chain(0..30).chain(980..990).collect();
    for (most, ignore_eos) in (1..16).flat_map(|most| [(most, false), (most, true)]) {
        let options = GenerateOptions {
            ignore_eos,
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
        let drafts = compare(&prompt, &options);
        assert!(drafts.accepted > 0 || stop == "3");
    }
}

#[test]
fn drafting_requests_end_in_any_way_together() {
    let engine = TestEngine::slow(Duration::from_micros(300));
    let mut running = Vec::new();
    for n in 0..60 {
        let prompt = (n..n + 20).chain(n..n + 4).collect();
        let generation = engine.generate(prompt, with_drafts(8, limit(10 + n % 60)));
        match n % 5 {
            0 => drop(generation),
            _ => running.push((n, generation)),
        }
    }
    let failing = engine.generate(vec![1, 2, POISON, 4], with_drafts(8, limit(5)));
    assert!(matches!(read(failing).1, Err(Error::Failed(_))));
    for (n, generation) in running {
        read_tokens(generation, n + 4..n + 14 + n % 60);
    }
    assert!(get(&engine.end().accepted_drafts) > 0);
}
