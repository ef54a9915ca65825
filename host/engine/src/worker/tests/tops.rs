//! Those of whose rows only the highest logits are there: [`TOP`] of them, all but the first equal.

use super::looks::wait_for;
use super::*;
use corral_sampling::Sampler;

fn with(samplers: Vec<Sampler>, max_tokens: u32) -> GenerateOptions {
    GenerateOptions {
        samplers,
        ..limit(max_tokens)
    }
}

#[test]
fn what_follows_from_them_is_generated_from_them() {
    let bench = Bench::with_top(4);
    let chains = [
        vec![],
        vec![Sampler::Temperature(0.0)],
        vec![Sampler::TopK(1), Sampler::Temperature(0.7)],
        // Needs the whole row.
        vec![Sampler::TopP(0.1)],
    ];
    let running: Vec<_> = (0..24)
        .map(|n| {
            let chain = chains[n as usize % chains.len()].clone();
            let prompt = vec![20 * n, 20 * n + 1, 20 * n + 2];
            (n, bench.submit(prompt, with(chain, 5)))
        })
        .collect();
    for (n, generation) in running {
        let (chunk, outcome) = read(generation);
        let first = 20 * n + 3;
        assert_eq!(chunk.tokens, (first..first + 5).collect::<Vec<_>>());
        assert!(outcome.is_ok());
    }
    let counters = bench.end();
    assert_eq!(value(&counters.device_top_k_misses), 0);
    assert_eq!(value(&counters.computed_tokens), 24 * 7, "each token once");
    assert_eq!(value(&counters.cells_leaked), 0);
    identity(&counters);
}

/// Which of the others is the second is not known.
#[test]
fn what_does_not_follow_from_them_is_generated_from_all_after_one_token_more() {
    let bench = Bench::with_top(4);
    let chain = vec![Sampler::TopK(3), Sampler::TopP(0.1)];
    let running: Vec<_> = (0..12)
        .map(|n| {
            (
                n,
                bench.submit(vec![40 * n, 40 * n + 1], with(chain.clone(), 6)),
            )
        })
        .collect();
    for (n, generation) in running {
        let (chunk, outcome) = read(generation);
        let first = 40 * n + 2;
        assert_eq!(chunk.tokens, (first..first + 6).collect::<Vec<_>>());
        let outcome = outcome.unwrap();
        assert_eq!((outcome.prompt_tokens, outcome.cached_tokens), (2, 0));
    }
    let counters = bench.end();
    assert_eq!(
        value(&counters.device_top_k_misses),
        12,
        "once in the life of each"
    );
    assert_eq!(value(&counters.recomputed_tokens), 12);
    assert_eq!(value(&counters.computed_tokens), 12 * (2 + 5 + 1));
    assert_eq!(value(&counters.cells_leaked), 0);
    identity(&counters);
}

/// What comes after five tokens from `first` on.
fn shown(bench: &Bench, first: Token, show: DistributionPart) -> Distribution {
    let (sender, reply) = reply::reply();
    let submission = NewRequest {
        prompt: (first..first + 5).collect(),
        caller: Caller::default(),
        adapter: AdapterId::NONE,
        retention: WeakRetention::default(),
        continued: None,
        arrived: Instant::now(),
        permit: crate::permits::RequestPermit::unlimited(),
        kind: RequestKind::NextToken {
            request: NextTokenRequest::new(show),
            sender,
        },
    };
    let submit = Command::Add(Box::new(submission));
    bench.commands.send(submit).unwrap();
    wait_for(reply).unwrap()
}

#[test]
fn a_look_shows_what_is_known_and_else_what_the_whole_row_tells() {
    let bench = Bench::with_top(4);
    // Known, not known, more than there are.
    for (place, count) in (0..).zip([1, 2, TOP]) {
        let first = 100 * place;
        let next = first + 5;
        // Of those that are equal the first ones, as if all had been there.
        let others = (0..).filter(|token| *token != next);
        let mut expected = vec![(next, 10.0)];
        expected.extend(others.take(count as usize - 1).map(|token| (token, 0.0)));
        let shown = shown(&bench, first, DistributionPart::Top(count));
        assert_eq!(shown.candidates, expected);
    }
    assert_eq!(
        shown(&bench, 300, DistributionPart::Logits).logits[305],
        10.0
    );
    let counters = bench.end();
    assert_eq!(value(&counters.next_token_requests), 4);
    assert_eq!(value(&counters.device_top_k_misses), 1);
    assert_eq!(value(&counters.computed_tokens), 4 * 5 + 1);
    identity(&counters);
}
