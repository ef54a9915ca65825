//! Baselines for benchmarks: a context of the same weights beside the engine, and prompts that start in one step.

use corral_engine::SeqId;
use corral_engine::testing::TokenInput;
use corral_engine::{Caller, GenerateOptions};
use support::{exactly, load, metric, read, settle};

mod support;

#[test]
fn benchmark_context_runs_beside_the_engine() {
    let engine = load(|config| config.prefix_cache = false);
    let mut raw = engine
        .benchmark_context()
        .expect("there is memory for another one");
    let input = |seq, position| TokenInput {
        token: 5,
        position,
        seq: SeqId(seq),
        output: position == 2,
    };
    for _ in 0..3 {
        let prompts: Vec<_> = (0..4)
            .flat_map(|seq| (0..3).map(move |position| input(seq, position)))
            .collect();
        raw.decode(&prompts).expect("there is room");
        (0..4).for_each(|seq| raw.clear(SeqId(seq)));
    }
    let spent = raw.decode_cpu_time();
    assert!(!spent.is_zero());
    let unknown = input(u16::MAX, 0);
    raw.decode(&[unknown]).expect_err("there is no such id");
    raw.decode(&[]).expect_err("nothing to compute");
    assert_eq!(metric(&engine, "computed_tokens_total"), 0.0);
}

#[test]
fn concurrent_prompts_start_in_one_step() {
    let engine = load(|config| config.prefix_cache = false);
    let prompts = (0..6).map(|n| vec![10 + n; 7]).collect();
    let options = GenerateOptions {
        fixed_token: Some(20),
        ..exactly(4)
    };
    let all = engine
        .generate_batch(prompts, &options, Caller::default())
        .expect("there is room for all");
    for generation in all {
        let (chunk, outcome) = read(generation);
        assert_eq!(chunk.tokens, [20; 4]);
        outcome.expect("the generation succeeds");
    }
    settle(&engine);
    assert_eq!(metric(&engine, "steps_total"), 4.0);
    assert_eq!(metric(&engine, "computed_tokens_total"), 6.0 * (7.0 + 3.0));
    let (time, processor) = (
        metric(&engine, "compute_seconds_total"),
        metric(&engine, "compute_cpu_seconds_total"),
    );
    assert!(time > 0.0 && processor > 0.0);
    let both = vec![vec![10], Vec::new()];
    let refused = engine.generate_batch(both, &options, Caller::default());
    assert!(refused.is_err(), "one of them is empty");
}
