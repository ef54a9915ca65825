//! From the bytes of a thousand tokens to text that can be shown: whole characters, without what may
//! become a stop string. Divided by a thousand it is what a token costs.
//!
//! `make microbench BENCHES=text`

#[path = "support/text.rs"]
mod support;

use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher, black_box};
use support::{TOKENS, bytes, show, stops, words};

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// Stop strings, none of which comes.
const STOPS: [usize; 4] = [0, 1, 4, 16];

fn bench(bencher: Bencher, pieces: &[Vec<u8>], count: usize) {
    let stops = stops(count);
    let bytes: usize = pieces.iter().map(Vec::len).sum();
    assert!(show(pieces, stops.clone()) >= bytes, "no stop string comes");
    bencher
        .counter(ItemsCount::new(TOKENS))
        .with_inputs(|| stops.clone())
        .bench_local_values(|stops| show(black_box(pieces), stops));
}

#[divan::bench(args = STOPS)]
fn of_words(bencher: Bencher, stops: usize) {
    bench(bencher, &words(), stops);
}

#[divan::bench(args = STOPS)]
fn of_bytes(bencher: Bencher, stops: usize) {
    bench(bencher, &bytes(), stops);
}

/// The twin of both: the same bytes, copied one token after the other.
#[divan::bench]
fn floor(bencher: Bencher) {
    let pieces = words();
    bencher.counter(ItemsCount::new(TOKENS)).bench_local(|| {
        let (mut shown, mut out) = (0, Vec::new());
        for piece in black_box(&pieces) {
            out.clear();
            out.extend_from_slice(piece);
            shown += black_box(&out).len();
        }
        shown
    });
}
