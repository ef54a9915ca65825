//! Counts what an instance holds through host functions.

use crate::counters::{DeploymentCounters, ResourceCounts, ResourceKind};
use crate::use_count::UseCount;
use std::sync::Arc;

/// A sequence that its guest dropped during a generation. It counts towards the limits until the generation ends.
/// Dropping this cancels the generation.
pub(crate) struct DroppedSequence {
    pub(crate) generation: Box<dyn RunningGeneration>,
    pub(crate) held_tokens: usize,
}

/// A generation that may still run.
pub(crate) trait RunningGeneration: Send {
    /// Whether it has not ended.
    fn is_running(&self) -> bool;

    /// Cancels it, unless it has ended.
    fn cancel(&self);
}

impl Drop for DroppedSequence {
    fn drop(&mut self) {
        self.generation.cancel();
    }
}

/// Handles that an instance holds, by kind.
pub(crate) struct Handles {
    pub(crate) counts: ResourceCounts,
    /// Sequences that the guest dropped during a generation. The counts of sequences and tokens include them.
    pub(crate) dropped_sequences: Vec<DroppedSequence>,
    /// Images that were appended or restored.
    pub(crate) images: usize,
    /// Rows of logits that the instance waits for.
    pub(crate) logits_rows: UseCount,
    /// Framed bodies.
    pub(crate) framed_bodies: UseCount,
    /// Locked while a sampling plugin's settings are checked; none before the first check.
    pub(crate) sampler_check: Option<Arc<tokio::sync::Mutex<()>>>,
}

impl Handles {
    /// No handles. Later ones are also counted in `counters`.
    pub(crate) fn new(counters: &Arc<DeploymentCounters>) -> Self {
        Self {
            counts: ResourceCounts::new(counters),
            dropped_sequences: Vec::new(),
            images: 0,
            logits_rows: UseCount::default(),
            framed_bodies: UseCount::default(),
            sampler_check: None,
        }
    }

    /// Counts dropped sequences no longer whose generation has ended.
    pub(crate) fn release_ended_sequences(&mut self) {
        self.dropped_sequences.retain(|dropped| {
            let running = dropped.generation.is_running();
            if !running {
                self.counts.remove(ResourceKind::Sequences, 1);
                self.counts
                    .remove(ResourceKind::Tokens, dropped.held_tokens);
            }
            running
        });
    }

    /// Whether the instance holds no handle and no bytes in the host.
    pub(crate) fn is_empty(&self) -> bool {
        let uses = [&self.logits_rows, &self.framed_bodies];
        self.counts.are_zero()
            && uses.iter().all(|uses| uses.get() == 0)
            && self.dropped_sequences.is_empty()
    }
}
