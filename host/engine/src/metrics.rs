//! The engine's counters.
//!
//! One exact identity holds whenever nothing runs, and tests rely on it:
//! `tokens_decoded = prompt_tokens - cached_tokens + generated_tokens - finished - uncomputed_tokens +
//! recomputed_tokens + abandoned_tokens + rejected_drafts + looked_tokens`, since the last token of a sequence is never
//! computed, nor are those that were certain with it at once. (`prompt_tokens`, `cached_tokens`,
//! `generated_tokens`, `uncomputed_tokens` and `recomputed_tokens` count sequences that finished,
//! `abandoned_tokens` what was computed for those that were cancelled, expired or failed, and
//! `rejected_drafts` those of all. A draft that was right is a token like any other. `looked_tokens` are
//! those that were new to sequences that ended with a distribution: all of them are computed.)

use corral_constraint::GrammarCounters;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What sort of number a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only ever grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// One number of a distribution: the metric's name ends in `_bucket`, `_sum` or `_count`, and
    /// what stands before it names the distribution.
    Histogram,
}

/// A number with its name and meaning, in Prometheus's terms.
#[derive(Clone, Debug)]
pub struct Metric {
    /// Name; counters end in `_total`, seconds in `_seconds` or `_seconds_total`.
    pub name: &'static str,
    /// What it counts, in one line.
    pub help: &'static str,
    /// Sort.
    pub kind: Kind,
    /// Labels beside those that the exporter adds.
    pub labels: Vec<(&'static str, String)>,
    /// The number now.
    pub value: f64,
}

macro_rules! counters {
    (
        $(
            $(#[doc = $help:literal])+
            $field:ident: $kind:ident = $name:literal
                $(/ $scale:literal)? $({$label:literal = $text:literal})?,
        )*
        histograms:
        $($(#[doc = $note:literal])+ $distribution:ident = $family:literal in $bounds:ident,)*
    ) => {
        /// The engine's counters, written by its thread and read by anyone.
        #[derive(Debug)]
        pub struct Counters {
            $($(#[doc = $help])+ pub $field: AtomicU64,)*
            $($(#[doc = $note])+ pub $distribution: Histogram<{ $bounds.len() + 1 }>,)*
        }

        impl Default for Counters {
            fn default() -> Self {
                Self {
                    $($field: AtomicU64::new(0),)*
                    $($distribution: Histogram::new(&$bounds),)*
                }
            }
        }

        impl Counters {
            /// All counters as they are now.
            pub fn list(&self) -> Vec<Metric> {
                let mut list = vec![$(Metric {
                    name: $name,
                    help: concat!($($help),+).trim_ascii(),
                    kind: Kind::$kind,
                    labels: vec![$(($label, $text.to_owned()))?],
                    #[allow(clippy::cast_precision_loss)]
                    value: self.$field.load(Ordering::Relaxed) as f64 $(/ $scale)?,
                },)*];
                $(self.$distribution.list(
                    [
                        concat!($family, "_bucket"),
                        concat!($family, "_sum"),
                        concat!($family, "_count"),
                    ],
                    concat!($($note),+).trim_ascii(),
                    &mut list,
                );)*
                list
            }
        }
    };
}

counters! {
    /// Steps decoded.
    steps: Counter = "corral_engine_steps_total",
    /// Steps that failed and were tried again smaller.
    failed_steps: Counter = "corral_engine_steps_failed_total",
    /// Rows of all steps: a sequence's part of a step is a row.
    rows: Counter = "corral_engine_rows_total",
    /// Rows that generate: the next token of a sequence that is past its prompt, with its drafts if it has any.
    decode_rows: Counter = "corral_engine_decode_rows_total",
    /// Rows that read a part of a prompt.
    prefill_rows: Counter = "corral_engine_prefill_rows_total",
    /// Prompt tokens that were read, and generated ones that were certain without being sampled.
    prefill_tokens: Counter = "corral_engine_prefill_tokens_total",
    /// Sequences that generate and were left out of a step; only after a step failed.
    skipped_rows: Counter = "corral_engine_decode_rows_skipped_total",
    /// Sequences that generate and were left out of a step since it was the turn of another adapter.
    off_turn_rows: Counter = "corral_engine_adapter_deferred_rows_total",
    /// Changes from one adapter, or none, to another between two steps.
    adapter_changes: Counter = "corral_engine_adapter_changes_total",
    /// Seconds by which a change of adapters is expected to make a step longer; 0 before any was measured.
    adapter_change_nanos: Gauge = "corral_engine_adapter_change_seconds" / 1e9,
    /// Steps in which some generated and others read prompts.
    mixed_steps: Counter = "corral_engine_mixed_steps_total",
    /// Prompt tokens read in those steps and ahead of them.
    mixed_prefill_tokens: Counter = "corral_engine_mixed_prefill_tokens_total",
    /// Prompt tokens that the step-time budget allowed in those steps, with those that fill a tile.
    mixed_budget_tokens: Counter = "corral_engine_mixed_prefill_budget_tokens_total",
    /// Steps that read prompts alone while rows were sampled, or while callers that sample themselves were waited for.
    ahead_steps: Counter = "corral_engine_overlapped_steps_total",
    /// Prompt tokens read in those steps.
    ahead_tokens: Counter = "corral_engine_overlapped_prefill_tokens_total",
    /// Bytes of logits that steps copied for sampling: the likeliest candidates alone, or whole rows.
    top_bytes: Counter = "corral_engine_logits_copied_bytes_total" {"rows" = "top"},
    /// Bytes of logits that steps copied for sampling: the likeliest candidates alone, or whole rows.
    whole_bytes: Counter = "corral_engine_logits_copied_bytes_total" {"rows" = "whole"},
    /// Rows of which the likeliest candidates did not tell enough, so that the last token was computed again.
    unsettled: Counter = "corral_engine_device_top_k_misses_total",
    /// Tokens given to llama_decode.
    tokens_decoded: Counter = "corral_engine_computed_tokens_total",
    /// Prompt tokens of the sequences that finished.
    prompt_tokens: Counter = "corral_engine_prompt_tokens_total",
    /// Tokens generated by the sequences that finished.
    generated_tokens: Counter = "corral_engine_generated_tokens_total",
    /// Prompt tokens of the sequences that finished that were in the prefix cache and not computed.
    cached_tokens: Counter = "corral_engine_prefix_cache_hits_tokens_total",
    /// Tokens of the sequences that finished that were computed again: after a preemption, since their state was lost, or to see all logits.
    recomputed_tokens: Counter = "corral_engine_recomputed_tokens_total",
    /// Tokens of the sequences that finished that were certain at their end and not computed, beside the last one of each.
    uncomputed_tokens: Counter = "corral_engine_forced_tokens_uncomputed_total",
    /// Guessed tokens that were computed and turned out right.
    accepted_drafts: Counter = "corral_engine_draft_tokens_accepted_total",
    /// Guessed tokens that were computed for nothing: they turned out wrong, or came after the end.
    rejected_drafts: Counter = "corral_engine_draft_tokens_rejected_total",
    /// Tokens computed for sequences that were cancelled, expired or failed, but for rejected drafts.
    abandoned_tokens: Counter = "corral_engine_discarded_tokens_total",
    /// Generations that finished.
    finished: Counter = "corral_engine_requests_finished_total",
    /// Distributions that were shown to callers which sample themselves.
    looks: Counter = "corral_engine_next_token_requests_total",
    /// Tokens that were computed for those, but for those that were computed again.
    looked_tokens: Counter = "corral_engine_next_token_computed_tokens_total",
    /// Times that a sampling plugin was asked for a token.
    questions: Counter = "corral_engine_external_sampler_calls_total",
    /// Seconds from those questions to their answers.
    question_nanos: Counter = "corral_engine_external_sampler_seconds_total" / 1e9,
    /// Sequences whose reader went away, or that ran when the engine was shut down.
    cancelled: Counter = "corral_engine_requests_cancelled_total",
    /// Sequences that failed.
    failed: Counter = "corral_engine_requests_failed_total",
    /// Sequences whose deadline passed, or whose turn did not come in time.
    expired: Counter = "corral_engine_requests_expired_total",
    /// Sequences refused, most often since too many wait.
    refused: Counter = "corral_engine_requests_refused_total",
    /// Sequences that wait for a sequence id or cells.
    waiting: Gauge = "corral_engine_requests_waiting",
    /// Sequences that hold a sequence id.
    running: Gauge = "corral_engine_requests_running",
    /// Sequence ids of sequences that run.
    ids_used: Gauge = "corral_engine_sequence_ids_used",
    /// Sequence ids of the prefix cache and of idle sequences; had for the asking.
    ids_cached: Gauge = "corral_engine_sequence_ids_cached",
    /// Seconds after which a request that is refused now is told to come back.
    retry_after: Gauge = "corral_engine_retry_after_seconds",
    /// Cells that attention ran over in the last step; 0 when idle.
    n_kv: Gauge = "corral_engine_attention_cells",
    /// Cells that hold a position of a running sequence; one that several share counts once.
    cells_used: Gauge = "corral_engine_kv_cells_used",
    /// Cells of the prefix cache and of idle sequences alone; had for the asking.
    cells_cached: Gauge = "corral_engine_kv_cells_cached",
    /// Cells used by running sequences or promised to them.
    cells_reserved: Gauge = "corral_engine_kv_cells_reserved",
    /// Cells that llama.cpp still holds for sequence ids that nobody has, as llama.cpp itself said when the engine last went idle; anything but 0 is a bug.
    cells_leaked: Gauge = "corral_engine_kv_cells_leaked",
    /// Entries of the prefix cache dropped: to make room in the cells or in the memory for prefixes, or since it cost more to keep them than to compute them again.
    evicted: Counter = "corral_engine_prefix_cache_evictions_total",
    /// Sequences put aside to make room.
    spilled: Counter = "corral_engine_swap_outs_total",
    /// Entries of the prefix cache put aside, since they made steps longer in the cells.
    prefixes: Counter = "corral_engine_prefix_offloads_total",
    /// Sequences and prefixes brought back after they were put aside.
    restored: Counter = "corral_engine_swap_ins_total",
    /// Sequences that were put aside and could not be brought back: they are computed again.
    lost: Counter = "corral_engine_swap_in_failures_total",
    /// Running sequences that gave way to others and went back into the queue.
    preempted: Counter = "corral_engine_preemptions_total",
    /// Sequences moved to lower cells, since what lies high makes attention long for all.
    relocated: Counter = "corral_engine_compactions_total",
    /// Bytes of states written to disk.
    spill_written: Counter = "corral_engine_swap_disk_written_bytes_total",
    /// Bytes of states read back from disk.
    spill_read: Counter = "corral_engine_swap_disk_read_bytes_total",
    /// Bytes of the states of prefixes put aside.
    prefix_ram_bytes: Gauge = "corral_engine_prefix_offload_ram_bytes",
    /// Bytes of the states of sequences put aside in memory.
    spill_ram_bytes: Gauge = "corral_engine_swap_ram_bytes",
    /// Bytes of states put aside on disk.
    spill_disk_bytes: Gauge = "corral_engine_swap_disk_bytes",
    /// Times the engine thread woke up from waiting for work.
    wake_ups: Counter = "corral_engine_wakeups_total",
    /// Seconds that sequences waited until they were taken up, or gave up waiting.
    queue_nanos: Counter = "corral_engine_request_queue_time_seconds_total" / 1e9,
    /// Seconds from being taken up to the first token, or to the end if that came first.
    prefill_nanos: Counter = "corral_engine_request_prefill_time_seconds_total" / 1e9,
    /// Seconds from the first token to the end, over all sequences.
    decode_nanos: Counter = "corral_engine_request_decode_time_seconds_total" / 1e9,
    /// Seconds inside llama_decode, and until a device is done.
    step_nanos: Counter = "corral_engine_compute_seconds_total" / 1e9,
    /// Seconds of processor time that the engine's thread itself took inside llama_decode; the other compute threads' come on top.
    step_processor_nanos: Counter = "corral_engine_compute_cpu_seconds_total" / 1e9,
    /// Seconds spent sampling and delivering tokens.
    sample_nanos: Counter = "corral_engine_sampling_seconds_total" / 1e9,
    /// Seconds that what was generated lay until its reader took it.
    delivery_nanos: Counter = "corral_engine_delivery_seconds_total" / 1e9,
    /// Requests for embeddings that got their vectors.
    embed_finished: Counter = "corral_engine_embedding_requests_finished_total",
    /// Requests for embeddings refused, since too much waits.
    embed_refused: Counter = "corral_engine_embedding_requests_refused_total",
    /// Requests for embeddings that nobody waited for any more, or that were open when the engine was shut down.
    embed_cancelled: Counter = "corral_engine_embedding_requests_cancelled_total",
    /// Requests for embeddings whose deadline passed, or whose turn did not come in time.
    embed_expired: Counter = "corral_engine_embedding_requests_expired_total",
    /// Requests for embeddings that failed.
    embed_failed: Counter = "corral_engine_embedding_requests_failed_total",
    /// Requests for embeddings that wait or are being computed.
    embed_open: Gauge = "corral_engine_embedding_requests_in_flight",
    /// Inputs of the requests that got their vectors.
    embed_inputs: Counter = "corral_engine_embedding_inputs_total",
    /// Tokens of those inputs.
    embed_tokens: Counter = "corral_engine_embedding_tokens_total",
    /// Tokens computed for embeddings: those of the finished requests, and what was abandoned or computed again after a failure.
    embed_computed: Counter = "corral_engine_embedding_computed_tokens_total",
    /// Steps of the embedding context.
    embed_steps: Counter = "corral_engine_embedding_steps_total",
    /// Steps of the embedding context that failed; their inputs were tried again one by one.
    embed_failed_steps: Counter = "corral_engine_embedding_steps_failed_total",
    /// Whether there is an embedding context now: made for the first request, freed when idle.
    embed_contexts: Gauge = "corral_engine_embedding_contexts",
    /// Times the embedding thread woke up from waiting for work.
    embed_wake_ups: Counter = "corral_engine_embedding_wakeups_total",
    /// Seconds that requests for embeddings waited for their first turn, or until they ended without one.
    embed_queue_nanos: Counter = "corral_engine_embedding_request_queue_time_seconds_total" / 1e9,
    /// Seconds computing steps of the embedding context.
    embed_step_nanos: Counter = "corral_engine_embedding_compute_seconds_total" / 1e9,
    histograms:
    /// Seconds of a step: computation, sampling and delivery. Not of one that runs while rows are sampled.
    step_duration = "corral_engine_step_duration_seconds" in SECONDS,
    /// Seconds between two tokens of a sequence; those that come at once count as one.
    gap_seconds = "corral_engine_inter_token_latency_seconds" in SECONDS,
    /// Rows of a step.
    step_rows = "corral_engine_step_rows" in COUNTS,
    /// Prompt tokens in a step.
    step_prefill = "corral_engine_step_prefill_tokens" in COUNTS,
}

const SECONDS: [f64; 16] = [
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048,
    4.096, 8.192, 16.384,
];
const COUNTS: [f64; 11] = [
    0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0,
];

/// A distribution over fixed buckets, the last one without an end. Written by one thread.
#[derive(Debug)]
pub struct Histogram<const BUCKETS: usize> {
    bounds: &'static [f64],
    /// Observations in each bucket.
    counts: [AtomicU64; BUCKETS],
    /// The sum of all, as the bits of an f64.
    sum: AtomicU64,
}

impl<const BUCKETS: usize> Histogram<BUCKETS> {
    fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            sum: AtomicU64::new(0),
        }
    }

    /// Adds an observation.
    pub fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        if let Some(count) = self.counts.get(bucket) {
            add(count, 1);
        }
        let sum = f64::from_bits(self.sum.load(Ordering::Relaxed)) + value;
        self.sum.store(sum.to_bits(), Ordering::Relaxed);
    }

    fn list(&self, names: [&'static str; 3], help: &'static str, list: &mut Vec<Metric>) {
        let metric = |name, labels, value| Metric {
            name,
            help,
            kind: Kind::Histogram,
            labels,
            value,
        };
        let mut total = 0.0;
        for (i, count) in self.counts.iter().enumerate() {
            #[allow(clippy::cast_precision_loss)]
            let count = count.load(Ordering::Relaxed) as f64;
            total += count;
            let bound = self.bounds.get(i);
            let bound = bound.map_or_else(|| "+Inf".to_owned(), f64::to_string);
            list.push(metric(names[0], vec![("le", bound)], total));
        }
        let sum = f64::from_bits(self.sum.load(Ordering::Relaxed));
        list.push(metric(names[1], Vec::new(), sum));
        list.push(metric(names[2], Vec::new(), total));
    }
}

/// The metrics of the grammar compiler.
#[allow(clippy::cast_precision_loss)]
pub fn grammar_metrics(counters: &GrammarCounters) -> [Metric; 5] {
    let metric = |name, help, kind, value: u64| Metric {
        name,
        help,
        kind,
        labels: Vec::new(),
        value: value as f64,
    };
    [
        metric(
            "corral_engine_grammar_cache_hits_total",
            "Compilations that the grammar cache saved.",
            Kind::Counter,
            counters.hits,
        ),
        metric(
            "corral_engine_grammar_compilations_total",
            "Grammars compiled.",
            Kind::Counter,
            counters.compiled,
        ),
        metric(
            "corral_engine_grammar_compilation_failures_total",
            "Grammars that could not be compiled.",
            Kind::Counter,
            counters.failed,
        ),
        metric(
            "corral_engine_grammar_cache_entries",
            "Compiled grammars in the cache.",
            Kind::Gauge,
            counters.cached,
        ),
        metric(
            "corral_engine_grammar_cache_bytes",
            "Estimated memory of the cached grammars, in bytes.",
            Kind::Gauge,
            counters.cached_bytes,
        ),
    ]
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// Adds a duration to a counter of nanoseconds.
pub fn add_time(counter: &AtomicU64, time: Duration) {
    add(counter, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

/// Sets a gauge of nanoseconds.
pub fn set_time(gauge: &AtomicU64, time: Duration) {
    set(gauge, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

/// Reads a counter or gauge.
pub fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Sets a gauge.
pub fn set(gauge: &AtomicU64, value: u64) {
    gauge.store(value, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_up_to_each_bound_and_sums() {
        let counters = Counters::default();
        for value in [0.0005, 0.003, 0.003, 99.0] {
            counters.gap_seconds.observe(value);
        }
        let list = counters.list();
        let find = |name: &str, bound: &str| {
            let matches =
                |m: &&Metric| m.name == name && m.labels.iter().all(|(_, label)| label == bound);
            list.iter().find(matches).expect("it is listed").value
        };
        let bucket = "corral_engine_inter_token_latency_seconds_bucket";
        assert_eq!(find(bucket, "0.0005"), 1.0);
        assert_eq!(find(bucket, "0.002"), 1.0);
        assert_eq!(find(bucket, "0.004"), 3.0);
        assert_eq!(find(bucket, "16.384"), 3.0);
        assert_eq!(find(bucket, "+Inf"), 4.0);
        assert_eq!(
            find("corral_engine_inter_token_latency_seconds_count", ""),
            4.0
        );
        let sum = find("corral_engine_inter_token_latency_seconds_sum", "");
        assert!((sum - 99.0065).abs() < 1e-9);
    }
}
