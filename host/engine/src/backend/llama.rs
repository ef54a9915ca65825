//! [`Backend`] and [`EmbeddingBackend`] for llama.cpp's contexts: converts ids and outputs, without allocations.

use crate::backend::{Backend, LogitsCopied, TokenInput};
use crate::embedding::EmbeddingBackend;
use corral_llama::{DecodeError, EmbeddingContext, LlamaContext, Output, SaveError};
use corral_sampling::{Logits, TopLogits};
use corral_scheduler::{AdapterId, SeqId};
use std::time::Duration;

fn llama_seq(seq: SeqId) -> corral_llama::SeqId {
    seq.0.into()
}

fn llama_inputs(step: &[TokenInput]) -> impl Iterator<Item = corral_llama::TokenInput> + Clone {
    step.iter().map(|input| corral_llama::TokenInput {
        token: input.token,
        position: input.position,
        seq: llama_seq(input.seq),
        output: input.output,
    })
}

impl Backend for LlamaContext {
    fn set_adapter(&mut self, adapter: AdapterId) -> Result<(), DecodeError> {
        // 0 is the model alone, and llama's indices start at 0.
        Self::set_adapter(self, usize::from(adapter.0).checked_sub(1))
    }

    fn decode(&mut self, step: &[TokenInput]) -> Result<(), DecodeError> {
        Self::decode(self, llama_inputs(step))
    }

    fn wait(&mut self) {
        self.synchronize();
    }

    fn threads(&self) -> u32 {
        Self::threads(self)
    }

    fn prepare_fewer_threads(&mut self) -> bool {
        Self::prepare_fewer_threads(self)
    }

    fn use_threads(&mut self, threads: u32) {
        Self::use_threads(self, threads);
    }

    fn queue_delays(&self) -> Option<Vec<Duration>> {
        Self::queue_delays(self)
    }

    fn can_overlap(&self) -> bool {
        Self::can_overlap(self)
    }

    fn decode_overlapped(&mut self, step: &[TokenInput]) -> Result<(), DecodeError> {
        Self::decode_overlapped(self, llama_inputs(step))
    }

    fn logits(&self, index: usize) -> Option<&[f32]> {
        Self::logits(self, index)
    }

    fn output(&self, index: usize) -> Option<Logits<'_>> {
        Some(match Self::output(self, index)? {
            Output::Logits(logits) => Logits::Full(logits),
            Output::TopK { tokens, logits } => Logits::TopK(TopLogits {
                tokens,
                logits,
                vocabulary: self.vocabulary_size(),
            }),
        })
    }

    fn top_k(&self) -> Option<u32> {
        self.device_top_k().map(|top_k| top_k.k)
    }

    fn copied_logits(&self) -> LogitsCopied {
        Self::copied(self)
    }

    fn clear(&mut self, seq: SeqId) {
        Self::clear(self, llama_seq(seq));
    }

    fn share(&mut self, from: SeqId, to: SeqId, length: u32) {
        Self::share(self, llama_seq(from), llama_seq(to), length);
    }

    fn truncate(&mut self, seq: SeqId, length: u32) {
        Self::truncate(self, llama_seq(seq), length);
    }

    fn save(&mut self, seq: SeqId, limit: usize) -> Result<Vec<u8>, SaveError> {
        Self::save(self, llama_seq(seq), limit)
    }

    fn load(&mut self, seq: SeqId, state: &[u8]) -> bool {
        Self::load(self, llama_seq(seq), state)
    }

    fn length(&self, seq: SeqId) -> u32 {
        Self::length(self, llama_seq(seq))
    }
}

impl EmbeddingBackend for EmbeddingContext {
    fn compute(&mut self, step: &[TokenInput], busy: bool) -> Result<(), DecodeError> {
        self.decode(llama_inputs(step), busy)
    }

    fn vector(&self, index: usize) -> Option<&[f32]> {
        Self::vector(self, index)
    }

    fn scores(&self, seq: SeqId) -> Option<&[f32]> {
        Self::scores(self, llama_seq(seq))
    }

    fn clear(&mut self, seq: SeqId) {
        Self::clear(self, llama_seq(seq));
    }
}
