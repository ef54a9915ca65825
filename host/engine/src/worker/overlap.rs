//! Overlapped steps: part of the waiting prompts is computed while the rows of a step are sampled.
//!
//! The backend starts an overlapped step as soon as the outputs of the previous step are available, and the next step
//! waits for it. Its call time (graph building; on a CPU the whole computation) counts with the next step, as the rest
//! of its time does.
//!
//! Optional, and not yet measured on a GPU.

use super::Worker;
use crate::backend::{Backend, DecodeError};
use crate::metrics::{add, add_time};
use corral_scheduler::Step;
use std::time::{Duration, Instant};

/// Weight of the latest step in the average sampling time.
const LATEST_WEIGHT: f64 = 0.1;

/// The sampling time that a step can overlap, and the cost of the last overlapped step.
#[derive(Debug, Default)]
pub(super) struct OverlapEstimate {
    /// Average seconds to sample the rows of a step.
    sampling_seconds: f64,
    /// Call time of the last overlapped step, until a step counts it.
    call_time: Duration,
}

/// A step that the backend has started, or failed to start, before sampling.
pub(super) struct OverlappedStep {
    step: Step,
    decoded: Result<(), DecodeError>,
    /// Time in the call to the backend.
    pub call_time: Duration,
}

impl OverlapEstimate {
    /// Records the sampling time of a step.
    pub fn observe_sampling(&mut self, took: Duration) {
        self.sampling_seconds += LATEST_WEIGHT * (took.as_secs_f64() - self.sampling_seconds);
    }

    /// Returns the call time to count with this step.
    pub fn take_call_time(&mut self) -> Duration {
        std::mem::take(&mut self.call_time)
    }
}

impl<B: Backend> Worker<B> {
    /// Starts an overlapped step if the backend and the scheduler allow one.
    pub(super) fn begin_overlap(&mut self) -> Option<OverlappedStep> {
        if !self.backend.can_overlap() {
            return None;
        }
        let idle = Duration::from_secs_f64(self.overlap.sampling_seconds);
        let step = self.scheduler.plan_overlap(idle)?;
        self.fill_inputs(&step.rows);
        let before = Instant::now();
        let decoded = self.backend.decode_overlapped(&self.inputs);
        let call_time = before.elapsed();
        add_time(&self.metrics.compute_nanos, call_time);
        if decoded.is_ok() {
            self.count_step(&step);
        }
        Some(OverlappedStep {
            step,
            decoded,
            call_time,
        })
    }

    /// Records an overlapped step. It has failed, or it completes before the next step.
    pub(super) fn finish_overlap(&mut self, overlapped: OverlappedStep) {
        let OverlappedStep {
            step,
            decoded,
            call_time,
        } = overlapped;
        self.overlap.call_time = call_time;
        self.scheduler.overlap_done(decoded.is_ok());
        if let Err(error) = decoded {
            let tokens = step.shape.prefill;
            tracing::warn!(%error, tokens, "an overlapped step failed");
            add(&self.metrics.failed_steps, 1);
            return;
        }
        for row in &step.rows {
            if let Some(request) = self.requests.get_mut(&row.request) {
                request.computed += u64::from(row.tokens());
            }
        }
    }
}
