//! What the engine thread needs from a backend: llama.cpp, or the simulator in tests.

mod llama;

pub use corral_llama::{DecodeError, LogitsCopied, SaveError};

use crate::Token;
use corral_sampling::Logits;
use corral_scheduler::{AdapterId, SeqId};
use std::time::Duration;

/// One token of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenInput {
    /// The token.
    pub token: Token,
    /// Its position in the sequence, from 0.
    pub position: u32,
    /// The sequence it belongs to.
    pub seq: SeqId,
    /// Whether the step computes logits after it.
    pub output: bool,
}

/// Decodes steps and keeps the KV cells of sequences.
///
/// Sequence ids must be below [`SchedulerConfig::seq_ids`](corral_scheduler::SchedulerConfig::seq_ids). A memory *can truncate* if a
/// sequence can return to an earlier position (attention); others cannot (recurrent, sliding window).
pub trait Backend {
    /// Selects the adapter for the following steps; initially none. A state computed with one adapter is valid
    /// with that adapter only. The cost of a change falls on the next step.
    ///
    /// Fails without effect if there is no such adapter.
    fn set_adapter(&mut self, adapter: AdapterId) -> Result<(), DecodeError>;

    /// Computes one step of at most [`SchedulerConfig::max_step_tokens`](corral_scheduler::SchedulerConfig::max_step_tokens) tokens. The
    /// positions of a sequence must be in order and without gaps.
    fn decode(&mut self, step: &[TokenInput]) -> Result<(), DecodeError>;

    /// Waits until the last step is computed, where [`Backend::decode`] only starts it.
    fn wait(&mut self) {}

    /// Compute threads on the CPU.
    fn threads(&self) -> u32;

    /// Prepares [`Backend::use_threads`] for half of the threads, a quarter, and so on to one. Returns false if it cannot
    /// compute with fewer threads and the same results.
    fn prepare_fewer_threads(&mut self) -> bool;

    /// Computes the following steps with this many of the threads, with the same results.
    fn use_threads(&mut self, threads: u32);

    /// How long each thread in use has waited for a core so far. `None` if that is unknown.
    fn queue_delays(&self) -> Option<Vec<Duration>>;

    /// Whether [`Backend::decode_overlapped`] may follow the last step.
    fn can_overlap(&self) -> bool;

    /// Computes a step without outputs, or starts it without waiting; the next call waits. Until then
    /// [`Backend::output`] still returns the previous step's logits. Requires [`Backend::can_overlap`], after
    /// [`Backend::wait`].
    ///
    /// Fails as [`Backend::decode`] does, and immediately: a step that started always completes.
    fn decode_overlapped(&mut self, step: &[TokenInput]) -> Result<(), DecodeError>;

    /// The logits after input `index` of the last step, one per token of the vocabulary. `None` if that input was
    /// no output, or if only its top-k logits were copied.
    fn logits(&self, index: usize) -> Option<&[f32]>;

    /// The logits after input `index` of the last step: the top k for the first
    /// [`SchedulerConfig::top_k_seq_ids`](corral_scheduler::SchedulerConfig::top_k_seq_ids) ids, the whole row for the others. `None` if that
    /// input was no output.
    fn output(&self, index: usize) -> Option<Logits<'_>>;

    /// The k of device top-k, if some ids use it.
    fn top_k(&self) -> Option<u32> {
        None
    }

    /// Bytes that the last successful step copied for its outputs; 0 for an overlapped step.
    fn copied_logits(&self) -> LogitsCopied {
        LogitsCopied::default()
    }

    /// Frees the cells of a sequence, except those it shares.
    fn clear(&mut self, seq: SeqId);

    /// Makes the empty sequence `to` share the first `length` positions of `from`. No cell is copied or taken. With
    /// a memory that cannot truncate, `length` must be the length of `from`.
    fn share(&mut self, from: SeqId, to: SeqId, length: u32);

    /// Frees the positions of a sequence from `length` on, except those it shares. With a memory that cannot truncate,
    /// `length` must be 0.
    fn truncate(&mut self, seq: SeqId, length: u32);

    /// Copies the state of a sequence, at most `limit` bytes, for [`Backend::load`] with the same model and
    /// settings. The sequence remains.
    fn save(&mut self, seq: SeqId, limit: usize) -> Result<Vec<u8>, SaveError>;

    /// Loads a saved state into an empty sequence. Every position takes a free cell, including positions that were
    /// shared. Returns false, and leaves the sequence empty, if there is no room or the backend rejects the state.
    ///
    /// The bytes must be exactly what [`Backend::save`] returned: verify a checksum if they left the process, and
    /// never pass bytes of a guest. The backend does not detect every corruption, and undetected corruption can end
    /// the process or damage other sequences.
    #[must_use]
    fn load(&mut self, seq: SeqId, state: &[u8]) -> bool;

    /// Number of positions that a sequence occupies, to check for leaked cells.
    fn length(&self, seq: SeqId) -> u32;
}
