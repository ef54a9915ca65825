//! Ends requests past their deadline or their queue time.

use crate::Time;
use crate::request::RequestId;
use crate::scheduler::Scheduler;
use crate::step::Expired;

impl Scheduler {
    /// Ends the `due` requests whose deadline has passed.
    pub(crate) fn expire_deadlines(
        &mut self,
        now: Time,
        due: &[RequestId],
    ) -> Vec<(RequestId, Expired)> {
        let mut expired = Vec::new();
        for &id in due {
            let running = self.running.get(id).map(|running| &running.request);
            let request = running.or_else(|| self.queue.get(id));
            let deadline = request.and_then(|request| request.deadline);
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.cancel(id);
                expired.push((id, Expired::Deadline));
            }
        }
        expired
    }

    /// Ends the `due` requests that waited in the queue for too long.
    pub(crate) fn expire_queue_times(
        &mut self,
        now: Time,
        due: &[RequestId],
    ) -> Vec<(RequestId, Expired)> {
        let mut expired = Vec::new();
        for &id in due {
            let until = self.queue.get(id).and_then(|request| request.queue_until);
            if until.is_some_and(|until| until <= now) {
                let retry_after = self.queue.retry_after(now);
                self.cancel(id);
                expired.push((id, Expired::Queue { retry_after }));
            }
        }
        expired
    }
}
