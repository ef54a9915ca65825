//! From the bytes of a thousand tokens to text that can be shown: whole characters, without what may
//! become a stop string. Divided by a thousand it is what a token costs.
//!
//! `cargo bench -p corral-engine --bench text`

use corral_engine::text::Assembler;
use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher, black_box};

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

const TOKENS: usize = 1000;
/// Stop strings, none of which comes.
const STOPS: [usize; 4] = [0, 1, 4, 16];

/// Tokens as a vocabulary of words has them.
fn words() -> Vec<Vec<u8>> {
    let line = "The quiet owl looks at the river and the stone.\n";
    let words = line.split_inclusive(' ').cycle().take(TOKENS);
    words.map(|word| word.as_bytes().to_vec()).collect()
}

/// Tokens of one byte each, of characters that have two to four.
fn bytes() -> Vec<Vec<u8>> {
    let bytes = "\u{e9}\u{6f22}\u{1f600}".bytes().cycle().take(TOKENS);
    bytes.map(|byte| vec![byte]).collect()
}

/// Stop strings that the words begin like again and again.
fn stops(count: usize) -> Vec<String> {
    let stop = |number| format!("the river and the {number}");
    (0..count).map(stop).collect()
}

/// Bytes of the text that is shown.
fn show(pieces: &[Vec<u8>], stops: Vec<String>) -> usize {
    let mut assembler = Assembler::new(stops);
    let (mut shown, mut out) = (0, String::new());
    for piece in pieces {
        out.clear();
        if assembler.push(piece, &mut out) {
            return shown;
        }
        shown += out.len();
    }
    out.clear();
    assembler.finish(&mut out);
    shown + out.len()
}

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
            shown += out.len();
        }
        shown
    });
}
