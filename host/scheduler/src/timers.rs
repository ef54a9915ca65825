//! Queue times and deadlines of all requests, in order.
//!
//! Without a clock: the caller passes the time. It does not end requests; it returns those that are due.

use crate::Time;
use crate::request::{Request, RequestId};
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::request;
    use std::time::Duration;

    const MS: Duration = Duration::from_millis(1);

    fn timed(key: u64, queue_until: u32, deadline: u32) -> Request {
        Request {
            queue_until: Some(queue_until * MS),
            deadline: Some(deadline * MS),
            ..request(key, 1, 1)
        }
    }

    #[test]
    fn timers_are_due_once_and_in_order() {
        let mut timers = Timers::default();
        timers.add(&timed(1, 5, 9));
        timers.add(&timed(2, 3, 9));
        assert_eq!(timers.next(), Some(3 * MS));
        assert_eq!(timers.due(2 * MS), []);
        assert_eq!(timers.due(5 * MS), [RequestId(2), RequestId(1)]);
        assert_eq!(timers.due(5 * MS), []);
        assert_eq!(timers.due(9 * MS), [RequestId(1), RequestId(2)]);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn started_request_keeps_its_deadline_only() {
        let mut timers = Timers::default();
        let mut started = timed(1, 5, 9);
        timers.add(&started);
        timers.drop_queue_time(&mut started);
        assert_eq!((timers.next(), started.queue_until), (Some(9 * MS), None));
        timers.remove(&started);
        assert_eq!(timers.next(), None);
    }
}
