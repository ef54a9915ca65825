//! Decides what each step of an engine computes: a pure state machine without clock, thread or llama.cpp.
//!
//! A caller adds [`Request`]s, asks for a [`Step`] with [`Scheduler::plan`], lets a backend compute it, and reports the
//! result with [`Scheduler::step_done`]. Time is an argument, counted from any start, so that a simulator can drive the
//! scheduler with its own clock.
//!
//! A running request leases a *sequence id* and *KV cells* of the backend. More requests may exist than these allow:
//! up to a bound they wait in the [`queue`], and further ones are refused. The next request starts once there is room
//! for it ([`admission`]). It shares the cells of a prefix of its prompt that is there already ([`prefix_cache`]).
//! Each step computes only new tokens: one of every decoding request, and as much of the prompts as the
//! [`prefill_budget`] allows ([`batch`]) within the [`latency_targets`] of the requests. Decode rows continue with
//! [`drafts`] if that gains tokens per second; [`model_drafts`] decides what a draft model computes for them. A
//! [`cost_model`] learns how long steps take; [`kv_cells`] mirrors which cells they fill. When ids or cells run short, the
//! [`kv_cache`] evicts entries (drops them, or swaps out retained ones), then [`preemption`] takes cells from the least
//! important request.
//!
//! A request leaves the scheduler in one of three ways: it *finishes*, and its sequence may be reused; it *fails*, and
//! its sequence is freed ([`Scheduler::fail`]); or it is *canceled* ([`Scheduler::cancel`]), also by a time limit.
//!
//! Invariants, tested with random workloads on the simulator:
//! - Every sequence id is free or has exactly one holder, a request or a prefix cache entry.
//! - The tokens of a request are computed in order, each once. Exceptions are tokens lost in a preemption, requests of
//!   a failed step whose state cannot be truncated, rows whose device top-k did not suffice, and rows whose sampling
//!   was deferred.
//! - Every decoding request of the step's adapter has a row, except after a failure and in short steps. The
//!   [`adapter_schedule`] bounds how long other adapters wait, and the [`tenant_schedule`] how long a tenant that makes
//!   steps long waits.
//! - Rejected drafts leave no cell filled.
//! - Every request ends exactly once, and none fails because of another.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod adapter_schedule;
mod admission;
mod batch;
mod batch_plan;
mod batch_window;
mod cache_changes;
mod compaction;
mod config;
mod cost_model;
mod deferred_sampling;
mod device_top_k;
mod draft_acceptance;
mod draft_planning;
mod draft_results;
mod drafts;
mod eviction;
mod expiry;
mod external_sampler;
mod failure;
mod kv_cache;
mod kv_cells;
mod latency_targets;
mod model_drafts;
mod output_length;
mod overlap;
mod overlap_state;
mod preemption;
mod prefill_budget;
mod prefill_profile;
mod prefill_slowdown;
mod prefix_cache;
mod prefix_sharing;
mod prefix_tree;
mod queue;
mod request;
mod retention;
mod retry_after;
mod returning_callers;
mod running;
mod scheduler;
mod sequence_ids;
mod status;
mod step;
mod step_size_limit;
mod step_wait;
mod strikes;
mod swap;
mod swap_costs;
mod tenant_schedule;
mod timers;

pub use cache_changes::CacheChange;
pub use config::SchedulerConfig;
pub use cost_model::CostModel;
pub use draft_acceptance::{DraftSource, accepted_drafts};
pub use kv_cells::{KvCells, PositionOrder};
pub use latency_targets::{Latency, LatencyError};
pub use model_drafts::{DraftPlan, DraftState};
pub use overlap_state::Overlap;
pub use prefill_budget::PrefillPolicy;
pub use prefill_profile::CHUNK_SIZES;
pub use prefix_cache::{EntryLocation, PrefixHolder};
pub use prefix_tree::PrefixTree;
pub use request::{
    AdapterId, CellQuota, LogitsKind, PrefixScope, Priority, QuotaGroup, Request, RequestId,
    RequestProgress, Tenant,
};
pub use retention::{Retention, WeakRetention};
pub use scheduler::Scheduler;
pub use status::{DroppedPrefixes, EntryStatus, RequestState, RequestStatus, SchedulerCounters};
pub use step::{EnqueueError, EntryId, Expired, MemoryOp, Row, SeqId, Step, StepResult, StepShape};
pub use tenant_schedule::MAX_SHORT_STEPS;

use std::time::Duration;

/// Index into a model's vocabulary.
pub type Token = u32;

/// A moment: the time since some start that never changes.
pub type Time = Duration;

#[cfg(test)]
mod tests;
