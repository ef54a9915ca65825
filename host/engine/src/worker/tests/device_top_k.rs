//! Device top-k: rows with [`TOP_K`] logits, all equal but the first.

use super::support::*;
use crate::metrics::get;
use crate::next_token::{Distribution, DistributionPart};
use crate::{GenerateOptions, Token};
use corral_sampling::Sampler;
use corral_scheduler::Retention;

fn engine() -> TestEngine {
    TestConfig {
        top_k_seq_ids: 4,
        ..TestConfig::default()
    }
    .start()
}

fn with(samplers: &[Sampler], max_tokens: u32) -> GenerateOptions {
    GenerateOptions {
        samplers: samplers.to_vec(),
        ..limit(max_tokens)
    }
}

#[test]
fn miss_recomputes_one_token_with_all_logits() {
    let engine = engine();
    // The logits do not tell which of the equal tokens is the second.
    let samplers = [Sampler::TopK(3), Sampler::TopP(0.1)];
    let generations: Vec<_> = (0..12)
        .map(|n| engine.generate(vec![40 * n, 40 * n + 1], with(&samplers, 6)))
        .collect();
    for (n, generation) in (0..).zip(generations) {
        let outcome = read_tokens(generation, 40 * n + 2..40 * n + 8);
        assert_eq!((outcome.prompt_tokens, outcome.cached_tokens), (2, 0));
    }
    let metrics = engine.end();
    assert_eq!(get(&metrics.device_top_k_misses), 12, "once per request");
    assert_eq!(get(&metrics.recomputed_tokens), 12);
    assert_eq!(get(&metrics.computed_tokens), 12 * (2 + 5 + 1));
}

/// The distribution after five tokens from `first` on.
fn distribution(engine: &TestEngine, first: Token, part: &DistributionPart) -> Distribution {
    let prompts = [(first..first + 5).collect()];
    let mut retentions = [Retention::default()];
    let mut replies = engine.next_tokens(&prompts, part, &mut retentions);
    block_on(replies.remove(0)).unwrap()
}

#[test]
fn distribution_equals_that_of_the_whole_row() {
    let engine = engine();
    // One candidate is known; the second is not; the last count exceeds the top-k logits.
    for (n, count) in (0..).zip([1, 2, TOP_K]) {
        let first = 100 * n;
        let next = first + 5;
        // Equal logits are in order of token.
        let others = (0..).filter(|token| *token != next);
        let others = others.take(count as usize - 1).map(|token| (token, 0.0));
        let expected: Vec<_> = [(next, 10.0)].into_iter().chain(others).collect();
        let distribution = distribution(&engine, first, &DistributionPart::Top(count));
        assert_eq!(distribution.candidates, expected);
    }
    let all = distribution(&engine, 300, &DistributionPart::Logits);
    assert_eq!(all.logits[305], 10.0);
    let metrics = engine.end();
    assert_eq!(get(&metrics.next_token_requests), 4);
    assert_eq!(get(&metrics.device_top_k_misses), 1);
    assert_eq!(get(&metrics.computed_tokens), 4 * 5 + 1);
}
