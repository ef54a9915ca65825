//! Requests whose tokens an external sampler picks (see [`crate::external_sampler`]).

use super::constrained::ConstraintTime;
use super::device_top_k::{all_logits, most_likely};
use super::sampling::SampleContext;
use super::step_output::{NewTokens, SampleError, StepOutput, no_finite_logit};
use super::{GenerationState, Worker};
use crate::backend::Backend;
use crate::external_sampler::{
    ExternalSampler, ExternalSamplerFactory, SamplingReply, SamplingRequest, SamplingRequestOptions,
};
use crate::metrics::{add, add_time};
use crate::{Error, Token};
use corral_llama::IMAGE_TOKENS;
use corral_sampling::{Logits, Scratch, TokenLogprobs};
use corral_scheduler::{RequestId, Row};
use std::sync::Arc;
use std::time::Instant;

/// The external sampler of a request.
pub(super) struct ExternalSamplerState {
    factory: Arc<dyn ExternalSamplerFactory>,
    seed: u64,
    /// Exists from the request's admission on.
    sampler: Option<Box<dyn ExternalSampler>>,
    options: SamplingRequestOptions,
    /// Tokens that the sampler has not received yet.
    new_tokens: Vec<Token>,
    pending: Option<PendingSample>,
}

/// A sampling request without an answer.
struct PendingSample {
    sent: Instant,
    /// The candidates that the request contained.
    candidates: Vec<(Token, f32)>,
    /// The log probability of the first candidate, and the likeliest tokens, if the caller wants them.
    logprobs: Option<TokenLogprobs>,
}

impl ExternalSamplerState {
    pub fn new(factory: Arc<dyn ExternalSamplerFactory>, seed: u64, prompt: &[Token]) -> Self {
        let options = factory.request_options();
        let first = prompt.len().saturating_sub(options.history as usize);
        Self {
            factory,
            seed,
            sampler: None,
            options,
            // Guests know no tokens outside of the vocabulary.
            new_tokens: prompt[first..]
                .iter()
                .copied()
                .filter(|token| !IMAGE_TOKENS.contains(token))
                .collect(),
            pending: None,
        }
    }

    /// Starts the sampler, unless it runs already.
    pub fn start(&mut self) {
        let (factory, seed) = (&self.factory, self.seed);
        self.sampler.get_or_insert_with(|| factory.start(seed));
    }
}

impl PendingSample {
    /// The log probabilities to report for an answer. `None` if the token is not a candidate.
    fn accept(self, token: Token) -> Option<Option<TokenLogprobs>> {
        let logit = |token| {
            let mut candidates = self.candidates.iter();
            candidates.find_map(|&(other, logit)| (other == token).then_some(logit))
        };
        let difference = self.candidates.first()?.1 - logit(token)?;
        Some(self.logprobs.map(|logprobs| {
            // Exact if the token is among the likeliest ones.
            let of_token = |&(other, logprob)| (other == token).then_some(logprob);
            let exact = logprobs.top.iter().find_map(of_token);
            TokenLogprobs {
                logprob: exact.unwrap_or(logprobs.logprob - difference),
                top: logprobs.top,
            }
        }))
    }
}

impl GenerationState {
    fn waits_for_sample(&self) -> bool {
        let external = self.external.as_ref();
        external.is_some_and(|external| external.pending.is_some())
    }

    /// Sends the distribution after `position` tokens to the external sampler.
    fn request_sample(
        &mut self,
        logits: Logits<'_>,
        position: u32,
        reply: impl FnOnce() -> SamplingReply,
        scratch: &mut Scratch,
        time: &mut ConstraintTime,
    ) -> Result<(), SampleError> {
        let Some(external) = &mut self.external else {
            return Ok(());
        };
        let mask = match &mut self.constrained {
            Some(constrained) => Some(constrained.mask(time)?),
            None => None,
        };
        let count = external.options.candidates as usize;
        let candidates = most_likely(logits, mask, count, scratch)?;
        let &(likeliest, _) = candidates.first().ok_or_else(no_finite_logit)?;
        let statistics = match external.options.statistics {
            true => {
                let row = all_logits(logits)?;
                Some(corral_sampling::statistics(row, scratch).ok_or_else(no_finite_logit)?)
            }
            false => None,
        };
        let logprobs = match self.options.logprobs {
            Some(top) => {
                let row = all_logits(logits)?;
                Some(corral_sampling::logprobs(
                    row,
                    likeliest,
                    usize::from(top),
                    scratch,
                )?)
            }
            None => None,
        };
        external.pending = Some(PendingSample {
            sent: Instant::now(),
            candidates: candidates.clone(),
            logprobs,
        });
        let request = SamplingRequest {
            candidates,
            statistics,
            new_tokens: std::mem::take(&mut external.new_tokens),
            position,
        };
        external.start();
        if let Some(sampler) = &mut external.sampler {
            sampler.sample(request, reply());
        }
        Ok(())
    }
}

impl<B: Backend> Worker<B> {
    /// Requests a token for a computed row with output; its last input has the index `last`.
    pub(super) fn request_external_sample(
        &mut self,
        row: &Row,
        last: usize,
        output: &mut StepOutput,
        time: &mut ConstraintTime,
    ) {
        let request = self.requests.get_mut(&row.request);
        let Some(generation) = request.and_then(|request| request.generation_mut()) else {
            return;
        };
        // A request that was preempted and recomputed still waits for its first answer.
        if !generation.waits_for_sample() {
            let reply = || self.sampler_mailbox.reply_for(row.request);
            let sent = match self.backend.output(last) {
                Some(logits) => {
                    generation.request_sample(logits, row.to, reply, &mut self.scratch, time)
                }
                None => Err(no_finite_logit().into()),
            };
            match sent {
                Ok(()) => add(&self.metrics.external_sampler_calls, 1),
                Err(SampleError::NeedsAllLogits) => {
                    output.needs_all_logits.push(row.request);
                    return;
                }
                Err(SampleError::Failed(error)) => {
                    self.fail(row.request, error);
                    output.failed.push(row.request);
                    return;
                }
            }
        }
        output.awaits_sampler.push(row.request);
    }

    /// Continues requests with the tokens that arrived from external samplers.
    pub(super) fn take_external_samples(&mut self) {
        let answers = self.sampler_mailbox.take();
        let constrained = answers.iter().filter(|(id, _)| self.is_constrained(*id));
        let mut time = ConstraintTime::for_step(constrained.count());
        for (id, answer) in answers {
            let now = Instant::now();
            let request = self.requests.get_mut(&id);
            let generation = request.and_then(|request| request.generation_mut());
            let external = generation.and_then(|generation| generation.external.as_mut());
            let Some(pending) = external.and_then(|external| external.pending.take()) else {
                continue;
            };
            add_time(&self.metrics.external_sampler_nanos, now - pending.sent);
            let accepted = answer.and_then(|token| {
                let logprobs = pending.accept(token).ok_or_else(|| {
                    Error::Failed(format!(
                        "the sampling plugin chose token {token}, which is not one of its candidates"
                    ))
                })?;
                self.accept_external_sample(id, token, logprobs, now, &mut time)
            });
            if let Err(error) = accepted {
                self.scheduler.cancel(id);
                self.fail(id, error);
            }
        }
    }

    /// Continues a request with a token of its external sampler.
    fn accept_external_sample(
        &mut self,
        id: RequestId,
        token: Token,
        logprobs: Option<TokenLogprobs>,
        now: Instant,
        constraint_time: &mut ConstraintTime,
    ) -> Result<(), Error> {
        let Some(request) = self.requests.get_mut(&id) else {
            return Ok(());
        };
        let Some(generation) = request.generation_mut() else {
            return Ok(());
        };
        if let Some(constrained) = &mut generation.constrained {
            constrained.accept(token, constraint_time)?;
        }
        let mut context = SampleContext {
            vocabulary: &*self.vocabulary,
            scratch: &mut self.scratch,
            text: &mut self.text,
            wake_batch: &mut self.wake_batch,
            history: &mut self.history,
            constraint_time,
        };
        let mut new = NewTokens::default();
        let added = generation.add_sampled(token, logprobs, &mut context, &mut new);
        self.generated_tokens += new.tokens.len() as u64;
        added?;
        if let Some(external) = &mut generation.external {
            external.new_tokens.extend_from_slice(&new.tokens);
        }
        let progress = || self.scheduler.progress(id);
        let cached = || progress().map_or(0, |progress| progress.cached);
        request.record_tokens(now, new.tokens.len(), cached, &self.metrics);
        if let Some(finish) = new.finish {
            self.finish(id, finish, new.tokens.len() as u64, now);
        }
        let (now, finished) = (self.time(now), new.finish.is_some());
        self.scheduler
            .external_sample_arrived(now, id, &new.tokens, finished);
        Ok(())
    }

    pub(super) fn is_constrained(&self, id: RequestId) -> bool {
        let request = self.requests.get(&id);
        let generation = request.and_then(|request| request.generation());
        generation.is_some_and(|generation| generation.constrained.is_some())
    }
}
