//! The engine's hot paths, to have their instructions counted: `make instructions`. What they work on is what the
//! timing benches work on, which stand beside this.

#[path = "support/instruction_count.rs"]
mod instruction_count;
#[path = "support/sampling.rs"]
mod sampling;
#[path = "support/text.rs"]
mod text;

use corral_sampling::Sampler;
use instruction_count::{Path, done};
use sampling::RowSampler;
use std::hint::black_box;
use text::TOKENS;

const PATHS: &[Path] = &[
    Path {
        name: "sample-greedy",
        operations: 64,
        run: |times, with| sample(vec![], None, times, with),
    },
    Path {
        name: "sample-top-k-top-p-temperature",
        operations: 64,
        run: |times, with| sample(sampling::usual(), None, times, with),
    },
    Path {
        name: "sample-top-k-min-p-temperature",
        operations: 64,
        run: |times, with| {
            let chain = vec![
                Sampler::TopK(40),
                Sampler::MinP(0.05),
                Sampler::Temperature(0.8),
            ];
            sample(chain, None, times, with);
        },
    },
    Path {
        name: "sample-nearly-everything",
        operations: 64,
        run: |times, with| sample(sampling::full(), None, times, with),
    },
    Path {
        name: "sample-100-allowed",
        operations: 64,
        run: |times, with| sample(sampling::usual(), Some(100), times, with),
    },
    Path {
        name: "text-of-words",
        operations: 10_000,
        run: |tokens, with| show(&text::words(), 0, tokens, with),
    },
    Path {
        name: "text-of-words-4-stops",
        operations: 10_000,
        run: |tokens, with| show(&text::words(), 4, tokens, with),
    },
    Path {
        name: "text-of-bytes-4-stops",
        operations: 10_000,
        run: |tokens, with| show(&text::bytes(), 4, tokens, with),
    },
];

fn main() {
    instruction_count::main(PATHS);
}

/// A token from a row of a large vocabulary, of which about this many tokens are allowed.
fn sample(chain: Vec<Sampler>, allowed: Option<usize>, times: u32, with: bool) {
    let mask = allowed.map(sampling::mask);
    let mut sampler = RowSampler::new(chain);
    for _ in 0..done(times, with) {
        let token = black_box(sampler.sample(mask.as_deref()));
        assert!(token.is_some(), "a token is left");
    }
}

/// Text from the bytes of tokens.
fn show(pieces: &[Vec<u8>], stops: usize, tokens: u32, with: bool) {
    let stops = text::stops(stops);
    for _ in 0..done(tokens, with) as usize / TOKENS {
        black_box(text::show(black_box(pieces), stops.clone()));
    }
}
