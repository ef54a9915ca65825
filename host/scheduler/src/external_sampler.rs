//! Requests whose tokens an external sampler picks.
//!
//! After a row with output such a request has no token to continue with. It keeps its id and cells, and has no row
//! until the sampler answers; steps wait for it as for [callers that return](crate::returning_callers). If the request
//! is preempted meanwhile, the answer is still added to its tokens. If the answer comes before the request runs again,
//! the request is recomputed with it.

use crate::request::{RequestId, length};
use crate::running::Wait;
use crate::scheduler::Scheduler;
use crate::{Time, Token};
use std::time::Duration;

impl Scheduler {
    /// Lets requests wait for their samplers after a step that took `took`.
    pub(crate) fn await_samplers(&mut self, requests: &[RequestId], took: Duration) {
        for &id in requests {
            let Some(running) = self.running.get_mut(id) else {
                continue;
            };
            running.wait = Wait::Sampler;
            running.has_external_sampler = true;
            let request = &running.request;
            let retention = request.retention.clone();
            let was_late = request.progress.late;
            self.window.callers.expect(retention, was_late, took);
        }
    }

    /// The sampler of a request picked a token; forced tokens may follow it. `finished` if the request needs no further
    /// token. Not between [`Scheduler::plan`] and [`Scheduler::step_done`].
    pub fn external_sample_arrived(
        &mut self,
        now: Time,
        id: RequestId,
        tokens: &[Token],
        finished: bool,
    ) {
        debug_assert!(self.is_between_steps(), "answer during a step");
        let running = self.running.get_mut(id);
        let runs = running.is_some();
        let request = match running {
            Some(running) => {
                if running.wait == Wait::Sampler {
                    running.wait = Wait::Ready;
                }
                &mut running.request
            }
            None => match self.queue.get_mut(id) {
                Some(request) => request,
                None => return,
            },
        };
        request.progress.late = self.window.callers.answered(&request.retention, now);
        request.tokens.extend_from_slice(tokens);
        request.progress.generated += length(tokens);
        let (tenant, generated) = (request.tenant, request.progress.generated);
        for _ in tokens {
            self.queue.charge_generated(tenant);
        }
        if !finished {
            return;
        }
        self.output_length.observe(generated);
        if runs {
            self.finish(id);
        } else {
            self.take_waiting(id);
        }
    }
}
