//! What the engine thread needs of a thing that decodes: llama.cpp, or a simulator.

mod llama;

pub use corral_llama::{DecodeError, LogitsCopied, SaveError};

use crate::Token;
use corral_sampling::Logits;
use corral_scheduler::{AdapterId, SeqId};

/// One token of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenInput {
    /// The token.
    pub token: Token,
    /// Its position in the sequence, from 0.
    pub position: u32,
    /// The sequence it belongs to.
    pub seq: SeqId,
    /// Whether logits are wanted after it.
    pub output: bool,
}

/// Decodes steps and keeps the key-value cells of sequences.
///
/// Sequence ids have to be below [`SchedulerConfig::seq_ids`](corral_scheduler::SchedulerConfig::seq_ids).
pub trait Backend {
    /// Computes with this adapter from the next step on, at first with none. States that were
    /// computed with one are for steps of the same one. What it costs shows in the next step.
    ///
    /// Fails, and changes nothing, if there is no such adapter.
    fn adapt(&mut self, adapter: AdapterId) -> Result<(), DecodeError>;

    /// Computes one step. At most [`SchedulerConfig::max_step_tokens`](corral_scheduler::SchedulerConfig::max_step_tokens)
    /// tokens, positions of a sequence in order and without gaps.
    fn decode(&mut self, step: &[TokenInput]) -> Result<(), DecodeError>;

    /// Waits until the last step is computed, where [`Backend::decode`] only begins it.
    fn wait(&mut self) {}

    /// Whether [`Backend::decode_ahead`] can follow the last step.
    fn can_go_ahead(&self) -> bool {
        false
    }

    /// Computes a step without outputs, or begins it and does not wait: what comes next does. Until then
    /// [`Backend::output`] tells of the step before, as it did. Only where [`Backend::can_go_ahead`] says so,
    /// and after [`Backend::wait`].
    ///
    /// Fails as [`Backend::decode`] does, and at once: what was begun comes to its end.
    fn decode_ahead(&mut self, step: &[TokenInput]) -> Result<(), DecodeError> {
        let _ = step;
        Err(DecodeError::Failed(-1))
    }

    /// The logits after input number `index` of the last step, one for each token of the
    /// vocabulary. `None` if that input was no output, or only its highest logits were computed for
    /// the caller.
    fn logits(&self, index: usize) -> Option<&[f32]>;

    /// What there is of the logits after input number `index` of the last step: the highest ones for the
    /// first [`SchedulerConfig::top_k_seq_ids`](corral_scheduler::SchedulerConfig::top_k_seq_ids) ids, all of them for the others. `None`
    /// if that input was no output.
    fn output(&self, index: usize) -> Option<Logits<'_>> {
        self.logits(index).map(Logits::Full)
    }

    /// How many the highest ones are, if there are ids for which only those are given.
    fn top_k(&self) -> Option<u32> {
        None
    }

    /// What the last step that went well copied for its outputs; nothing, if it was one ahead.
    fn copied(&self) -> LogitsCopied {
        LogitsCopied::default()
    }

    /// Frees the cells of a sequence, except those it shares.
    fn clear(&mut self, seq: SeqId);

    /// Lets `to`, another id, which holds nothing, begin with the first `length` positions of
    /// `from`, which has as many. No cell is copied or taken. A memory that can't part a sequence
    /// (recurrent, sliding window) can only share the whole: `length` is then all of `from`.
    fn share(&mut self, from: SeqId, to: SeqId, length: u32);

    /// Frees the positions of a sequence from `length` on, except those it shares. A memory that
    /// can't part a sequence can only free all of it: `length` is then 0.
    fn truncate(&mut self, seq: SeqId, length: u32);

    /// A copy of all that is known of a sequence, at most `limit` bytes, for [`Backend::load`] of the
    /// same model and the same settings. The sequence stays.
    fn save(&mut self, seq: SeqId, limit: usize) -> Result<Vec<u8>, SaveError>;

    /// Gives a sequence, which holds nothing, the positions of a saved one. They take a free cell
    /// each, also those that were shared. False if there is no room or the state is not one that
    /// this backend takes; the sequence then holds nothing.
    ///
    /// Only for bytes that are known to be what [`Backend::save`] returned, by a checksum where they
    /// were out of the process's hands, and never for bytes of a guest: not every damage is noticed,
    /// and some of what goes unnoticed ends the process or harms other sequences.
    #[must_use]
    fn load(&mut self, seq: SeqId, state: &[u8]) -> bool;

    /// Number of positions that a sequence occupies: for checks that nothing was left behind.
    fn length(&self, seq: SeqId) -> u32;
}
