//! Sequences that end with the distribution after their last token: who samples comes back with
//! another one.

use super::sample::{Sampled, Short};
use super::{Times, Worker};
use crate::Error;
use crate::backend::Backend;
use crate::metrics::{EngineMetrics, add};
use crate::next_token::{Distribution, NextTokenRequest};
use crate::reply::Sender;
use corral_sampling::Logits;
use corral_scheduler::{RequestId, Row};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// One of them, from its arrival to its end.
pub(super) struct Looking {
    pub look: NextTokenRequest,
    pub reply: Sender<Distribution>,
    pub submitted: Instant,
    pub admitted: Option<Instant>,
    /// Tokens that were computed for it.
    pub computed: u64,
    pub place: crate::permits::RequestPermit,
}

impl Looking {
    fn times(&self, now: Instant) -> Times {
        let admitted = self.admitted.unwrap_or(now);
        Times {
            queue: admitted - self.submitted,
            prefill: now - admitted,
            decode: Duration::ZERO,
        }
    }

    /// Its place is given back before the caller knows: it may come again at once.
    fn fail(self, error: Error) {
        let Self { reply, place, .. } = self;
        drop(place);
        reply.finish(Err(error));
    }
}

impl<B: Backend> Worker<B> {
    /// Those that nobody waits for any more.
    pub(super) fn abandoned_looks(&self) -> impl Iterator<Item = RequestId> {
        let looks = self.looks.iter();
        looks.filter_map(|(key, look)| look.reply.is_abandoned().then_some(*key))
    }

    /// Ends one before its time, and counts it. The error comes back if there is none of this key.
    pub(super) fn drop_look(
        &mut self,
        key: RequestId,
        counter: fn(&EngineMetrics) -> &AtomicU64,
        error: Error,
    ) -> Option<Error> {
        let Some(look) = self.looks.remove(&key) else {
            return Some(error);
        };
        add(counter(&self.counters), 1);
        add(&self.counters.discarded_tokens, look.computed);
        self.count_times(&look.times(Instant::now()));
        look.fail(error);
        None
    }

    /// A row of one was computed; `last` is the index of its last input.
    pub(super) fn look(&mut self, row: &Row, last: usize, now: Instant, sampled: &mut Sampled) {
        let Some(look) = self.looks.get_mut(&row.request) else {
            return;
        };
        look.computed += u64::from(row.tokens());
        if !row.output {
            return;
        }
        let (look, scratch) = (&look.look, &mut self.scratch);
        let shown = match self.backend.output(last) {
            Some(Logits::Full(logits)) => look
                .distribution(logits, row.to, scratch)
                .map_err(Short::from),
            Some(Logits::TopK(top)) => look
                .distribution_of_top(top, row.to, scratch)
                .map_err(Short::from),
            None => Err(Short::Failed(Error::Failed(
                "the step has no logits where they were asked for".into(),
            ))),
        };
        match shown {
            Ok(shown) => {
                self.show(row, shown, now);
                sampled.ended.push(row.request);
            }
            Err(Short::Unsettled) => sampled.unsettled.push(row.request),
            Err(Short::Failed(error)) => {
                self.fail(row.request, error);
                sampled.broken.push(row.request);
            }
        }
    }

    fn show(&mut self, row: &Row, shown: Distribution, now: Instant) {
        let Some(look) = self.looks.remove(&row.request) else {
            return;
        };
        let progress = self.scheduler.progress(row.request);
        let (cached, recomputed) = progress.map_or((0, 0), |p| (p.cached, p.recomputed));
        let counters = &self.counters;
        add(&counters.next_token_requests, 1);
        let new = row.to.saturating_sub(cached);
        add(&counters.next_token_computed_tokens, u64::from(new));
        add(&counters.recomputed_tokens, u64::from(recomputed));
        self.count_times(&look.times(now));
        let Looking { reply, place, .. } = look;
        drop(place);
        self.bell.reply(reply, shown);
    }
}
