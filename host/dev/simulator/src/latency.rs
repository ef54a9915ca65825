//! What a load costs its callers: the time to the first token, and the gaps between the others.

use crate::Machine;
use crate::simulation::{Arrival, End, Simulation};
use corral_scheduler::{Latency, Overlap, PrefillPolicy, SchedulerConfig};
use std::collections::BTreeMap;

/// Most requests that run at once.
const RUNNING: u16 = 32;
/// KV cells, enough for all of them.
const CELLS: u32 = 1 << 18;
/// `n_batch` of llama.cpp's server.
const PEER_STEP_TOKENS: u32 = 2048;

/// A scheduler with room for any load.
pub fn config() -> SchedulerConfig {
    SchedulerConfig {
        seq_ids: RUNNING,
        top_k_seq_ids: 0,
        cells: CELLS,
        max_step_tokens: 512,
        max_compaction_tokens: u32::MAX,
        max_queue: 4096,
        max_tenant_queue: 4096,
        prefill: PrefillPolicy::Budgeted,
        prefix_cache: true,
        can_truncate: true,
        swap: false,
        offload_prefixes: false,
        max_drafts: 0,
        overlap: Overlap::Off,
    }
}

/// The same as llama.cpp's server computes prompts: each step has a token of every decoding request, then whole prompts
/// in the order of their slots, up to `n_batch` tokens.
pub fn peer() -> SchedulerConfig {
    SchedulerConfig {
        prefill: PrefillPolicy::Unbudgeted,
        max_step_tokens: PEER_STEP_TOKENS,
        ..config()
    }
}

/// Eight clients, each of which sends its next request when it has its answer: the requests of `corral-bench latency`.
pub fn mixed(requests: usize, latency: Latency) -> Vec<Arrival> {
    let of = |index: usize| Arrival {
        latency,
        after: index.checked_sub(8),
        prompt: if index.is_multiple_of(4) { 600 } else { 32 },
        max_tokens: 40,
        ends_after: 40,
        ..Arrival::default()
    };
    (0..requests).map(of).collect()
}

/// The figures of a load.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Seconds to the first token: the median and the 99th percentile.
    pub first_token: [f64; 2],
    /// Gaps between tokens, as multiples of a step in which all running requests decode: the same.
    pub gap: [f64; 2],
    /// Tokens a second, from the first arrival to the last token.
    pub tokens_per_second: f64,
}

/// Simulates a load.
///
/// # Panics
///
/// If a request fails.
#[allow(clippy::cast_precision_loss)]
pub fn measure(config: SchedulerConfig, machine: Machine, load: Vec<Arrival>) -> Figures {
    let mut simulation = Simulation::new(config, machine, BTreeMap::new());
    let records = simulation.run(load);
    let mut first = Vec::new();
    let (mut tokens, mut end) = (0, 0.0_f64);
    for record in &records {
        assert_eq!(record.end, End::Finished);
        first.push((record.tokens[0] - record.arrived).as_secs_f64());
        tokens += record.tokens.len();
        end = end.max(record.ended.as_secs_f64());
    }
    let mut gaps = Vec::new();
    for step in &simulation.steps {
        let alone = machine.fixed + machine.row * step.running as f64;
        let gap = step.took.as_secs_f64() / alone;
        gaps.extend((0..step.rows).map(|_| gap));
    }
    Figures {
        first_token: quantiles(first),
        gap: quantiles(gaps),
        tokens_per_second: tokens as f64 / end,
    }
}

/// The median and the 99th percentile.
fn quantiles(mut values: Vec<f64>) -> [f64; 2] {
    values.sort_by(f64::total_cmp);
    [0.5, 0.99].map(|at| {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss
        )]
        let index = (at * values.len() as f64) as usize;
        values
            .get(index.min(values.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0.0)
    })
}
