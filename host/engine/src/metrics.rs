//! The engine's metrics.
//!
//! One identity holds exactly whenever the engine is idle; tests check it:
//!
//! ```text
//! computed_tokens = prompt_tokens - cached_tokens + generated_tokens - finished - uncomputed_tokens
//!                 + recomputed_tokens + discarded_tokens + rejected_drafts + next_token_computed_tokens
//! ```
//!
//! The last token of a generation is never computed, nor are the forced tokens that end it. `prompt_tokens`,
//! `cached_tokens`, `generated_tokens`, `uncomputed_tokens` and `recomputed_tokens` count finished requests,
//! `discarded_tokens` counts requests that were canceled, expired or failed, and `rejected_drafts` counts all. An
//! accepted draft is a token like any other.

use crate::histogram::Histogram;
use crate::metric_sample::{Metric, MetricKind};
use corral_constraint::GrammarCounters;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

macro_rules! metrics {
    (
        $(
            $(#[doc = $help:literal])+
            $field:ident: $kind:ident = $name:literal
                $(/ $scale:literal)? $({$label:literal = $label_value:literal})?,
        )*
        histograms:
        $(
            $(#[doc = $histogram_help:literal])+
            $histogram_field:ident = $histogram_name:literal in $bounds:ident,
        )*
    ) => {
        /// The engine's metrics, written by its threads and readable at any time.
        #[derive(Debug)]
        pub struct EngineMetrics {
            $($(#[doc = $help])+ pub $field: AtomicU64,)*
            $(
                $(#[doc = $histogram_help])+
                pub $histogram_field: Histogram,
            )*
        }

        impl Default for EngineMetrics {
            fn default() -> Self {
                Self {
                    $($field: AtomicU64::new(0),)*
                    $($histogram_field: Histogram::new(&$bounds),)*
                }
            }
        }

        impl EngineMetrics {
            /// The current samples.
            pub fn samples(&self) -> Vec<Metric> {
                let mut samples = vec![$(Metric {
                    name: $name,
                    help: concat!($($help),+).trim_ascii(),
                    kind: MetricKind::$kind,
                    labels: vec![$(($label, $label_value.to_owned()))?],
                    #[allow(clippy::cast_precision_loss)]
                    value: self.$field.load(Ordering::Relaxed) as f64 $(/ $scale)?,
                },)*];
                $(self.$histogram_field.append_samples(
                    crate::histogram_names!($histogram_name),
                    concat!($($histogram_help),+).trim_ascii(),
                    &mut samples,
                );)*
                samples
            }
        }
    };
}

// Fields are integers. A value is stored in a small unit and divided by the scale after `/` on export: `_nanos` are
// stored in nanoseconds and exported in seconds.
metrics! {
    /// Steps computed.
    steps: Counter = "corral_engine_steps_total",
    /// Steps that failed and were retried with fewer tokens.
    failed_steps: Counter = "corral_engine_steps_failed_total",
    /// Rows of all steps; a row is one request's part of a step.
    rows: Counter = "corral_engine_rows_total",
    /// Decode rows: the next token of a request, with its drafts if it has any.
    decode_rows: Counter = "corral_engine_decode_rows_total",
    /// Prefill rows: a part of a prompt.
    prefill_rows: Counter = "corral_engine_prefill_rows_total",
    /// Prefill tokens computed: prompt tokens, and generated tokens that a grammar forced.
    prefill_tokens: Counter = "corral_engine_prefill_tokens_total",
    /// Decode rows left out of a step; happens only after a failed step.
    skipped_rows: Counter = "corral_engine_decode_rows_skipped_total",
    /// Decode rows left out of a step because it computed with another adapter.
    adapter_deferred_rows: Counter = "corral_engine_adapter_deferred_rows_total",
    /// Decode rows left out of a step because their tenant makes steps much longer for the others.
    tenant_left_out_rows: Counter = "corral_engine_tenant_left_out_rows_total",
    /// Switches to another adapter between two steps.
    adapter_switches: Counter = "corral_engine_adapter_switches_total",
    /// Expected cost of an adapter switch in seconds; 0 until one was measured.
    adapter_switch_nanos: Gauge = "corral_engine_adapter_switch_seconds" / 1e9,
    /// Steps with both decode and prefill rows.
    mixed_steps: Counter = "corral_engine_mixed_steps_total",
    /// Prompt tokens computed in mixed steps or overlapped with the step before.
    mixed_prefill_tokens: Counter = "corral_engine_mixed_prefill_tokens_total",
    /// Prompt tokens that the step-time budget allowed in mixed steps, including those that fill a tile.
    mixed_budget_tokens: Counter = "corral_engine_mixed_prefill_budget_tokens_total",
    /// Prefill steps overlapped with sampling or with waiting for next-token requests.
    overlapped_steps: Counter = "corral_engine_overlapped_steps_total",
    /// Prompt tokens computed in overlapped steps.
    overlapped_tokens: Counter = "corral_engine_overlapped_prefill_tokens_total",
    /// Bytes of logits copied for sampling: top-k candidates or whole rows.
    top_logits_bytes: Counter = "corral_engine_logits_copied_bytes_total" {"rows" = "top"},
    /// Bytes of logits copied for sampling: top-k candidates or whole rows.
    whole_logits_bytes: Counter = "corral_engine_logits_copied_bytes_total" {"rows" = "whole"},
    /// Rows whose top-k logits did not determine the sampled token, so that the last token was recomputed.
    device_top_k_misses: Counter = "corral_engine_device_top_k_misses_total",
    /// Rows whose sampling was deferred to the next step, since their tenant used up its part of the time.
    sampling_deferrals: Counter = "corral_engine_sampling_deferrals_total",
    /// Tokens passed to llama_decode.
    computed_tokens: Counter = "corral_engine_computed_tokens_total",
    /// Prompt tokens of finished requests.
    prompt_tokens: Counter = "corral_engine_prompt_tokens_total",
    /// Tokens generated by finished requests.
    generated_tokens: Counter = "corral_engine_generated_tokens_total",
    /// Tokens generated so far, also by requests that run or did not finish.
    live_generated_tokens: Counter = "corral_engine_live_generated_tokens_total",
    /// Prompt tokens of finished requests that came from the prefix cache.
    cached_tokens: Counter = "corral_engine_prefix_cache_hit_tokens_total",
    /// Tokens of finished requests that were recomputed: after a preemption, or to see all logits of a row.
    recomputed_tokens: Counter = "corral_engine_recomputed_tokens_total",
    /// Forced tokens at the end of finished requests that were never computed, without each request's last token.
    uncomputed_tokens: Counter = "corral_engine_forced_tokens_uncomputed_total",
    /// Draft tokens that were accepted.
    accepted_drafts: Counter = "corral_engine_draft_tokens_accepted_total",
    /// Draft tokens that were computed and rejected, or that followed the end.
    rejected_drafts: Counter = "corral_engine_draft_tokens_rejected_total",
    /// Tokens that the draft model proposed as drafts.
    model_drafts_proposed: Counter = "corral_engine_draft_model_tokens_proposed_total",
    /// Draft tokens of the draft model that were accepted.
    model_drafts_accepted: Counter = "corral_engine_draft_model_tokens_accepted_total",
    /// Draft tokens of the draft model that were computed and rejected, or that followed the end.
    model_drafts_rejected: Counter = "corral_engine_draft_model_tokens_rejected_total",
    /// Tokens that the draft model computed: those of requests, and drafts that others followed.
    draft_model_computed: Counter = "corral_engine_draft_model_computed_tokens_total",
    /// Steps of the draft model.
    draft_model_steps: Counter = "corral_engine_draft_model_steps_total",
    /// Steps of the draft model that failed; it drafts no more for their requests.
    draft_model_failed_steps: Counter = "corral_engine_draft_model_steps_failed_total",
    /// Seconds of steps of the draft model.
    draft_model_nanos: Counter = "corral_engine_draft_model_seconds_total" / 1e9,
    /// KV cells of the draft model in use.
    draft_model_cells: Gauge = "corral_engine_draft_model_kv_cells_used",
    /// Tokens computed for requests that were canceled, expired or failed, without rejected drafts.
    discarded_tokens: Counter = "corral_engine_discarded_tokens_total",
    /// Generations that finished.
    finished: Counter = "corral_engine_requests_finished_total",
    /// Next-token requests that finished.
    next_token_requests: Counter = "corral_engine_next_token_requests_total",
    /// Tokens computed for next-token requests, without recomputed ones.
    next_token_computed_tokens: Counter = "corral_engine_next_token_computed_tokens_total",
    /// Requests to sampling plugins for a token.
    external_sampler_calls: Counter = "corral_engine_external_sampler_calls_total",
    /// Seconds from each request to a sampling plugin to its answer.
    external_sampler_nanos: Counter = "corral_engine_external_sampler_seconds_total" / 1e9,
    /// Requests canceled by their reader or by a shutdown.
    canceled: Counter = "corral_engine_requests_canceled_total",
    /// Requests that failed.
    failed: Counter = "corral_engine_requests_failed_total",
    /// Requests that exceeded their deadline or their time in the queue.
    expired: Counter = "corral_engine_requests_expired_total",
    /// Requests refused, usually because the queue is full.
    refused: Counter = "corral_engine_requests_refused_total",
    /// Requests that wait for a sequence id or cells.
    waiting: Gauge = "corral_engine_requests_waiting",
    /// Requests that hold a sequence id.
    running: Gauge = "corral_engine_requests_running",
    /// Generated tokens that their readers have not taken.
    unread_tokens: Gauge = "corral_engine_unread_tokens",
    /// Sequence ids of running requests.
    sequence_ids_used: Gauge = "corral_engine_sequence_ids_used",
    /// Sequence ids of the prefix cache, including retained sequences; available to new requests.
    sequence_ids_cached: Gauge = "corral_engine_sequence_ids_cached",
    /// Seconds in the Retry-After of a request refused now.
    retry_after: Gauge = "corral_engine_retry_after_seconds",
    /// Cells that attention computed over in the last step; 0 when idle.
    attention_cells: Gauge = "corral_engine_attention_cells",
    /// KV cells of running requests; a shared cell counts once.
    cells_used: Gauge = "corral_engine_kv_cells_used",
    /// Fraction of the KV cells that running requests hold, from 0 to 1.
    kv_cache_usage_billionths: Gauge = "corral_engine_kv_cache_usage_ratio" / 1e9,
    /// KV cells of the prefix cache alone, including retained sequences; available to new requests.
    cells_cached: Gauge = "corral_engine_kv_cells_cached",
    /// KV cells that running requests hold or have reserved.
    cells_reserved: Gauge = "corral_engine_kv_cells_reserved",
    /// KV cells that llama.cpp holds for unused sequence ids, checked when the engine goes idle; anything but 0 is a
    /// bug.
    cells_leaked: Gauge = "corral_engine_kv_cells_leaked",
    /// Prefix cache entries dropped: for room in the cells or in the prefix RAM, or because keeping them cost more than
    /// recomputing them.
    entries_dropped: Counter = "corral_engine_prefix_cache_entries_dropped_total",
    /// Sequences swapped out to make room.
    swap_outs: Counter = "corral_engine_swap_outs_total",
    /// Prefix cache entries offloaded to RAM: for room in the cells, or because they made steps longer.
    prefix_offloads: Counter = "corral_engine_prefix_offloads_total",
    /// Sequences and offloaded prefixes swapped in.
    swap_ins: Counter = "corral_engine_swap_ins_total",
    /// Swapped-out sequences whose state was lost, since the store was full or failed: recomputed when they continue.
    swapped_states_lost: Counter = "corral_engine_swapped_states_lost_total",
    /// Running requests that lost their cells to another request and returned to the queue.
    preemptions: Counter = "corral_engine_preemptions_total",
    /// Sequences moved to lower cells, to shorten attention.
    compactions: Counter = "corral_engine_compactions_total",
    /// Bytes of swapped-out sequences written to disk.
    swap_disk_written_bytes: Counter = "corral_engine_swap_disk_written_bytes_total",
    /// Bytes of swapped-out sequences read from disk.
    swap_disk_read_bytes: Counter = "corral_engine_swap_disk_read_bytes_total",
    /// Bytes of offloaded prefixes in RAM.
    prefix_offload_bytes: Gauge = "corral_engine_prefix_offload_ram_bytes",
    /// Bytes of prefixes on disk.
    prefix_disk_bytes: Gauge = "corral_engine_prefix_disk_bytes",
    /// Prefixes on disk.
    prefix_disk_entries: Gauge = "corral_engine_prefix_disk_entries",
    /// Bytes of prefixes written to disk.
    prefix_disk_written_bytes: Counter = "corral_engine_prefix_disk_written_bytes_total",
    /// Bytes of prefixes read from disk.
    prefix_disk_read_bytes: Counter = "corral_engine_prefix_disk_read_bytes_total",
    /// Prefixes that were lost or not written to disk: for lack of room, because a write or a read failed, or because the
    /// file that the start found is damaged or of another model.
    prefix_disk_no_room: Counter = "corral_engine_prefix_disk_drops_total" {"reason" = "no-room"},
    /// Prefixes that were lost or not written to disk: for lack of room, because a write or a read failed, or because the
    /// file that the start found is damaged or of another model.
    prefix_disk_failed_writes: Counter = "corral_engine_prefix_disk_drops_total" {"reason" = "write-failed"},
    /// Prefixes that were lost or not written to disk: for lack of room, because a write or a read failed, or because the
    /// file that the start found is damaged or of another model.
    prefix_disk_failed_reads: Counter = "corral_engine_prefix_disk_drops_total" {"reason" = "read-failed"},
    /// Prefixes that were lost or not written to disk: for lack of room, because a write or a read failed, or because the
    /// file that the start found is damaged or of another model.
    prefix_disk_unusable: Counter = "corral_engine_prefix_disk_drops_total" {"reason" = "unusable"},
    /// Bytes of swapped-out sequences in RAM.
    swap_ram_bytes: Gauge = "corral_engine_swap_ram_bytes",
    /// Bytes of swapped-out sequences on disk.
    swap_disk_bytes: Gauge = "corral_engine_swap_disk_bytes",
    /// Times the engine thread woke up from waiting for work.
    wake_ups: Counter = "corral_engine_wakeups_total",
    /// Seconds that requests spent in the queue.
    queue_nanos: Counter = "corral_engine_request_queue_time_seconds_total" / 1e9,
    /// Seconds from admission to the first token, or to the end of requests without one.
    prefill_nanos: Counter = "corral_engine_request_prefill_time_seconds_total" / 1e9,
    /// Seconds from the first token to the end of requests.
    decode_nanos: Counter = "corral_engine_request_decode_time_seconds_total" / 1e9,
    /// Seconds of steps inside llama_decode, including waiting for a device.
    compute_nanos: Counter = "corral_engine_compute_seconds_total" / 1e9,
    /// CPU seconds of the engine thread inside llama_decode, without the other compute threads.
    compute_cpu_nanos: Counter = "corral_engine_compute_cpu_seconds_total" / 1e9,
    /// Compute threads on the CPU: those of --threads, or fewer while other threads keep the cores busy.
    compute_threads: Gauge = "corral_engine_compute_threads",
    /// Times that the compute threads became fewer, because they waited for cores.
    compute_threads_lowered: Counter = "corral_engine_compute_threads_lowered_total",
    /// Seconds spent sampling and delivering tokens.
    sampling_nanos: Counter = "corral_engine_sampling_seconds_total" / 1e9,
    /// Seconds from the delivery of tokens to their reading.
    delivery_nanos: Counter = "corral_engine_delivery_seconds_total" / 1e9,
    /// Embedding requests that finished.
    embed_finished: Counter = "corral_engine_embedding_requests_finished_total",
    /// Embedding requests refused because the queue is full.
    embed_refused: Counter = "corral_engine_embedding_requests_refused_total",
    /// Embedding requests canceled by their caller or by a shutdown.
    embed_canceled: Counter = "corral_engine_embedding_requests_canceled_total",
    /// Embedding requests that exceeded their deadline or their time in the queue.
    embed_expired: Counter = "corral_engine_embedding_requests_expired_total",
    /// Embedding requests that failed.
    embed_failed: Counter = "corral_engine_embedding_requests_failed_total",
    /// Embedding requests that wait or run.
    embed_open: Gauge = "corral_engine_embedding_requests_in_flight",
    /// Images and audio files encoded for sequences.
    images_encoded: Counter = "corral_engine_images_encoded_total",
    /// Images and audio files whose embeddings were cached.
    image_cache_hits: Counter = "corral_engine_image_cache_hits_total",
    /// Images and audio files refused because their file is damaged, too large or of another format.
    images_refused: Counter = "corral_engine_images_refused_total",
    /// Images and audio files that failed although their file may be good: no decoder or no memory for images was free, or a
    /// fault of the server.
    images_failed: Counter = "corral_engine_images_failed_total",
    /// Seconds decoding and encoding images and audio.
    image_nanos: Counter = "corral_engine_image_encode_seconds_total" / 1e9,
    /// Inputs of finished embedding requests.
    embed_inputs: Counter = "corral_engine_embedding_inputs_total",
    /// Tokens of those inputs.
    embed_tokens: Counter = "corral_engine_embedding_tokens_total",
    /// Tokens computed for embeddings, including discarded and recomputed ones.
    embed_computed: Counter = "corral_engine_embedding_computed_tokens_total",
    /// Steps of the embedding context.
    embed_steps: Counter = "corral_engine_embedding_steps_total",
    /// Steps of the embedding context that failed; their inputs are retried one by one.
    embed_failed_steps: Counter = "corral_engine_embedding_steps_failed_total",
    /// Embedding contexts that exist, 0 or 1: created for the first request, freed when idle.
    embed_contexts: Gauge = "corral_engine_embedding_contexts",
    /// Times the embedding thread woke up from waiting for work.
    embed_wake_ups: Counter = "corral_engine_embedding_wakeups_total",
    /// Seconds that embedding requests waited for their first step, or for their end without one.
    embed_queue_nanos: Counter = "corral_engine_embedding_request_queue_time_seconds_total" / 1e9,
    /// Seconds computing steps of the embedding context.
    embed_step_nanos: Counter = "corral_engine_embedding_compute_seconds_total" / 1e9,
    histograms:
    /// Seconds per step: computation, sampling and delivery. Without overlapped steps.
    step_duration = "corral_engine_step_duration_seconds" in SECONDS,
    /// Seconds from a request's arrival to its first token.
    time_to_first_token = "corral_engine_time_to_first_token_seconds" in SECONDS,
    /// Seconds between two tokens of a request; tokens of one step count as one.
    inter_token_latency = "corral_engine_inter_token_latency_seconds" in SECONDS,
    /// Rows per step.
    step_rows = "corral_engine_step_rows" in COUNTS,
    /// Prompt tokens per step.
    step_prefill = "corral_engine_step_prefill_tokens" in COUNTS,
}

const SECONDS: [f64; 16] = [
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048,
    4.096, 8.192, 16.384,
];
const COUNTS: [f64; 11] = [
    0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0,
];

/// The metrics of the grammar compiler.
#[allow(clippy::cast_precision_loss)]
pub fn grammar_metrics(counters: &GrammarCounters) -> [Metric; 6] {
    [
        Metric::counter(
            "corral_engine_grammar_cache_hits_total",
            "Compilations that the grammar cache saved.",
            counters.hits,
        ),
        Metric::counter(
            "corral_engine_grammar_compilations_total",
            "Grammars compiled.",
            counters.compiled,
        ),
        Metric::counter(
            "corral_engine_grammar_compilation_failures_total",
            "Grammars that could not be compiled.",
            counters.failed,
        ),
        Metric::gauge(
            "corral_engine_grammar_cache_entries",
            "Compiled grammars in the cache.",
            counters.cached as f64,
        ),
        Metric::gauge(
            "corral_engine_grammar_cache_bytes",
            "Estimated memory of the cached grammars, in bytes.",
            counters.cached_bytes as f64,
        ),
        Metric::gauge(
            "corral_engine_grammar_bytes",
            "Estimated memory of all compiled grammars and of their matchers, in bytes.",
            counters.held_bytes as f64,
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
