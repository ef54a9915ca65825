//! The result of sampling a step.

use crate::generation::FinishReason;
use crate::{Error, Token};
use corral_sampling::TopKMiss;
use corral_scheduler::RequestId;
use std::time::Duration;

/// The result of a step's rows with output.
#[derive(Default)]
pub(super) struct StepOutput {
    /// Tokens of one row are adjacent and in order.
    pub tokens: Vec<(RequestId, Token)>,
    /// Requests that need no further token.
    pub finished: Vec<RequestId>,
    /// Requests whose next token an external sampler picks.
    pub awaits_sampler: Vec<RequestId>,
    /// Requests whose top-k logits did not suffice.
    pub needs_all_logits: Vec<RequestId>,
    /// Requests whose rows were not sampled, because their tenant had no time left.
    pub deferred: Vec<RequestId>,
    /// Requests that failed.
    pub failed: Vec<RequestId>,
    /// The part of the sampling time that constraints took.
    pub constraint_time: Duration,
}

/// The tokens that a request gained by a step.
#[derive(Default)]
pub(super) struct NewTokens {
    /// In order: accepted drafts, one sampled token, and forced tokens.
    pub tokens: Vec<Token>,
    /// Set if the last token ends the generation.
    pub finish: Option<FinishReason>,
    /// Why sampling stopped after the last of the tokens.
    pub error: Option<SampleError>,
}

/// Why a row gave no token.
pub(super) enum SampleError {
    /// The top-k logits do not determine the result.
    NeedsAllLogits,
    /// The request fails.
    Failed(Error),
}

impl From<TopKMiss> for SampleError {
    fn from(_: TopKMiss) -> Self {
        Self::NeedsAllLogits
    }
}

impl<E: Into<Error>> From<E> for SampleError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

pub(super) fn no_finite_logit() -> Error {
    let text = "no token is left with a finite logit; the samplers ban them all, or the model's weights are damaged";
    Error::Failed(text.into())
}
