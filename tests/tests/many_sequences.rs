//! As many sequences at once as llama.cpp allows.

use corral_tests::{Corral, concurrently, distinct_sums, words};
use std::sync::mpsc::{TryRecvError, channel};

/// llama.cpp's limit.
const SEQUENCES: usize = 256;
/// Tokens of each answer: enough that all run before the first ends.
const TOKENS: usize = 300;

#[test]
fn all_sequence_ids_run_at_once() {
    // One deployment has at most seven eighths of the instances.
    let routes = [("/one", "generate"), ("/other", "generate")];
    let arguments = words("--max-running 256 --kv-cells 98304 --max-calls 128");
    let corral = Corral::start_with_routes(&routes, &arguments);
    let sums: Vec<_> = (0..).zip(distinct_sums(SEQUENCES)).collect();
    // The watching thread ends with it, also if a check panics.
    let (asking, ended) = channel::<()>();
    let most = std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let (ended, mut most) = (ended, 0.0_f64);
            while ended.try_recv() == Err(TryRecvError::Empty) {
                most = most.max(corral.metrics().get("corral_engine_requests_running"));
            }
            most
        });
        let asking = asking;
        concurrently(SEQUENCES, &sums, |(number, sum)| {
            let route = if number % 2 == 0 { "/one" } else { "/other" };
            corral.check_long(route, *sum, TOKENS);
        });
        drop(asking);
        watching.join().expect("a thread")
    });
    assert_eq!(most, SEQUENCES as f64);
}
