//! Checks the limits that a manifest requests against the capacity of the process.
//!
//! A deploy that requests too much is refused. The operator's defaults are always allowed. A stored revision
//! survives a restart with less capacity and is then limited to that.
//!
//! Each deployment is checked alone: all together may request more than exists. Body sizes are not checked,
//! since bodies are streamed and never held as a whole.

use super::bounded_number::BoundedSeconds;
use super::manifest_error::ManifestError;
use super::requested_limits::RequestedLimits;
use corral_runtime::Limits;
use std::time::Duration;

/// Waiting requests per concurrent request. A waiting request costs tens of kilobytes at worst, its header.
const QUEUE_FACTOR: usize = 16;

/// What one deployment can use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    /// Concurrent calls.
    pub(super) calls: usize,
    /// Memory of the machine in bytes, where the system reports it.
    pub(super) memory: Option<u64>,
}

impl Capacity {
    /// Checks the `requested` limits, with `defaults` for those that are omitted.
    pub(super) fn check(
        &self,
        requested: &RequestedLimits,
        defaults: &Limits,
    ) -> Result<(), ManifestError> {
        self.check_counts(requested, defaults.waiting_calls)?;
        self.check_memory(requested, defaults)?;
        let time = requested
            .time_seconds
            .map_or(defaults.time, BoundedSeconds::duration);
        let check = |field: &str, part: Option<BoundedSeconds>, default: Option<Duration>| {
            match part {
                Some(part)
                    if part.duration() > time
                        && default.is_none_or(|default| part.duration() > default) =>
                {
                    refuse(
                        field,
                        format!(
                            "is {} s, but a request has {} s in total; give no more than that, or raise \
                         'limits.time-seconds'",
                            part.duration().as_secs_f64(),
                            time.as_secs_f64()
                        ),
                    )
                }
                _ => Ok(()),
            }
        };
        check("cpu-seconds", requested.cpu_seconds, Some(defaults.cpu))?;
        check(
            "queue-time-seconds",
            requested.queue_time_seconds,
            defaults.generation_queue_time,
        )
    }

    fn check_counts(
        &self,
        requested: &RequestedLimits,
        default_queue: usize,
    ) -> Result<(), ManifestError> {
        if let Some(concurrent) = requested.concurrent_requests
            && concurrent.times(1) > self.calls
        {
            let problem = format!(
                "is {}, but this server runs at most {} requests of one deployment at once; give no \
                 more than that",
                concurrent.get(),
                self.calls
            );
            return refuse("concurrent-requests", problem);
        }
        let max_queue = self.calls.saturating_mul(QUEUE_FACTOR).max(default_queue);
        if let Some(queue) = requested.queued_requests
            && queue.times(1) > max_queue
        {
            let problem = format!(
                "is {}, but this server queues at most {max_queue} requests of one deployment; give \
                 no more than that",
                queue.get()
            );
            return refuse("queued-requests", problem);
        }
        Ok(())
    }

    fn check_memory(
        &self,
        requested: &RequestedLimits,
        defaults: &Limits,
    ) -> Result<(), ManifestError> {
        let Some(memory) = self.memory else {
            return Ok(());
        };
        let total = |each: usize, calls: usize| (each as u64).saturating_mul(calls as u64);
        let memory_mib = requested.memory_mib;
        let each = memory_mib.map_or(defaults.memory, |n| n.times(1 << 20));
        let calls = requested.concurrent_requests;
        let calls = calls.map_or(defaults.concurrent, |n| n.times(1));
        let calls = calls.min(self.calls);
        let needed = total(each, calls);
        let allowed = total(defaults.memory, defaults.concurrent.min(self.calls));
        if needed <= memory.max(allowed) {
            return Ok(());
        }
        let mib = |bytes: u64| bytes >> 20;
        let problem = format!(
            "needs {} MiB for {calls} concurrent requests of {} MiB each, but this machine has {} \
             MiB; give less, or fewer in 'limits.concurrent-requests'",
            mib(needed),
            mib(each as u64),
            mib(memory)
        );
        refuse("memory-mib", problem)
    }
}

fn refuse(field: &str, problem: String) -> Result<(), ManifestError> {
    Err(ManifestError::field(format!("limits.{field}"), problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployments::Manifest;

    const CAPACITY: Capacity = Capacity {
        calls: 100,
        memory: Some(8 << 30),
    };

    fn check(limits: &str, defaults: &Limits) -> Result<(), String> {
        let text = format!("name = 'a'\ncomponent = 'a'\nroutes = ['/a']\n[limits]\n{limits}");
        let manifest = Manifest::from_toml(&text).expect("valid");
        let checked = CAPACITY.check(&manifest.limits, defaults);
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn limits_beyond_capacity_are_refused() {
        let defaults = Limits::default();
        for (limits, expected) in [
            (
                "concurrent-requests = 101",
                "'limits.concurrent-requests' is 101, but this server runs at most 100 ",
            ),
            (
                "queued-requests = 1601",
                "'limits.queued-requests' is 1601, but this server queues at most 1600 ",
            ),
            (
                "memory-mib = 129",
                "'limits.memory-mib' needs 8256 MiB for 64 concurrent requests of 129 MiB each, \
                 but this machine has 8192",
            ),
            (
                "memory-mib = 4096\nconcurrent-requests = 3",
                "needs 12288 MiB for 3 ",
            ),
            (
                "cpu-seconds = 3601",
                "'limits.cpu-seconds' is 3601 s, but a request has 3600 s in total",
            ),
            (
                "time-seconds = 5\nqueue-time-seconds = 6",
                "'limits.queue-time-seconds' is 6 s, but a request has 5 s in total",
            ),
        ] {
            let error = check(limits, &defaults).expect_err(limits);
            assert!(error.contains(expected), "{limits}: {error}");
        }
        for limits in [
            "",
            "concurrent-requests = 100\nqueued-requests = 1600",
            "memory-mib = 128",
            "memory-mib = 4096\nconcurrent-requests = 2",
            "request-kib = 4194304\nresponse-kib = 4194304",
            "cpu-seconds = 60\nqueue-time-seconds = 60",
            "time-seconds = 5",
        ] {
            assert_eq!(check(limits, &defaults), Ok(()), "{limits}");
        }
    }

    #[test]
    fn operator_defaults_are_never_refused() {
        let defaults = Limits {
            memory: 4 << 30,
            concurrent: 80,
            waiting_calls: 100_000,
            cpu: Duration::from_secs(600),
            ..Limits::default()
        };
        for limits in [
            "concurrent-requests = 80",
            "queued-requests = 100000",
            "memory-mib = 4096",
        ] {
            assert_eq!(check(limits, &defaults), Ok(()), "{limits}");
        }
        assert_eq!(check("cpu-seconds = 600", &defaults), Ok(()));
        assert!(
            check("concurrent-requests = 81", &defaults).is_err(),
            "320 GiB are allowed"
        );
        assert!(check("queued-requests = 100001", &defaults).is_err());
    }
}
