//! Queue times and deadlines of all requests, in order.

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
