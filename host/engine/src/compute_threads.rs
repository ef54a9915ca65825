//! Computes with fewer threads while other threads keep the cores busy: measures steps for the [`policy`], and sets the
//! backend's threads between two steps.

mod core_probe;
mod policy;

use crate::backend::Backend;
use core_probe::CoreProbe;
use corral_scheduler::Time;
use policy::{Measurement, ThreadPolicy};
use std::time::Duration;

/// Sets the number of compute threads of a backend.
pub struct ComputeThreads {
    policy: ThreadPolicy,
    /// In use by the backend.
    threads: u32,
    /// The measurement of the current step, and the delay of each thread before it.
    measured: Option<(Measurement, Vec<Duration>)>,
    /// One for each thread to add; empty unless probing.
    probes: Vec<CoreProbe>,
    is_adaptive: bool,
}

impl ComputeThreads {
    /// Computes with `threads` threads.
    pub fn new(threads: u32) -> Self {
        Self {
            policy: ThreadPolicy::new(threads),
            threads: threads.max(1),
            measured: None,
            probes: Vec::new(),
            is_adaptive: false,
        }
    }

    /// From now on, lowers the number while threads wait for cores, if the backend can.
    pub fn enable_adaptation(&mut self, backend: &mut impl Backend) {
        if backend.queue_delays().is_none() {
            tracing::debug!(
                "the number of compute threads is fixed: the system does not tell how long threads wait for cores"
            );
            return;
        }
        self.is_adaptive = backend.prepare_fewer_threads();
        if !self.is_adaptive {
            tracing::debug!(
                "the number of compute threads is fixed: results would depend on it, or threads do not start"
            );
        }
    }

    /// Threads of the next step.
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// Begins to measure, if this step is to be measured.
    pub fn begin_step(&mut self, backend: &mut impl Backend, now: Time) {
        if !self.is_adaptive {
            return;
        }
        let results: Option<Vec<_>> = self.probes.iter().map(CoreProbe::result).collect();
        if let Some(results) = results.filter(|results| !results.is_empty()) {
            self.probes.clear();
            self.policy.probe_done(now, &results);
            self.apply(backend);
        }
        let mut measurement = self.policy.measurement(now);
        if measurement == Measurement::Probe {
            if self.probes.is_empty() {
                let added = self.policy.threads()..self.policy.more_threads();
                let probes: Option<Vec<_>> = added.map(|_| CoreProbe::start()).collect();
                self.probes = probes.unwrap_or_default();
            }
            if self.probes.is_empty() {
                self.policy.probe_done(now, &[]);
                measurement = Measurement::Nothing;
            } else if self.probes.iter().any(CoreProbe::is_ending) {
                measurement = Measurement::Nothing;
            } else {
                self.probes.iter().for_each(CoreProbe::spin);
            }
        }
        self.measured = match measurement {
            Measurement::Nothing => None,
            _ => backend.queue_delays().map(|delays| (measurement, delays)),
        };
    }

    /// Ends a step that took `computed`, and sets the threads of the next one. Returns whether they are fewer.
    pub fn end_step(&mut self, backend: &mut impl Backend, now: Time, computed: Duration) -> bool {
        let Some((measurement, before)) = self.measured.take() else {
            self.policy.unmeasured_step(computed);
            return false;
        };
        self.probes.iter().for_each(CoreProbe::sleep);
        let after = backend.queue_delays().unwrap_or_default();
        let waited = after.iter().zip(&before);
        let waited: Vec<_> = waited
            .map(|(after, before)| after.saturating_sub(*before))
            .collect();
        if measurement == Measurement::Delay {
            self.policy.measured_step(now, computed, &waited);
        } else if self.policy.probed_step(computed, &waited) {
            self.probes.iter().for_each(CoreProbe::end);
        }
        let before = self.threads;
        self.apply(backend);
        self.threads < before
    }

    fn apply(&mut self, backend: &mut impl Backend) {
        let threads = self.policy.threads();
        if threads != self.threads {
            self.threads = threads;
            backend.use_threads(threads);
            tracing::debug!(threads, "compute threads");
        }
    }
}
