//! Counts what an instance holds through host functions.

use crate::counters::{DeploymentCounters, ResourceCount, ResourceKind};
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
    pub(crate) models: ResourceCount,
    pub(crate) constraints: ResourceCount,
    pub(crate) matchers: ResourceCount,
    pub(crate) options: ResourceCount,
    pub(crate) option_bytes: ResourceCount,
    pub(crate) sequences: ResourceCount,
    /// Sequences that the guest dropped during a generation. `sequences` and `tokens` include them.
    pub(crate) dropped_sequences: Vec<DroppedSequence>,
    pub(crate) generations: ResourceCount,
    /// Tokens of all sequences.
    pub(crate) tokens: ResourceCount,
    /// Images that were appended or restored.
    pub(crate) images: usize,
    /// Rows of logits that the instance waits for.
    pub(crate) logits_rows: UseCount,
    /// Framed bodies.
    pub(crate) framed_bodies: UseCount,
    /// Locked while a sampling plugin's settings are checked.
    pub(crate) sampler_check: Arc<tokio::sync::Mutex<()>>,
}

impl Handles {
    /// No handles. Later ones are also counted in `counters`.
    pub(crate) fn new(counters: &Arc<DeploymentCounters>) -> Self {
        let none = |kind| ResourceCount::new(kind, counters);
        Self {
            models: none(ResourceKind::Models),
            constraints: none(ResourceKind::Constraints),
            matchers: none(ResourceKind::Matchers),
            options: none(ResourceKind::Options),
            option_bytes: none(ResourceKind::OptionBytes),
            sequences: none(ResourceKind::Sequences),
            dropped_sequences: Vec::new(),
            generations: none(ResourceKind::Generations),
            tokens: none(ResourceKind::Tokens),
            images: 0,
            logits_rows: UseCount::default(),
            framed_bodies: UseCount::default(),
            sampler_check: Arc::default(),
        }
    }

    /// Counts dropped sequences no longer whose generation has ended.
    pub(crate) fn release_ended_sequences(&mut self) {
        self.dropped_sequences.retain(|dropped| {
            let running = dropped.generation.is_running();
            if !running {
                self.sequences.remove(1);
                self.tokens.remove(dropped.held_tokens);
            }
            running
        });
    }

    /// Whether the instance holds no handle and no bytes in the host.
    pub(crate) fn is_empty(&self) -> bool {
        let counts = [
            &self.models,
            &self.constraints,
            &self.matchers,
            &self.options,
            &self.option_bytes,
            &self.sequences,
            &self.generations,
            &self.tokens,
        ];
        let uses = [&self.logits_rows, &self.framed_bodies];
        counts.iter().all(|count| count.get() == 0)
            && uses.iter().all(|uses| uses.get() == 0)
            && self.dropped_sequences.is_empty()
    }
}
