//! Adds requests to the scheduler, and ends the ones that do not finish: canceled, failed or expired.

use super::device_top_k;
use super::{
    ActiveRequest, ActiveWork, GenerationState, NewRequest, Prompt, RequestTimes, RequestWork,
    Worker,
};
use crate::Error;
use crate::backend::Backend;
use crate::metrics::{EngineMetrics, add, add_time};
use crate::prompt_lookup::PromptLookup;
use crate::request_observer::ObservedGeneration;
use crate::text_decoder::TextDecoder;
use corral_sampling::SamplerChain;
use corral_scheduler::{
    EnqueueError, Expired, Request, RequestId, RequestProgress, SchedulerConfig,
};
use std::sync::atomic::AtomicU64;
use std::time::Instant;

impl<B: Backend> Worker<B> {
    pub(super) fn enqueue(&mut self, request: NewRequest) {
        let NewRequest {
            prompt: Prompt {
                tokens: prompt,
                images,
            },
            caller,
            adapter,
            retention,
            continued,
            arrived,
            permit,
            work,
        } = request;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let prompt_tokens = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        let scope = caller.scope().with(adapter);
        self.find_prefixes(scope, caller.prefix_owner);
        if let Some(feed) = &mut self.cache_feed {
            feed.set_owner(scope, caller.prefix_owner);
        }
        let external = work.external_sampling(&prompt);
        let arrived_at = self.time(arrived);
        let request = Request {
            id,
            tenant: caller.tenant,
            scope,
            priority: caller.priority,
            latency: caller.latency,
            tokens: prompt,
            max_tokens: work.max_tokens(),
            arrived_at,
            queue_until: caller
                .queue_time
                .map(|time| arrived_at.saturating_add(time)),
            deadline: caller.deadline.map(|deadline| self.time(deadline)),
            quota: caller.cell_share.map(|share| share.of(self.config.cells)),
            retention,
            continued,
            logits: device_top_k::logits_kind(&work, self.top_k),
            progress: RequestProgress::default(),
        };
        let now = self.time(Instant::now());
        if !self.scheduler.has_room(now, caller.tenant) {
            // Requests that nobody reads any more must not take places in the queue.
            self.cancel_abandoned();
        }
        if let Err(error) = self.scheduler.enqueue(now, request) {
            let counter = match error {
                EnqueueError::DeadlinePassed => &self.metrics.expired,
                _ => &self.metrics.refused,
            };
            add(counter, 1);
            // Before the reply: the caller may retry at once.
            drop(permit);
            work.refuse(enqueue_error(error, self.config));
            return;
        }
        let mut observer = None;
        let work = match work {
            RequestWork::NextToken { request, sender } => ActiveWork::NextToken { request, sender },
            RequestWork::Generate {
                mut options,
                sender,
            } => {
                observer = options.observer.take().map(ObservedGeneration::new);
                let can_draft = external.is_none() && self.config.max_drafts > 0;
                let looks_up = can_draft && options.max_draft_tokens.is_some_and(|most| most > 0);
                let uses_model =
                    options.max_draft_tokens != Some(0) && options.fixed_token.is_none();
                let seed = options.seed.unwrap_or_else(rand::random);
                ActiveWork::Generate(Box::new(GenerationState {
                    prompt_tokens,
                    generated_tokens: 0,
                    chain: SamplerChain::new(options.samplers.clone(), seed)
                        .with_prompt_length(prompt_tokens as usize),
                    constrained: None,
                    external,
                    text: TextDecoder::new(options.stop.clone()),
                    options,
                    sender,
                    lookup: looks_up.then(PromptLookup::default),
                    uses_draft_model: can_draft && uses_model,
                }))
            }
        };
        let request = ActiveRequest {
            arrived,
            admitted: None,
            first_token: None,
            last_token: None,
            computed: 0,
            observer,
            permit,
            _images: images,
            work,
        };
        self.requests.insert(id, request);
    }

    /// Cancels running and waiting requests whose reader is gone.
    pub(super) fn cancel_abandoned(&mut self) {
        let is_abandoned = |request: &ActiveRequest| match &request.work {
            ActiveWork::Generate(generation) => generation.sender.is_abandoned(),
            ActiveWork::NextToken { sender, .. } => sender.is_abandoned(),
        };
        let requests = self.requests.iter();
        let abandoned = requests.filter(|(_, request)| is_abandoned(request));
        let abandoned: Vec<_> = abandoned.map(|(&id, _)| id).collect();
        self.cancel(&abandoned, &Error::Canceled);
    }

    pub(super) fn cancel(&mut self, ids: &[RequestId], error: &Error) {
        for &id in ids {
            if let Some(request) = self.requests.get(&id).filter(|one| one.trace().is_some()) {
                request.record_end(Instant::now(), self.scheduler.progress(id));
            }
            self.scheduler.cancel(id);
            self.drop_request(id, |metrics| &metrics.canceled, error.clone());
        }
    }

    pub(super) fn fail(&mut self, id: RequestId, error: Error) {
        self.drop_request(id, |metrics| &metrics.failed, error);
    }

    pub(super) fn expire(&mut self, id: RequestId, expired: Expired) {
        let error = match expired {
            Expired::Deadline => Error::DeadlineExceeded,
            Expired::Queue { retry_after } => {
                let request = self.requests.get(&id);
                let waited = request.map(|request| request.arrived.elapsed());
                let seconds = waited.unwrap_or_default().as_secs_f64();
                Error::QueueTimeout {
                    reason: format!("the request was not admitted within {seconds:.1} s"),
                    retry_after,
                }
            }
        };
        self.drop_request(id, |metrics| &metrics.expired, error);
    }

    /// Counts a request and ends it with an error.
    fn drop_request(
        &mut self,
        id: RequestId,
        counter: fn(&EngineMetrics) -> &AtomicU64,
        error: Error,
    ) {
        let Some(request) = self.requests.remove(&id) else {
            return;
        };
        add(counter(&self.metrics), 1);
        add(&self.metrics.discarded_tokens, request.computed);
        let now = Instant::now();
        self.count_times(&request.times(now));
        if let Some(trace) = request.trace() {
            request.record_end(now, self.scheduler.progress(id));
            trace.failed(&error);
        }
        // Before the reply: the caller may retry at once.
        drop(request.permit);
        match request.work {
            ActiveWork::Generate(generation) => {
                let reader = generation.sender.finish("", Err(error));
                self.wake_batch.add(reader);
            }
            ActiveWork::NextToken { sender, .. } => sender.finish(Err(error)),
        }
    }

    pub(super) fn count_times(&self, times: &RequestTimes) {
        add_time(&self.metrics.queue_nanos, times.queue);
        add_time(&self.metrics.prefill_nanos, times.prefill);
        add_time(&self.metrics.decode_nanos, times.decode);
    }
}

fn enqueue_error(error: EnqueueError, config: SchedulerConfig) -> Error {
    match error {
        EnqueueError::TooLarge { needed, limit } => Error::ContextFull { needed, limit },
        EnqueueError::QueueFull { retry_after } => Error::Overloaded {
            reason: format!("{} requests are already waiting", config.max_queue),
            retry_after,
        },
        EnqueueError::TenantQueueFull { retry_after } => Error::Overloaded {
            reason: format!(
                "{} requests of this tenant are already waiting",
                config.max_tenant_queue
            ),
            retry_after,
        },
        EnqueueError::DeadlinePassed => Error::DeadlineExceeded,
    }
}
