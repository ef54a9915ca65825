//! The worker over the simulator, which checks that each sequence arrives whole, once and in order, and fails at a
//! [`POISON`] token. [`TestEngine::end`] checks the identity of the token counters and looks for leaked cells.

mod draft_model;
mod external_sampling;
mod next_token;
mod overlap;
mod prefix_files;
mod prefix_offload;
mod queue;
mod sampler_state;
mod speculation;
mod support;
mod swap_in;
mod trace;

use super::*;
use crate::generation::FinishReason;
use crate::metrics::get;
use corral_simulator::POISON;
use std::sync::mpsc::sync_channel;
use support::*;

#[test]
fn generations_end_at_end_stop_or_limit() {
    let engine = TestEngine::start();
    let with = |change: fn(&mut GenerateOptions)| {
        let mut options = limit(4);
        change(&mut options);
        options
    };
    let cases: [(Token, GenerateOptions, &[Token], &str, FinishReason); 4] = [
        (996, limit(9), &[997, 998, END], "", FinishReason::End),
        (
            997,
            with(|options| options.ignore_eos = true),
            &[998, END, 0, 1],
            "01",
            FinishReason::Length,
        ),
        (
            1,
            with(|options| options.fixed_token = Some(7)),
            &[7; 4],
            "7777",
            FinishReason::Length,
        ),
        (
            1,
            with(|options| options.stop = vec!["45".into()]),
            &[2, 3, 4, 5],
            "23",
            FinishReason::Stop,
        ),
    ];
    for (prompt, options, tokens, text, finish) in cases {
        let (chunk, outcome) = read(engine.generate(vec![prompt], options));
        assert_eq!((&*chunk.tokens, &*chunk.text), (tokens, text));
        assert_eq!(outcome.unwrap().finish, finish);
    }
    engine.end();
}

#[test]
fn failing_request_harms_no_other() {
    let engine = TestEngine::start();
    let start = |n| engine.generate(vec![n, n + 1, n + 2], limit(5));
    let before: Vec<_> = (0..6).map(start).collect();
    let failing = engine.generate(vec![1, 2, POISON, 4], limit(5));
    let after: Vec<_> = (0..6).map(start).collect();
    assert!(matches!(read(failing).1, Err(Error::Failed(_))));
    for generation in before.into_iter().chain(after) {
        let (chunk, outcome) = read(generation);
        assert_eq!((chunk.tokens.len(), outcome.is_ok()), (5, true));
    }
    assert_eq!(get(&engine.end().failed), 1);
}

#[test]
fn generated_tokens_never_fall() {
    let engine = TestEngine::slow(Duration::from_millis(50));
    let generated = || {
        let (send, status) = sync_channel(1);
        engine.send(Command::Status(Box::new(move |status| {
            drop(send.send(status))
        })));
        status.recv().unwrap().generated_tokens
    };
    let mut dropped = engine.generate(vec![1], long());
    let chunk = block_on(dropped.next()).expect("a chunk");
    let before = generated();
    assert!(before >= chunk.tokens.len() as u64);
    drop(dropped);
    read_tokens(engine.generate(vec![5], limit(3)), 6..9);
    assert!(generated() >= before + 3);
    assert_eq!(get(&engine.end().canceled), 1);
}

#[test]
fn request_larger_than_the_cells_is_refused() {
    let engine = TestEngine::start();
    let (_, outcome) = read(engine.generate(vec![1; 200], limit(100)));
    let (needed, limit) = (299, 256);
    assert_eq!(outcome, Err(Error::ContextFull { needed, limit }));
    engine.end();
}

#[test]
fn shutdown_cancels_running_waiting_and_unread_requests() {
    let engine = TestEngine::slow(Duration::from_millis(20));
    let generations: Vec<_> = (0..9).map(|_| engine.generate(vec![1], long())).collect();
    // Holds the worker until a request follows the shutdown.
    let (release, held) = sync_channel::<()>(1);
    let hold = move |_| {
        let _ = held.recv_timeout(Duration::from_secs(60));
    };
    engine.send(Command::Status(Box::new(hold)));
    engine.send(Command::Shutdown);
    let late = engine.generate(vec![1], long());
    drop(release);
    for generation in generations.into_iter().chain([late]) {
        assert_eq!(read(generation).1, Err(Error::ShuttingDown));
    }
    engine.end();
}

#[test]
fn metrics_count_first_tokens_and_cell_usage() {
    let engine = TestEngine::slow(Duration::from_millis(10));
    let mut first = engine.generate(vec![1; 32], limit(60));
    block_on(first.next()).expect("a chunk");
    let (send, status) = sync_channel(1);
    engine.send(Command::Status(Box::new(move |status| {
        drop(send.send(status))
    })));
    let status = status.recv().unwrap();
    assert!(status.cells_running >= 32);
    assert!(get(&engine.metrics.kv_cache_usage_billionths) >= 32 * 1_000_000_000 / 256);
    read(first).1.unwrap();
    read(engine.generate(vec![5], limit(1))).1.unwrap();
    let samples = engine.end().samples();
    let find = |name| {
        let sample = samples.iter().find(|sample| sample.name == name);
        sample.expect("the metric exists").value
    };
    assert_eq!(find("corral_engine_time_to_first_token_seconds_count"), 2.0);
    assert!(find("corral_engine_time_to_first_token_seconds_sum") >= 0.02);
    assert_eq!(find("corral_engine_kv_cache_usage_ratio"), 0.0, "idle");
}

#[test]
fn waiting_threads_become_fewer_unless_results_would_change() {
    for has_fixed_threads in [false, true] {
        let config = TestConfig {
            step_time: Duration::from_millis(10),
            threads: 4,
            has_fixed_threads,
            ..TestConfig::default()
        };
        let engine = config.start();
        assert_eq!(get(&engine.metrics.compute_threads), 4);
        read_tokens(engine.generate(vec![1], limit(15)), 2..17);
        let metrics = engine.end();
        let is_lowered = get(&metrics.compute_threads_lowered) > 0;
        assert_eq!(is_lowered, !has_fixed_threads);
        assert!(is_lowered || get(&metrics.compute_threads) == 4);
    }
}
