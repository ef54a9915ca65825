//! Queue times and deadlines of all requests, in order.

use crate::Time;
use crate::request::{Request, RequestId};
use crate::scheduler::Scheduler;
use crate::step::Expired;
use std::collections::BTreeSet;

/// The timers of requests that have not ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers(BTreeSet<(Time, RequestId)>);

impl Timers {
    /// Adds the timers of a request.
    pub fn add(&mut self, request: &Request) {
        let times = [request.queue_until, request.deadline];
        let timers = times.into_iter().flatten().map(|time| (time, request.id));
        self.0.extend(timers);
    }

    /// Removes the timers of a request.
    pub fn remove(&mut self, request: &Request) {
        for time in [request.queue_until, request.deadline]
            .into_iter()
            .flatten()
        {
            self.0.remove(&(time, request.id));
        }
    }

    /// Removes a request's queue time: it has started once, so it may wait for ever.
    pub fn drop_queue_time(&mut self, request: &mut Request) {
        if let Some(time) = request.queue_until.take() {
            self.0.remove(&(time, request.id));
        }
    }

    /// Removes and returns the requests with a timer up to `now`.
    pub fn due(&mut self, now: Time) -> Vec<RequestId> {
        let mut due = Vec::new();
        while let Some(&timer) = self.0.first().filter(|(time, _)| *time <= now) {
            self.0.remove(&timer);
            due.push(timer.1);
        }
        due
    }

    /// The next timer.
    pub fn next(&self) -> Option<Time> {
        self.0.first().map(|(time, _)| *time)
    }
}

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
