//! Computes with fewer threads while other processes keep the cores busy: measures steps for the [`policy`], and sets the
//! backend's threads between two steps.

mod core_probe;
mod policy;

use crate::backend::Backend;
use core_probe::CoreProbe;
use corral_llama::Stall;
use corral_scheduler::Time;
use policy::{Measurement, ThreadPolicy};
use std::time::Duration;

/// The number of compute threads of a backend.
pub struct ComputeThreads {
    policy: ThreadPolicy,
    /// In use by the backend.
    threads: u32,
    /// The measurement of the current step, and the threads' delay before it.
    measured: Option<(Measurement, Duration)>,
    probe: Option<CoreProbe>,
    is_adaptive: bool,
}

impl ComputeThreads {
    /// Computes with `threads` threads.
    pub fn new(threads: u32) -> Self {
        Self {
            policy: ThreadPolicy::new(threads),
            threads: threads.max(1),
            measured: None,
            probe: None,
            is_adaptive: false,
        }
    }

    /// Computes with fewer threads while they wait for cores.
    pub fn adapt(&mut self, backend: &mut impl Backend) {
        self.is_adaptive = true;
        backend.interrupt_stalls();
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
        if let Some(result) = self.probe.as_ref().and_then(CoreProbe::result) {
            self.probe = None;
            self.policy.probe_done(now, result.computed, result.waited);
            self.apply(backend);
        }
        let mut measurement = self.policy.measurement(now);
        if measurement == Measurement::Probe {
            if self.probe.is_none() {
                self.probe = CoreProbe::start();
            }
            match &self.probe {
                Some(probe) if !probe.is_ending() => probe.spin(),
                Some(_) => measurement = Measurement::Nothing,
                None => {
                    self.policy.probe_done(now, Duration::ZERO, Duration::ZERO);
                    measurement = Measurement::Nothing;
                }
            }
        }
        self.measured = match measurement {
            Measurement::Nothing => None,
            _ => backend.queue_delay().map(|delay| (measurement, delay)),
        };
    }

    /// Ends a step that took `computed`, and sets the threads of the next one.
    pub fn end_step(&mut self, backend: &mut impl Backend, now: Time, computed: Duration) {
        let Some((measurement, before)) = self.measured.take() else {
            self.policy.unmeasured_step(computed);
            return;
        };
        if let Some(probe) = &self.probe {
            probe.sleep();
        }
        let after = backend.queue_delay().unwrap_or(before);
        let waited = after.saturating_sub(before);
        if measurement == Measurement::Delay {
            self.policy.measured_step(now, computed, waited);
        } else if self.policy.probed_step(computed, waited)
            && let Some(probe) = &self.probe
        {
            probe.end();
        }
        self.apply(backend);
    }

    /// Ends a step that its backend interrupted, and sets fewer threads, with which to compute it again.
    pub fn interrupt_step(&mut self, backend: &mut impl Backend, now: Time, stall: Stall) {
        self.measured = None;
        if let Some(probe) = &self.probe {
            probe.sleep();
        }
        self.policy
            .interrupted_step(now, stall.computed, stall.waited);
        self.apply(backend);
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
