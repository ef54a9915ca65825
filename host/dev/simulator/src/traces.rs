//! Requests in the shapes of published traces, and of the mixed bench.
//!
//! None of the traces is replayed: lengths are drawn from log-normal distributions with the medians, and where known the
//! 90th percentiles, that their authors report. The same seed gives the same requests.
//!
//! The rates keep the [default machine](crate::Machine) busy for most of the time. Real arrivals come in bursts
//! (`BurstGPT`, 2024; Mooncake, 2025), which Poisson's do not show.

use crate::pseudo_random;
use crate::simulation::Arrival;
use corral_scheduler::Latency;
use std::time::Duration;

/// Requests of one shape.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Its name.
    pub name: &'static str,
    /// The requests.
    pub arrivals: Vec<Arrival>,
}

impl Trace {
    /// The same requests with these targets.
    #[must_use]
    pub fn with_latency(mut self, latency: Latency) -> Self {
        for arrival in &mut self.arrivals {
            arrival.latency = latency;
        }
        self
    }
}

/// All traces.
pub fn all() -> Vec<Trace> {
    vec![mixed(160), chat(200), rag(150), agents(6, 12), batch(64)]
}

/// Pseudo-random numbers of a trace.
struct Source {
    seed: u64,
    drawn: u64,
}

impl Source {
    fn new(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }

    /// Above 0, at most 1.
    #[allow(clippy::cast_precision_loss)]
    fn uniform(&mut self) -> f64 {
        self.drawn += 1;
        let bits = pseudo_random((self.seed, self.drawn)) >> 11;
        (bits + 1) as f64 / (1_u64 << 53) as f64
    }

    /// A time between two arrivals of a Poisson process.
    fn pause(&mut self, mean_seconds: f64) -> Duration {
        Duration::from_secs_f64(-mean_seconds * self.uniform().ln())
    }

    /// A log-normal number of tokens, by Box and Muller: half are below `median`, and nine of ten below `p90`.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn tokens(&mut self, (median, p90): (f64, f64), most: u32) -> u32 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.uniform()).cos();
        let sigma = (p90 / median).ln() / 1.2816;
        let tokens = median * (sigma * normal).exp();
        (tokens as u32).clamp(1, most)
    }
}

fn request(at: Duration, prompt: u32, output: u32) -> Arrival {
    Arrival {
        at,
        prompt,
        max_tokens: output,
        ends_after: output,
        ..Arrival::default()
    }
}

/// Eight clients, each of which sends its next request when it has its answer: the requests of `corral-bench latency`.
pub fn mixed(requests: usize) -> Trace {
    let of = |index: usize| Arrival {
        after: index.checked_sub(8),
        ..request(
            Duration::ZERO,
            if index.is_multiple_of(4) { 600 } else { 32 },
            40,
        )
    };
    Trace {
        name: "mixed",
        arrivals: (0..requests).map(of).collect(),
    }
}

/// Independent requests that arrive every so many seconds.
fn poisson(
    name: &'static str,
    requests: usize,
    seconds: f64,
    prompt: (f64, f64),
    output: (f64, f64),
) -> Trace {
    let mut source = Source::new(requests as u64);
    let mut at = Duration::ZERO;
    let arrivals = (0..requests).map(|_| {
        at += source.pause(seconds);
        let prompt = source.tokens(prompt, 4_000);
        request(at, prompt, source.tokens(output, 1_000))
    });
    Trace {
        name,
        arrivals: arrivals.collect(),
    }
}

/// Short questions, long answers: `ShareGPT` as in the paper on vLLM (2023), 161 tokens in and 338 out on average. The
/// spread is a guess.
pub fn chat(requests: usize) -> Trace {
    poisson("chat", requests, 5.0, (70.0, 400.0), (230.0, 750.0))
}

/// Prompts with some retrieved passages, and short answers: lengths of Azure's conversations of 2023, as in the paper on
/// Splitwise (2024), medians of 1,020 tokens in and 129 out. The spread is a guess.
pub fn rag(requests: usize) -> Trace {
    poisson("rag", requests, 9.0, (1_020.0, 2_500.0), (129.0, 400.0))
}

/// Agents with `turns` turns each. A turn continues the sequence of the one before, after a tool call of some seconds.
/// Lengths of coding agents in `TraceLab` (2026): medians of 857 new tokens in a turn (90th percentile 5,342) and 252 out
/// (1,671, here at most 400). Histories start at 4,000 tokens, not at their 126,000, which two cores can't compute.
pub fn agents(agents: usize, turns: usize) -> Trace {
    let mut source = Source::new(9);
    let mut arrivals = Vec::new();
    for turn in 0..turns {
        for agent in 0..agents {
            let earlier = arrivals.len().checked_sub(agents);
            let (at, prompt) = match turn {
                0 => (Duration::from_secs(20 * agent as u64), 4_000),
                _ => (source.pause(30.0), source.tokens((857.0, 5_342.0), 8_000)),
            };
            let output = source.tokens((252.0, 1_671.0), 400);
            arrivals.push(Arrival {
                after: earlier,
                continued: earlier.map(|earlier| (earlier, u32::MAX)),
                ..request(at, prompt, output)
            });
        }
    }
    Trace {
        name: "agents",
        arrivals,
    }
}

/// Many requests at once: articles of about 800 tokens with summaries of 60, by the lengths of CNN/Daily Mail.
pub fn batch(requests: usize) -> Trace {
    let mut source = Source::new(7);
    let of = |_| {
        let prompt = source.tokens((800.0, 1_500.0), 4_000);
        request(Duration::ZERO, prompt, source.tokens((60.0, 110.0), 400))
    };
    Trace {
        name: "batch",
        arrivals: (0..requests).map(of).collect(),
    }
}
