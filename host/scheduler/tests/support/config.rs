//! The scheduler of most tests, unit tests included.

use super::{Overlap, PrefillPolicy, SchedulerConfig};

/// Few ids and cells, so that requests compete for them.
pub(crate) const CONFIG: SchedulerConfig = SchedulerConfig {
    seq_ids: 4,
    top_k_seq_ids: 0,
    cells: 100,
    max_step_tokens: 16,
    max_compaction_tokens: u32::MAX,
    max_queue: 8,
    max_tenant_queue: 6,
    prefill: PrefillPolicy::Budgeted,
    prefix_cache: true,
    can_truncate: true,
    swap: true,
    offload_prefixes: false,
    max_drafts: 8,
    overlap: Overlap::Off,
};
