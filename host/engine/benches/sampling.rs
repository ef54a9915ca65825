//! A token from a row of 151,936 logits, ours beside llama.cpp's samplers on the same row. Theirs
//! work on a list of all candidates, which is written out for each row, as its server does.
//!
//! `make microbench BENCHES=sampling`

#[path = "support/sampling.rs"]
mod support;

use corral_engine::reference::Reference;
use corral_engine::sampling::{Sampler, Scratch, logprobs, top};
use divan::Bencher;
use support::{ROWS, Turns, VOCABULARY, full, history, mask, rows, usual};

fn main() {
    divan::main();
}

fn ours(bencher: Bencher, chain: Vec<Sampler>, allowed: Option<&[u32]>) {
    let mut turns = Turns::new(chain);
    bencher.bench_local(|| turns.sample(allowed));
}

fn theirs(bencher: Bencher, mut chain: Reference, allowed: Option<&[u32]>) {
    let rows = rows();
    history().into_iter().for_each(|token| chain.accept(token));
    let mut turn = 0;
    bencher.bench_local(|| {
        turn = (turn + 1) % ROWS;
        chain.sample(&rows[turn], allowed)
    });
}

fn reference(chain: &[Sampler]) -> Reference {
    Reference::new(chain, VOCABULARY, 1, None).drawing(1)
}

mod greedy {
    use super::*;

    #[divan::bench]
    fn corral(bencher: Bencher) {
        ours(bencher, vec![], None);
    }

    #[divan::bench]
    fn llama_cpp(bencher: Bencher) {
        theirs(
            bencher,
            Reference::new(&[], VOCABULARY, 1, None).greedy(),
            None,
        );
    }
}

mod top_k_top_p_temperature {
    use super::*;

    #[divan::bench]
    fn corral(bencher: Bencher) {
        ours(bencher, usual(), None);
    }

    #[divan::bench]
    fn llama_cpp(bencher: Bencher) {
        theirs(bencher, reference(&usual()), None);
    }
}

mod full_chain {
    use super::*;

    #[divan::bench]
    fn corral(bencher: Bencher) {
        ours(bencher, full(), None);
    }

    #[divan::bench]
    fn llama_cpp(bencher: Bencher) {
        theirs(bencher, reference(&full()), None);
    }
}

/// One link on the whole row, then a draw.
mod one_link {
    use super::*;

    const LINKS: [&str; 6] = [
        "temperature",
        "top-p",
        "min-p",
        "typical",
        "dynamic",
        "mirostat",
    ];

    fn link(name: &str) -> Vec<Sampler> {
        vec![match name {
            "temperature" => Sampler::Temperature(1.0),
            "top-p" => Sampler::TopP(0.95),
            "min-p" => Sampler::MinP(0.05),
            "typical" => Sampler::Typical(0.95),
            "dynamic" => Sampler::DynamicTemperature {
                temperature: 0.8,
                range: 0.5,
                exponent: 1.0,
            },
            _ => Sampler::Mirostat { tau: 5.0, eta: 0.1 },
        }]
    }

    #[divan::bench(args = LINKS)]
    fn corral(bencher: Bencher, name: &str) {
        ours(bencher, link(name), None);
    }

    #[divan::bench(args = LINKS)]
    fn llama_cpp(bencher: Bencher, name: &str) {
        let chain = Reference::new(&link(name), VOCABULARY, 1, None);
        let chain = if name == "mirostat" {
            chain
        } else {
            chain.drawing(1)
        };
        theirs(bencher, chain, None);
    }
}

/// About so many tokens are allowed.
mod json_mask {
    use super::*;

    #[divan::bench(args = [100, 160_000])]
    fn corral(bencher: Bencher, allowed: usize) {
        ours(bencher, usual(), Some(&mask(allowed)));
    }

    #[divan::bench(args = [100, 160_000])]
    fn llama_cpp(bencher: Bencher, allowed: usize) {
        theirs(bencher, reference(&usual()), Some(&mask(allowed)));
    }
}

mod logprobs_of_top_20 {
    use super::*;

    #[divan::bench]
    fn corral(bencher: Bencher) {
        let (rows, mut scratch, mut turn) = (rows(), Scratch::default(), 0);
        bencher.bench_local(|| {
            turn = (turn + 1) % ROWS;
            logprobs(&rows[turn], 5, 20, &mut scratch)
        });
    }

    /// The softmax of all, then the first 20; its server sorts all.
    #[divan::bench]
    fn llama_cpp(bencher: Bencher) {
        let draw = Reference::new(&[], VOCABULARY, 1, None).drawing(1);
        theirs(bencher, draw.then(&[Sampler::TopK(20)], VOCABULARY), None);
    }
}

#[divan::bench]
fn top_20(bencher: Bencher) {
    let (rows, mut scratch, mut turn) = (rows(), Scratch::default(), 0);
    bencher.bench_local(|| {
        turn = (turn + 1) % ROWS;
        top(&rows[turn], None, 20, &mut scratch)
    });
}

/// What reading a row costs at least.
#[divan::bench]
fn floor_sum_of_a_row(bencher: Bencher) {
    let (rows, mut turn) = (rows(), 0);
    bencher.bench_local(|| {
        turn = (turn + 1) % ROWS;
        let mut lanes = [0.0; 16];
        for part in rows[turn].as_chunks::<16>().0 {
            for (lane, value) in lanes.iter_mut().zip(part) {
                *lane += value;
            }
        }
        lanes.iter().sum::<f32>()
    });
}
