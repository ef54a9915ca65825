//! The sizes and policies of a scheduler.

use crate::overlap_state::Overlap;
use crate::prefill_budget::PrefillPolicy;
use crate::request::LogitsKind;
use crate::step::SeqId;

/// The sizes and policies of a scheduler.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerConfig {
    /// Sequence ids of the backend.
    pub seq_ids: u16,
    /// Ids below this use device top-k: the k highest logits, for one position per step. They do not raise
    /// `max_running`, which is the number of the other ids.
    pub top_k_seq_ids: u16,
    /// KV cells of all sequences together.
    pub cells: u32,
    /// Most tokens in a step; at least one for each running request.
    pub max_step_tokens: u32,
    /// Tokens of the longest sequence that the backend can compact.
    pub max_compaction_tokens: u32,
    /// Most waiting requests.
    pub max_queue: usize,
    /// Most waiting requests of one tenant.
    pub max_tenant_queue: usize,
    /// How prompts are computed beside decoding requests.
    pub prefill: PrefillPolicy,
    /// Whether requests reuse what earlier ones computed of the same prefix.
    pub prefix_cache: bool,
    /// Whether the model's memory can drop the last positions of a sequence. Recurrent state and sliding
    /// windows can't: there a prefix is reused as a whole only, and a request of a failed step starts
    /// again from its first token.
    pub can_truncate: bool,
    /// Whether retained sequences can be swapped out.
    pub swap: bool,
    /// Whether prefixes that are not retained can be offloaded.
    pub offload_prefixes: bool,
    /// Most draft tokens in a row; 0 where a sequence can't be truncated.
    pub max_drafts: u32,
    /// Anything but [`Overlap::Off`] needs a backend that computes while its caller does something else.
    pub overlap: Overlap,
}

impl SchedulerConfig {
    /// Most requests that run at once.
    pub fn max_running(&self) -> u16 {
        self.seq_ids.saturating_sub(self.top_k_seq_ids)
    }

    /// The logits that the backend gives for an id.
    pub fn logits_of(&self, seq: SeqId) -> LogitsKind {
        match seq.0 < self.top_k_seq_ids {
            true => LogitsKind::TopK,
            false => LogitsKind::All,
        }
    }

    /// Whether a request can reuse a part of a sequence.
    pub(crate) fn can_reuse_part(&self) -> bool {
        self.prefix_cache && self.can_truncate
    }
}
