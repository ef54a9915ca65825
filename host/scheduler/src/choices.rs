//! Sequences whose tokens are chosen elsewhere, by whoever may take its time.
//!
//! After a row with output such a sequence has no token to go on with. It keeps its id and its cells, and
//! has no row until it is told one; steps wait for it like for callers that run the loop themselves (see
//! [`cohort`](super::cohort)). If it has to give way meanwhile, it is told all the same: what it reads
//! again ends at its last token, which may be there by then.

use super::running::Wait;
use super::words::RequestId;
use super::{Scheduler, Time};
use crate::Token;
use std::time::Duration;

impl Scheduler {
    /// A step that took so long showed what may come next to whoever chooses for these.
    pub(super) fn ask(&mut self, asked: &[RequestId], took: Duration) {
        for &key in asked {
            let Some(running) = self.find(key) else {
                continue;
            };
            running.wait = Wait::Chosen;
            running.asks = true;
            let request = &running.request;
            let (claim, punctual) = (request.retention.clone(), !request.progress.late);
            self.cohort.tell(claim, punctual, took);
        }
    }

    /// What comes next in a sequence: the token that was chosen and those that are certain to follow it;
    /// and whether it wants no further one. Not between [`Scheduler::plan`] and [`Scheduler::applied`].
    pub fn sampled_externally(&mut self, now: Time, key: RequestId, tokens: &[Token], ended: bool) {
        debug_assert!(self.is_between(), "chosen between plan and applied");
        let running = self.running.iter_mut().find(|r| r.key() == key);
        let runs = running.is_some();
        let request = match running {
            Some(running) => {
                if running.wait == Wait::Chosen {
                    running.wait = Wait::None;
                }
                &mut running.request
            }
            None => match self.queue.get_mut(key) {
                Some(request) => request,
                None => return,
            },
        };
        let in_time = self.cohort.chosen(&request.retention, now);
        request.progress.late = !in_time;
        request.tokens.extend_from_slice(tokens);
        request.progress.generated += super::words::length(tokens);
        let (tenant, generated) = (request.tenant, request.progress.generated);
        for _ in tokens {
            self.queue.generated(tenant);
        }
        if !ended {
            return;
        }
        self.usual.observe(generated);
        if runs {
            if let Some(running) = self.end(key) {
                self.keep(running);
            }
        } else {
            self.cancel(key);
        }
    }
}
