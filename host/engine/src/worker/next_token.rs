//! Next-token requests: they end with the distribution after their last token.

use super::device_top_k;
use super::step_output::{SampleError, StepOutput, no_finite_logit};
use super::{ActiveWork, Worker};
use crate::backend::Backend;
use crate::metrics::add;
use crate::next_token::Distribution;
use corral_scheduler::Row;
use std::time::Instant;

impl<B: Backend> Worker<B> {
    /// Answers a next-token request from the logits after its last input, which has the index `last`.
    pub(super) fn answer_next_token(
        &mut self,
        row: &Row,
        last: usize,
        now: Instant,
        output: &mut StepOutput,
    ) {
        let active = self.requests.get(&row.request);
        let Some(ActiveWork::NextToken { request, .. }) = active.map(|active| &active.work) else {
            return;
        };
        let distribution = match self.backend.output(last) {
            Some(logits) => device_top_k::distribution(request, logits, row.to, &mut self.scratch),
            None => Err(no_finite_logit().into()),
        };
        match distribution {
            Ok(distribution) => {
                self.finish_next_token(row, distribution, now);
                output.finished.push(row.request);
            }
            Err(SampleError::NeedsAllLogits) => output.needs_all_logits.push(row.request),
            Err(SampleError::Failed(error)) => {
                self.fail(row.request, error);
                output.failed.push(row.request);
            }
        }
    }

    fn finish_next_token(&mut self, row: &Row, distribution: Distribution, now: Instant) {
        let Some(request) = self.requests.remove(&row.request) else {
            return;
        };
        let progress = self.scheduler.progress(row.request);
        let (cached, recomputed) = progress.map_or((0, 0), |p| (p.cached, p.recomputed));
        let metrics = &self.metrics;
        add(&metrics.next_token_requests, 1);
        let new = row.to.saturating_sub(cached);
        add(&metrics.next_token_computed_tokens, u64::from(new));
        add(&metrics.recomputed_tokens, u64::from(recomputed));
        self.count_times(&request.times(now));
        // Before the reply: the caller may continue at once.
        drop(request.permit);
        if let ActiveWork::NextToken { sender, .. } = request.work {
            self.wake_batch.reply(sender, distribution);
        }
    }
}
