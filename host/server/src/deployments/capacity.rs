//! What the process can give, against what a manifest asks for.
//!
//! A revision that asks for more is refused when it is deployed, and not when it comes to that. As much
//! memory, time and queue as the command line gives to those that ask for nothing is never too much. One
//! that was taken goes on where the process comes back with less: it is then held to what there is.
//!
//! Each deployment is looked at by itself: what all of them together ask for may be more than there is,
//! and then calls wait for the pool, and the machine's memory may not suffice if all use all of theirs.
//!
//! The sizes of bodies are not held against anything: bodies are passed on as they come and never kept
//! as a whole.

use super::bounded::Seconds;
use super::manifest::{ManifestError, RequestedLimits};
use corral_runtime::Limits;
use std::time::Duration;

/// Requests of a deployment that may wait, for each that can run: a place in the queue costs some tens
/// of kilobytes at worst, the request's head.
const WAITING: usize = 16;

/// What there is for one deployment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    /// Calls that can run at once.
    pub(super) calls: usize,
    /// Bytes of memory that the process can have, where the system says.
    pub(super) memory: Option<u64>,
}

impl Capacity {
    /// Whether there is what `asked` asks for, where `own` holds for what is left out.
    pub(super) fn check(&self, asked: &RequestedLimits, own: &Limits) -> Result<(), ManifestError> {
        self.check_counts(asked, own.queue)?;
        self.check_memory(asked, own)?;
        let time = asked.time_seconds.map_or(own.time, Seconds::duration);
        let within = |field: &str, part: Option<Seconds>, own: Option<Duration>| match part {
            Some(part) if part.duration() > time && own.is_none_or(|own| part.duration() > own) => {
                refuse(
                    field,
                    format!(
                        "is {} s, but a request has {} s in all; give no more than that, or raise \
                         'limits.time-seconds'",
                        part.duration().as_secs_f64(),
                        time.as_secs_f64()
                    ),
                )
            }
            _ => Ok(()),
        };
        within("cpu-seconds", asked.cpu_seconds, Some(own.cpu))?;
        within("queue-seconds", asked.queue_seconds, own.queue_time)
    }

    fn check_counts(&self, asked: &RequestedLimits, own_queue: usize) -> Result<(), ManifestError> {
        if let Some(concurrent) = asked.concurrent
            && concurrent.times(1) > self.calls
        {
            let problem = format!(
                "is {}, but this server runs at most {} requests of one deployment at once; give no \
                 more than that",
                concurrent.get(),
                self.calls
            );
            return refuse("concurrent", problem);
        }
        let most = self.calls.saturating_mul(WAITING).max(own_queue);
        if let Some(queue) = asked.queue
            && queue.times(1) > most
        {
            let problem = format!(
                "is {}, but on this server at most {most} requests of one deployment wait; give no \
                 more than that",
                queue.get()
            );
            return refuse("queue", problem);
        }
        Ok(())
    }

    fn check_memory(&self, asked: &RequestedLimits, own: &Limits) -> Result<(), ManifestError> {
        let Some(memory) = self.memory else {
            return Ok(());
        };
        let all = |each: usize, calls: usize| (each as u64).saturating_mul(calls as u64);
        let each = asked.memory_mib.map_or(own.memory, |n| n.times(1 << 20));
        let calls = asked.concurrent.map_or(own.concurrent, |n| n.times(1));
        let calls = calls.min(self.calls);
        let wanted = all(each, calls);
        if wanted <= memory.max(all(own.memory, own.concurrent.min(self.calls))) {
            return Ok(());
        }
        let mib = |bytes: u64| bytes >> 20;
        let problem = format!(
            "comes to {} MiB for {calls} requests at once, {} MiB for each, but this machine has {} \
             MiB; give less, or fewer in 'limits.concurrent'",
            mib(wanted),
            mib(each as u64),
            mib(memory)
        );
        refuse("memory-mib", problem)
    }
}

fn refuse(field: &str, problem: String) -> Result<(), ManifestError> {
    Err(ManifestError::Field {
        field: format!("limits.{field}"),
        problem,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployments::Manifest;

    const CAPACITY: Capacity = Capacity {
        calls: 100,
        memory: Some(8 << 30),
    };

    fn check(limits: &str, own: &Limits) -> Result<(), String> {
        let text = format!("name = 'a'\ncomponent = 'a'\nroutes = ['/a']\n[limits]\n{limits}");
        let manifest = Manifest::from_toml(&text).expect("each is in its range");
        let checked = CAPACITY.check(&manifest.limits, own);
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn what_the_process_cannot_give_is_refused() {
        let own = Limits::default();
        for (limits, expected) in [
            (
                "concurrent = 101",
                "'limits.concurrent' is 101, but this server runs at most 100 ",
            ),
            (
                "queue = 1601",
                "'limits.queue' is 1601, but on this server at most 1600 ",
            ),
            (
                "memory-mib = 129",
                "'limits.memory-mib' comes to 8256 MiB for 64 requests at once, 129 MiB for each, \
                 but this machine has 8192",
            ),
            (
                "memory-mib = 4096\nconcurrent = 3",
                "comes to 12288 MiB for 3 ",
            ),
            (
                "cpu-seconds = 61",
                "'limits.cpu-seconds' is 61 s, but a request has 60 s in all",
            ),
            (
                "time-seconds = 5\nqueue-seconds = 6",
                "'limits.queue-seconds' is 6 s, but a request has 5 s in all",
            ),
        ] {
            let error = check(limits, &own).expect_err(limits);
            assert!(error.contains(expected), "{limits}: {error}");
        }
        for limits in [
            "",
            "concurrent = 100\nqueue = 1600",
            "memory-mib = 128",
            "memory-mib = 4096\nconcurrent = 2",
            "request-kib = 4194304\nresponse-kib = 4194304",
            "cpu-seconds = 60\nqueue-seconds = 60",
            "time-seconds = 5",
        ] {
            assert_eq!(check(limits, &own), Ok(()), "{limits}");
        }
    }

    #[test]
    fn what_the_operator_said_is_never_too_much() {
        let own = Limits {
            memory: 4 << 30,
            concurrent: 80,
            queue: 100_000,
            cpu: Duration::from_secs(600),
            ..Limits::default()
        };
        for limits in ["concurrent = 80", "queue = 100000", "memory-mib = 4096"] {
            assert_eq!(check(limits, &own), Ok(()), "{limits}");
        }
        assert_eq!(check("cpu-seconds = 600", &own), Ok(()));
        assert!(check("concurrent = 81", &own).is_err(), "320 GiB are had");
        assert!(check("queue = 100001", &own).is_err());
    }
}
