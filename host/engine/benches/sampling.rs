//! Samples from rows of 151,936 logits, with our samplers and with llama.cpp's. llama.cpp's work on a
//! list of all candidates, which its server writes out for each row.
//!
//! `make microbench BENCHES=sampling`

#[path = "support/reference_chain.rs"]
mod reference_chain;
#[path = "support/sampling.rs"]
mod support;

use corral_llama::ReferenceChain;
use corral_sampling::{Sampler, Scratch, logprobs, most_likely};
use divan::Bencher;
use reference_chain::reference_chain;
use support::{ROWS, RowSampler, VOCABULARY, full, history, mask, rows, usual};

fn main() {
    divan::main();
}

fn ours(bencher: Bencher, chain: Vec<Sampler>, allowed: Option<&[u32]>) {
    let mut sampler = RowSampler::new(chain);
    bencher.bench_local(|| sampler.sample(allowed));
}

fn theirs(bencher: Bencher, mut chain: ReferenceChain, allowed: Option<&[u32]>) {
    let rows = rows();
    history().into_iter().for_each(|token| chain.accept(token));
    let mut next = 0;
    bencher.bench_local(|| {
        next = (next + 1) % ROWS;
        chain.sample(&rows[next], allowed)
    });
}

fn drawing(chain: &[Sampler]) -> ReferenceChain {
    reference_chain(chain, VOCABULARY, 1).draw(1)
}

mod greedy {
    use super::*;

    #[divan::bench]
    fn corral(bencher: Bencher) {
        ours(bencher, vec![], None);
    }

    #[divan::bench]
    fn llama_cpp(bencher: Bencher) {
        theirs(bencher, ReferenceChain::new(VOCABULARY).greedy(), None);
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
        theirs(bencher, drawing(&usual()), None);
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
        theirs(bencher, drawing(&full()), None);
    }
}

/// One sampler on the whole row, then a draw.
mod one_sampler {
    use super::*;

    const SAMPLERS: [&str; 6] = [
        "temperature",
        "top-p",
        "min-p",
        "typical",
        "dynamic",
        "mirostat",
    ];

    fn sampler(name: &str) -> Vec<Sampler> {
        vec![match name {
            "temperature" => Sampler::Temperature(1.0),
            "top-p" => Sampler::TopP(0.95),
            "min-p" => Sampler::MinP(0.05),
            "typical" => Sampler::TypicalP(0.95),
            "dynamic" => Sampler::DynamicTemperature {
                temperature: 0.8,
                range: 0.5,
                exponent: 1.0,
            },
            _ => Sampler::Mirostat { tau: 5.0, eta: 0.1 },
        }]
    }

    #[divan::bench(args = SAMPLERS)]
    fn corral(bencher: Bencher, name: &str) {
        ours(bencher, sampler(name), None);
    }

    #[divan::bench(args = SAMPLERS)]
    fn llama_cpp(bencher: Bencher, name: &str) {
        let chain = match name {
            "mirostat" => reference_chain(&sampler(name), VOCABULARY, 1),
            _ => drawing(&sampler(name)),
        };
        theirs(bencher, chain, None);
    }
}

/// A draw from about this many allowed tokens.
mod json_mask {
    use super::*;

    #[divan::bench(args = [100, 160_000])]
    fn corral(bencher: Bencher, allowed: usize) {
        ours(bencher, usual(), Some(&mask(allowed)));
    }

    #[divan::bench(args = [100, 160_000])]
    fn llama_cpp(bencher: Bencher, allowed: usize) {
        theirs(bencher, drawing(&usual()), Some(&mask(allowed)));
    }
}

mod logprobs_of_top_20 {
    use super::*;

    #[divan::bench]
    fn corral(bencher: Bencher) {
        let (rows, mut scratch, mut next) = (rows(), Scratch::default(), 0);
        bencher.bench_local(|| {
            next = (next + 1) % ROWS;
            logprobs(&rows[next], 5, 20, &mut scratch)
        });
    }

    /// The softmax of all, then the first 20. llama.cpp's server sorts all.
    #[divan::bench]
    fn llama_cpp(bencher: Bencher) {
        theirs(bencher, drawing(&[]).top_k(20), None);
    }
}

#[divan::bench]
fn top_20(bencher: Bencher) {
    let (rows, mut scratch, mut next) = (rows(), Scratch::default(), 0);
    bencher.bench_local(|| {
        next = (next + 1) % ROWS;
        most_likely(&rows[next], None, 20, &mut scratch)
    });
}

/// The lower bound: reading a row.
#[divan::bench]
fn floor_sum_of_a_row(bencher: Bencher) {
    let (rows, mut next) = (rows(), 0);
    bencher.bench_local(|| {
        next = (next + 1) % ROWS;
        let mut lanes = [0.0; 16];
        for part in rows[next].as_chunks::<16>().0 {
            for (lane, value) in lanes.iter_mut().zip(part) {
                *lane += value;
            }
        }
        lanes.iter().sum::<f32>()
    });
}
