//! As many sequences at once as llama.cpp allows.

use corral_tests::{Corral, Sum, concurrently, distinct_sums, words};
use std::sync::mpsc::{TryRecvError, channel};

/// llama.cpp's limit.
const SEQUENCES: usize = 256;
/// Tokens of each answer: enough that all run before the first ends.
const TOKENS: usize = 300;

/// The most requests that run at once while each sum is asked.
fn most_at_once(corral: &Corral, sums: &[(usize, Sum)]) -> f64 {
    // The watching thread ends with it, also if a check panics.
    let (asking, ended) = channel::<()>();
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let (ended, mut most) = (ended, 0.0_f64);
            while ended.try_recv() == Err(TryRecvError::Empty) {
                most = most.max(corral.metrics().get("corral_engine_requests_running"));
            }
            most
        });
        let asking = asking;
        concurrently(SEQUENCES, sums, |(number, sum)| {
            let route = if number % 2 == 0 { "/one" } else { "/other" };
            corral.check_long(route, *sum, TOKENS);
        });
        drop(asking);
        watching.join().expect("a thread")
    })
}

#[test]
fn all_sequence_ids_run_at_once() {
    // One deployment has at most seven eighths of the instances.
    let routes = [("/one", "generate"), ("/other", "generate")];
    let arguments = words("--max-running 256 --kv-cells 98304 --max-calls 128");
    let corral = Corral::start_with_routes(&routes, &arguments);
    let sums: Vec<(usize, _)> = (0..).zip(distinct_sums(SEQUENCES)).collect();
    // On a busy machine the first answers may end before the last client has asked.
    let all_run = (0..5).any(|_| most_at_once(&corral, &sums) == SEQUENCES as f64);
    assert!(all_run, "in five rounds, fewer ran at once");
}
