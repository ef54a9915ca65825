//! Sampling: from a row of logits to a token.
//!
//! A [`SamplerChain`] applies its [`Sampler`]s in the caller's order, then draws one token by the
//! softmax of what they leave. An empty chain takes the most likely token, the lowest id among
//! equals; so does [`Sampler::Temperature`] of 0, among the tokens that earlier samplers leave. A
//! chain without a temperature draws, even if it consists of penalties only. Logits that are not
//! finite are never drawn.
//!
//! Samplers mean what llama.cpp's samplers of the same names mean; tests compare them. They differ
//! where llama.cpp is wrong: its typical sampling orders tokens of probability 0 by NaN, and a logit
//! bias after top-k leaves its list out of order, which later samplers take as sorted.
//!
//! [`logprobs`], [`most_likely`] and [`statistics`] read a row as the model computed it.
//!
//! If the device returned only the highest logits of a row ([`TopLogits`]), a chain draws what it
//! draws from the whole row, or fails with [`TopKMiss`]. This crate knows no model and no request.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod apply;
mod candidate_list;
mod candidates;
mod dry;
mod exp;
mod logit_row;
mod logprobs;
mod sampler;
mod sampler_chain;
mod softmax;
#[cfg(test)]
mod tests;
mod token_map;
mod top_k;

pub use dry::Dry;
pub use dry::breakers::{
    DryBreakers, MAX_BREAKER_BYTES, MAX_BREAKER_SEQUENCES, MAX_BREAKER_TAIL, MAX_BREAKERS,
};
pub use logprobs::{
    MAX_TOP_LOGPROBS, Statistics, TokenLogprobs, logprobs, most_likely, statistics,
};
pub use sampler::{
    MAX_BIASES, MAX_LOOK_BACK, MAX_PENALTIES, MAX_SAMPLERS, Penalties, Sampler, check_samplers,
};
pub use sampler_chain::{ChainState, SamplerChain};
pub use top_k::{Logits, TopKMiss, TopLogits, top_k_suffices};

/// Index into a model's vocabulary.
pub type Token = u32;

/// A parameter out of range; the text says which one and what is expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

/// Lengths of repetitions, by their distance; for DRY.
type RepetitionLengths = Vec<u32>;

/// Memory that samplers reuse from row to row, so that no token needs an allocation. Nothing of a
/// row stays in it: one scratch serves any number of chains, one after the other.
#[derive(Debug, Default)]
pub struct Scratch {
    row: logit_row::RowScratch,
    list: Vec<candidate_list::Candidate>,
    spare: Vec<candidate_list::Candidate>,
    tokens: token_map::TokenMap,
    lengths: RepetitionLengths,
}
