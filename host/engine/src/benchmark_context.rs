//! A llama.cpp context without an engine, as the baseline of benchmarks.
//!
//! It has the engine's sizes, compute threads and weights. The caller assembles the steps: there is no scheduler,
//! no mailbox and no sampling. One thread uses it at a time.

use crate::LoadError;
use crate::backend::{Backend, DecodeError, TokenInput};
use crate::cpu_time::thread_cpu_time;
use corral_llama::{ContextSettings, LlamaContext, Model};
use corral_scheduler::SeqId;
use std::sync::Arc;
use std::time::Duration;

/// A second context of a loaded model: see [`Engine::benchmark_context`](crate::Engine::benchmark_context).
pub struct BenchmarkContext {
    context: LlamaContext,
    cpu_time: Duration,
}

impl BenchmarkContext {
    pub(crate) fn new(model: Arc<Model>, settings: ContextSettings) -> Result<Self, LoadError> {
        Ok(Self {
            context: LlamaContext::new(model, settings)?,
            cpu_time: Duration::ZERO,
        })
    }

    /// Most tokens in a step.
    pub fn step_tokens(&self) -> u32 {
        self.context.step_tokens()
    }

    /// Computes a step of 1 to [`BenchmarkContext::step_tokens`] tokens and waits for its logits. The positions of a
    /// sequence must be in order and without gaps.
    ///
    /// Fails if the tokens do not fit, or a token or sequence id is out of range.
    pub fn decode(&mut self, step: &[TokenInput]) -> Result<(), DecodeError> {
        let before = thread_cpu_time();
        let decoded = Backend::decode(&mut self.context, step);
        let output = step.iter().rposition(|input| input.output);
        if let (Ok(()), Some(index)) = (&decoded, output) {
            // llama_decode may return before a device is done; reading a row waits for it.
            Backend::logits(&self.context, index);
        }
        self.cpu_time += thread_cpu_time().saturating_sub(before);
        decoded
    }

    /// Frees the cells of a sequence.
    pub fn clear(&mut self, sequence: SeqId) {
        Backend::clear(&mut self.context, sequence);
    }

    /// CPU time of the calling thread inside [`BenchmarkContext::decode`], without the other compute threads.
    pub fn decode_cpu_time(&self) -> Duration {
        self.cpu_time
    }
}
