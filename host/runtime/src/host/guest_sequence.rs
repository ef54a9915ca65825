//! The handle of a sequence.

use super::counted_sequence::{CountedSequence, SharedSequence};
use super::generation::GenerationHandle;
use super::{HostResult, MAX_TOKENS, take_handle, wit};
use crate::counters::ResourceKind;
use crate::held_resources::{DroppedSequence, RunningGeneration};
use crate::state::State;
use crate::use_count::{UseCount, UseGuard};
use corral_engine::Engine;
use std::sync::{Arc, Mutex};
use wasmtime::component::Resource;

/// A sequence that a guest holds.
pub struct GuestSequence {
    pub(super) sequence: SharedSequence,
    pub(super) engine: Engine,
    /// Its share of [`MAX_TOKENS`].
    pub(super) held_tokens: usize,
    pub(super) adapter: Option<String>,
    pub(super) generation: Option<GenerationHandle>,
    /// By host functions that have not returned.
    in_use: UseCount,
}

impl GuestSequence {
    /// Checks that no generation and no call uses the sequence.
    pub(super) fn check_unused(&self) -> Result<(), wit::Error> {
        let running = self.generation.as_ref();
        let why = if running.is_some_and(RunningGeneration::is_running) {
            "a generation runs on this sequence: wait for its end or drop its stream"
        } else if self.in_use.get() > 0 {
            "a call for this sequence has not returned: wait for it, or drop it"
        } else {
            return Ok(());
        };
        Err(wit::Error::Invalid(why.to_owned()))
    }

    /// Begins a call. The sequence is in use until the returned guard is dropped.
    pub(super) fn begin(&self) -> Result<(SharedSequence, UseGuard), wit::Error> {
        self.check_unused()?;
        Ok((Arc::clone(&self.sequence), self.in_use.guard()))
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(super) fn adapter(&self) -> Option<&str> {
        self.adapter.as_deref()
    }
}

/// Cancels the generation when the call ends; see [`DroppedSequence`] for a guest that drops its handle.
impl Drop for GuestSequence {
    fn drop(&mut self) {
        if let Some(generation) = &self.generation {
            generation.cancel();
        }
    }
}

impl State {
    /// Counts a new sequence, up to `MAX_HANDLES`.
    pub(super) fn take_sequence_handle(&mut self) -> Result<(), wit::Error> {
        self.handles.release_ended_sequences();
        take_handle(&mut self.handles, ResourceKind::Sequences, "sequences")
    }

    /// Drops the guest's handle. A running generation continues.
    pub(super) fn drop_sequence(&mut self, mut sequence: GuestSequence) {
        let generation = sequence.generation.take();
        let held_tokens = sequence.held_tokens;
        match generation.filter(RunningGeneration::is_running) {
            Some(generation) => self.handles.dropped_sequences.push(DroppedSequence {
                generation: Box::new(generation),
                held_tokens,
            }),
            None => {
                let counts = &mut self.handles.counts;
                counts.remove(ResourceKind::Sequences, 1);
                counts.remove(ResourceKind::Tokens, held_tokens);
            }
        }
    }

    /// Counts tokens towards [`MAX_TOKENS`].
    pub(super) fn hold_tokens(&mut self, tokens: usize) -> Result<(), wit::Error> {
        self.handles.release_ended_sequences();
        let held = self.handles.counts.get(ResourceKind::Tokens);
        if held.saturating_add(tokens) > MAX_TOKENS {
            return Err(wit::Error::Invalid(format!(
                "the plugin's sequences would hold more than {MAX_TOKENS} tokens; drop some"
            )));
        }
        self.handles.counts.add(ResourceKind::Tokens, tokens);
        Ok(())
    }

    /// Gives a sequence to the guest. The caller has taken its handle. Quotas have counted its first
    /// `quota_counted` tokens.
    pub(super) fn add_sequence(
        &mut self,
        engine: Engine,
        sequence: corral_engine::Sequence,
        quota_counted: usize,
    ) -> HostResult<Resource<GuestSequence>> {
        let held_tokens = sequence.tokens().len();
        if let Err(error) = self.hold_tokens(held_tokens) {
            self.handles.counts.remove(ResourceKind::Sequences, 1);
            return Err(error.into());
        }
        Ok(self.table.push(GuestSequence {
            sequence: Arc::new(Mutex::new(CountedSequence {
                sequence,
                quota_counted,
            })),
            engine,
            held_tokens,
            adapter: None,
            generation: None,
            in_use: UseCount::default(),
        })?)
    }
}
