//! llama.cpp without an engine, as the twin that an engine is measured beside.
//!
//! A context of the same sizes, compute threads and weights, and steps that the caller puts together:
//! no scheduler, no mailbox, no sampling. It belongs to one thread at a time.

use crate::backend::{Backend, DecodeError, TokenInput};
use crate::{LoadError, processor};
use corral_llama::{ContextSettings, LlamaContext, Model};
use corral_scheduler::SeqId;
use std::sync::Arc;
use std::time::Duration;

/// A context of a loaded model, beside its engine's: see [`Engine::raw`](crate::Engine::raw).
pub struct Raw {
    context: LlamaContext,
    spent: Duration,
}

impl Raw {
    pub(crate) fn new(model: Arc<Model>, settings: ContextSettings) -> Result<Self, LoadError> {
        Ok(Self {
            context: LlamaContext::new(model, settings)?,
            spent: Duration::ZERO,
        })
    }

    /// Most tokens in a step.
    pub fn step_tokens(&self) -> u32 {
        self.context.step_tokens()
    }

    /// Computes a step of 1 to [`Raw::step_tokens`] tokens, the positions of a sequence in order and
    /// without gaps, and waits until its logits are there. Nobody reads them.
    ///
    /// [`DecodeError`] if there is no room for the tokens, or one of them or a sequence id is out of range.
    pub fn decode(&mut self, step: &[TokenInput]) -> Result<(), DecodeError> {
        let before = processor::of_thread();
        let decoded = Backend::decode(&mut self.context, step);
        let output = step.iter().rposition(|input| input.output);
        if let (Ok(()), Some(index)) = (&decoded, output) {
            // Asking for a row waits for the device, where llama_decode itself does not.
            self.context.logits(index);
        }
        self.spent += processor::of_thread().saturating_sub(before);
        decoded
    }

    /// Frees the cells of a sequence.
    pub fn clear(&mut self, sequence: SeqId) {
        Backend::clear(&mut self.context, sequence);
    }

    /// Processor time that the calling threads took inside [`Raw::decode`]; the other compute threads' comes
    /// on top.
    pub fn decode_time(&self) -> Duration {
        self.spent
    }
}
