//! What a [trace](crate::traces) costs its callers: the time to the first token, and the gaps between the others.
//! `cargo run --release -p corral-simulator --example latency` prints a table.

use crate::Machine;
use crate::simulation::{End, Simulation};
use crate::traces::Trace;
use corral_scheduler::{Overlap, PrefillPolicy, SchedulerConfig};
use std::collections::BTreeMap;

/// Most requests that run at once.
const RUNNING: u16 = 32;
/// KV cells, enough for all of them.
const CELLS: u32 = 1 << 18;
/// `n_batch` of llama.cpp's server.
const PEER_STEP_TOKENS: u32 = 2048;

/// A scheduler with room for all traces.
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

/// The figures of a trace.
#[derive(Clone, Copy, Debug)]
pub struct LatencyReport {
    /// Seconds to the first token: the median and the 99th percentile.
    pub first_token: [f64; 2],
    /// Gaps between tokens, as multiples of a step in which all running requests decode: the same.
    pub gap: [f64; 2],
    /// Tokens a second, from the first arrival to the last token.
    pub tokens_per_second: f64,
}

/// Simulates a trace.
///
/// # Panics
///
/// If a request of the trace fails.
#[allow(clippy::cast_precision_loss)]
pub fn measure(config: SchedulerConfig, machine: Machine, trace: &Trace) -> LatencyReport {
    let mut simulation = Simulation::new(config, machine, BTreeMap::new());
    let records = simulation.run(trace.arrivals.clone());
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
    LatencyReport {
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
