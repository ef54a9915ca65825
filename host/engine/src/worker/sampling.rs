//! Samples tokens from a step's logits, delivers them and their text, and proposes drafts of prompt lookup for the next
//! step.
//!
//! A row with drafts has logits after its last known token and after each draft. Tokens are sampled one after the
//! other, with one random number each, as they would be without drafts; the next logits count as long as the sampled
//! token equals the draft that they follow. So drafts do not change what a request generates.
//!
//! Tokens that a constraint forces follow without sampling.

use super::constrained::ConstraintTime;
use super::device_top_k::all_logits;
use super::sampling_budget::SamplingBudget;
use super::step_output::{NewTokens, SampleError, StepOutput, no_finite_logit};
use super::{ActiveWork, GenerationState, Vocabulary, Worker};
use crate::backend::Backend;
use crate::generation::{FinishReason, Outcome};
use crate::metrics::add;
use crate::reader_wake_batch::WakeBatch;
use crate::{Error, Token};
use corral_sampling::{Logits, Scratch, TokenLogprobs, logprobs};
use corral_scheduler::{DraftSource, RequestId, Row, accepted_drafts};
use std::time::{Duration, Instant};

/// What sampling a row needs of the worker.
pub(super) struct SampleContext<'a> {
    pub vocabulary: &'a dyn Vocabulary,
    pub scratch: &'a mut Scratch,
    pub text: &'a mut String,
    pub wake_batch: &'a mut WakeBatch,
    /// Buffer for a request's tokens followed by its new ones.
    pub history: &'a mut Vec<Token>,
    pub constraint_time: &'a mut ConstraintTime,
}

impl GenerationState {
    /// Samples until a token differs from its draft. `tokens`: known so far. `logits(n)`: after `tokens` and the first
    /// `n` drafts.
    fn sample<'a>(
        &mut self,
        tokens: &[Token],
        drafts: &[Token],
        logits: impl Fn(usize) -> Option<Logits<'a>>,
        context: &mut SampleContext<'_>,
    ) -> NewTokens {
        let mut new = NewTokens::default();
        while new.finish.is_none() && drafts.get(..new.tokens.len()) == Some(&new.tokens) {
            let sampled = match logits(new.tokens.len()) {
                Some(row) => self.sample_token(tokens, row, context, &mut new),
                None => Err(no_finite_logit().into()),
            };
            if let Err(error) = sampled {
                new.error = Some(error);
                break;
            }
        }
        new
    }

    /// Samples a token and adds the forced tokens after it.
    fn sample_token(
        &mut self,
        tokens: &[Token],
        logits: Logits<'_>,
        context: &mut SampleContext<'_>,
        new: &mut NewTokens,
    ) -> Result<(), SampleError> {
        // Checked before anything is drawn.
        let logprobs_row = match self.options.logprobs {
            Some(top) => Some((all_logits(logits)?, usize::from(top))),
            None => None,
        };
        let history = if new.tokens.is_empty() {
            tokens
        } else {
            context.history.clear();
            context.history.extend_from_slice(tokens);
            context.history.extend_from_slice(&new.tokens);
            context.history.as_slice()
        };
        let chain = &mut self.chain;
        let token = match (&mut self.constrained, self.options.fixed_token) {
            (Some(constrained), _) => constrained.sample(
                chain,
                logits,
                history,
                context.scratch,
                context.constraint_time,
            )?,
            (None, Some(fixed)) => fixed,
            (None, None) => chain
                .sample(logits, history, None, context.scratch)?
                .ok_or_else(no_finite_logit)?,
        };
        let logprobs = match logprobs_row {
            Some((row, top)) => Some(logprobs(row, token, top, context.scratch)?),
            None => None,
        };
        Ok(self.add_sampled(token, logprobs, context, new)?)
    }

    /// Delivers a sampled token and the tokens that the constraint forces after it.
    pub(super) fn add_sampled(
        &mut self,
        token: Token,
        logprobs: Option<TokenLogprobs>,
        context: &mut SampleContext<'_>,
        new: &mut NewTokens,
    ) -> Result<(), Error> {
        new.tokens.push(token);
        new.finish = self.deliver(token, logprobs, context);
        let remaining = self
            .options
            .max_tokens
            .saturating_sub(self.generated_tokens);
        let Some(constrained) = &mut self.constrained else {
            return Ok(());
        };
        // Log probabilities need each token computed.
        let forced = match (new.finish, self.options.logprobs) {
            (None, None) if remaining > 0 => {
                constrained.forced(remaining as usize, context.constraint_time)?
            }
            _ => Vec::new(),
        };
        let complete = constrained.is_complete();
        for token in forced {
            new.tokens.push(token);
            new.finish = self.deliver(token, None, context);
            if new.finish.is_some() {
                break;
            }
        }
        if complete {
            new.finish.get_or_insert(FinishReason::End);
        }
        Ok(())
    }

    /// Delivers a token. Returns a reason if it is the last one.
    fn deliver(
        &mut self,
        token: Token,
        logprobs: Option<TokenLogprobs>,
        context: &mut SampleContext<'_>,
    ) -> Option<FinishReason> {
        self.generated_tokens += 1;
        let text = &mut *context.text;
        text.clear();
        let stopped = self.text.push(context.vocabulary.piece(token), text);
        let reader = self.sender.push(token, logprobs, text);
        context.wake_batch.add(reader);
        if stopped {
            Some(FinishReason::Stop)
        } else if !self.options.ignore_eos && context.vocabulary.ends_generation(token) {
            Some(FinishReason::End)
        } else if self.generated_tokens >= self.options.max_tokens {
            Some(FinishReason::Length)
        } else {
            None
        }
    }
}

impl<B: Backend> Worker<B> {
    /// Samples and delivers tokens, or answers, for each row with output. `compute_time`: what the step took.
    pub(super) fn sample(
        &mut self,
        rows: &[Row],
        now: Instant,
        compute_time: Duration,
    ) -> StepOutput {
        let mut output = StepOutput::default();
        let constrained = |row: &&Row| row.output && self.is_constrained(row.request);
        let constrained = rows.iter().filter(constrained).count();
        let mut constraint_time = ConstraintTime::for_step(constrained);
        let mut budget = SamplingBudget::for_step(compute_time, &self.scheduler);
        // Deferred rows come first.
        let order: &[bool] = match self.deferred.is_empty() {
            true => &[false],
            false => &[true, false],
        };
        for &deferred in order {
            let mut index = 0;
            for row in rows {
                let last_known_input = index + (row.known_end() - row.from) as usize - 1;
                index += row.tokens() as usize;
                if self.deferred.contains(&row.request) != deferred {
                    continue;
                }
                self.wake_batch.flush_if_due();
                self.process_row(
                    row,
                    last_known_input,
                    now,
                    &mut output,
                    &mut constraint_time,
                    &mut budget,
                );
            }
        }
        self.wake_batch.flush();
        output.constraint_time = constraint_time.taken;
        for (tenant, took) in budget.taken() {
            self.scheduler.charge_sampling(tenant, took);
        }
        output
    }

    /// Samples or answers for a row. `last_known_input`: the index of its last input that is no draft.
    fn process_row(
        &mut self,
        row: &Row,
        last_known_input: usize,
        now: Instant,
        output: &mut StepOutput,
        constraint_time: &mut ConstraintTime,
        budget: &mut SamplingBudget,
    ) {
        let Some(request) = self.requests.get_mut(&row.request) else {
            return;
        };
        request.computed += u64::from(row.known_end() - row.from);
        if !row.output {
            return;
        }
        match &request.work {
            ActiveWork::NextToken { .. } => {
                self.answer_next_token(row, last_known_input, now, output)
            }
            ActiveWork::Generate(generation) if generation.external.is_some() => {
                self.request_external_sample(row, last_known_input, output, constraint_time);
            }
            ActiveWork::Generate(_) => {
                let tenant = self.scheduler.tenant(row.request);
                let sampled = budget.sample(tenant, || {
                    self.sample_row(row, last_known_input, now, output, constraint_time);
                });
                if !sampled {
                    // The drafts were computed for nothing.
                    let rejected = u64::from(row.drafts);
                    add(&self.metrics.rejected_drafts, rejected);
                    if self.scheduler.draft_source(row.request) == DraftSource::DraftModel {
                        add(&self.metrics.model_drafts_rejected, rejected);
                    }
                    output.deferred.push(row.request);
                }
            }
        }
    }

    /// Samples tokens for a row of a generation.
    fn sample_row(
        &mut self,
        row: &Row,
        last_known_input: usize,
        now: Instant,
        output: &mut StepOutput,
        constraint_time: &mut ConstraintTime,
    ) {
        let Some(request) = self.requests.get_mut(&row.request) else {
            return;
        };
        let Some(generation) = request.generation_mut() else {
            return;
        };
        let drafts = self.scheduler.drafts_of(row);
        let logits = |accepted| self.backend.output(last_known_input + accepted);
        let mut context = SampleContext {
            vocabulary: &*self.vocabulary,
            scratch: &mut self.scratch,
            text: &mut self.text,
            wake_batch: &mut self.wake_batch,
            history: &mut self.history,
            constraint_time,
        };
        let tokens = self.scheduler.tokens(row.request);
        let new = generation.sample(tokens, drafts, logits, &mut context);
        let accepted = u64::from(accepted_drafts(drafts, &new.tokens));
        request.computed += accepted;
        add(&self.metrics.accepted_drafts, accepted);
        let rejected = u64::from(row.drafts) - accepted;
        add(&self.metrics.rejected_drafts, rejected);
        if self.scheduler.draft_source(row.request) == DraftSource::DraftModel {
            add(&self.metrics.model_drafts_accepted, accepted);
            add(&self.metrics.model_drafts_rejected, rejected);
        }
        self.generated_tokens += new.tokens.len() as u64;
        if !new.tokens.is_empty() {
            let progress = || self.scheduler.progress(row.request);
            let cached = || progress().map_or(0, |progress| progress.cached);
            request.record_tokens(now, new.tokens.len(), cached, &self.metrics);
        }
        let tokens = new.tokens.iter().map(|&token| (row.request, token));
        output.tokens.extend(tokens);
        match (new.error, new.finish) {
            (Some(SampleError::Failed(error)), _) => {
                self.fail(row.request, error);
                output.failed.push(row.request);
            }
            (Some(SampleError::NeedsAllLogits), _) => output.needs_all_logits.push(row.request),
            (None, Some(finish)) => {
                output.finished.push(row.request);
                let uncomputed = new.tokens.len() as u64 - accepted;
                self.finish(row.request, finish, uncomputed, now);
            }
            (None, None) => {}
        }
    }

    /// Proposes drafts of prompt lookup for the requests that gained tokens.
    pub(super) fn propose_drafts(&mut self, output: &StepOutput) {
        for tokens in output.tokens.chunk_by(|a, b| a.0 == b.0) {
            let id = tokens[0].0;
            let request = self.requests.get_mut(&id);
            let Some(generation) = request.and_then(|request| request.generation_mut()) else {
                continue;
            };
            if let Some(lookup) = &mut generation.lookup {
                let most = generation.options.max_draft_tokens.unwrap_or(0).into();
                lookup.propose(self.scheduler.tokens(id), most, &mut self.drafts);
                self.scheduler.add_lookup_drafts(id, &self.drafts);
            }
        }
    }

    /// Finishes a generation. `uncomputed` of its tokens were not computed.
    pub(super) fn finish(
        &mut self,
        id: RequestId,
        finish: FinishReason,
        uncomputed: u64,
        now: Instant,
    ) {
        let Some(request) = self.requests.remove(&id) else {
            return;
        };
        let times = request.times(now);
        let progress = self.scheduler.progress(id);
        if let Some(trace) = request.trace() {
            request.record_end(now, progress.clone());
            trace.update(|record| record.end = Some(Ok(finish)));
        }
        let ActiveWork::Generate(mut generation) = request.work else {
            return;
        };
        let (cached, recomputed) = progress.map_or((0, 0), |p| (p.cached, p.recomputed));
        let outcome = Outcome {
            finish,
            prompt_tokens: generation.prompt_tokens,
            cached_tokens: cached.min(generation.prompt_tokens),
            generated_tokens: generation.generated_tokens,
            queue_time: times.queue,
            prefill_time: times.prefill,
            decode_time: times.decode,
        };
        let metrics = &self.metrics;
        add(&metrics.finished, 1);
        add(&metrics.prompt_tokens, u64::from(outcome.prompt_tokens));
        let generated = u64::from(outcome.generated_tokens);
        add(&metrics.generated_tokens, generated);
        // No step computes a request's last token; the metric counts the others.
        add(&metrics.uncomputed_tokens, uncomputed - 1);
        add(&metrics.cached_tokens, u64::from(cached));
        add(&metrics.recomputed_tokens, u64::from(recomputed));
        self.count_times(&times);
        if let Some(observer) = &request.observer {
            observer.finished(times.queue + times.prefill + times.decode);
        }
        self.text.clear();
        generation.text.finish(&mut self.text);
        // Before the reply: the caller may continue at once.
        drop(request.permit);
        let reader = generation.sender.finish(&self.text, Ok(outcome));
        self.wake_batch.add(reader);
    }
}
