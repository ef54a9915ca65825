//! Sizes of a context, fixed for its life.

use crate::{DeviceTopK, KvType};

/// Sizes of a context.
#[derive(Clone, Copy, Debug)]
pub struct ContextSettings {
    /// KV cells shared by all sequences; models without a memory have none.
    pub cells: u32,
    /// Most tokens in a step.
    pub step_tokens: u32,
    /// Number of sequence ids.
    pub seq_ids: u16,
    /// Compute threads.
    pub threads: u32,
    /// Type of the cells.
    pub kv_type: KvType,
    /// Sequence ids whose outputs are the highest logits only.
    pub device_top_k: Option<DeviceTopK>,
}

impl ContextSettings {
    /// The same without device top-k and without its sequence ids.
    #[must_use]
    pub fn without_device_top_k(self) -> Self {
        let ids = self.device_top_k.map_or(0, |top_k| top_k.seq_ids);
        Self {
            seq_ids: self.seq_ids.saturating_sub(ids),
            device_top_k: None,
            ..self
        }
    }
}
