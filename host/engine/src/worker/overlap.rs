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

/// Overlapped work before and during the sampling of a step.
#[derive(Default)]
pub(super) struct StepOverlap {
    /// The overlapped step that the backend has started, or failed to start, before sampling.
    started: Option<(Step, Result<(), DecodeError>)>,
    /// Time in the call that started it: it counts with the next step.
    pub call_time: Duration,
    /// Call time of the overlapped step before: it counts with this step.
    pub earlier_call_time: Duration,
}

impl OverlapEstimate {
    /// Forgets the call time of the last overlapped step: the step that would have counted it failed.
    pub fn step_failed(&mut self) {
        self.call_time = Duration::ZERO;
    }
}

impl<B: Backend> Worker<B> {
    /// Starts an overlapped step if the backend and the scheduler allow one.
    pub(super) fn begin_overlap(&mut self) -> StepOverlap {
        let mut overlap = StepOverlap {
            earlier_call_time: std::mem::take(&mut self.overlap.call_time),
            ..StepOverlap::default()
        };
        if !self.backend.can_overlap() {
            return overlap;
        }
        let idle = Duration::from_secs_f64(self.overlap.sampling_seconds);
        let Some(step) = self.scheduler.plan_overlap(idle) else {
            return overlap;
        };
        self.fill_inputs(&step.rows);
        let before = Instant::now();
        let decoded = self.backend.decode_overlapped(&self.inputs);
        overlap.call_time = before.elapsed();
        add_time(&self.metrics.compute_nanos, overlap.call_time);
        if decoded.is_ok() {
            self.count_step(&step);
        }
        overlap.started = Some((step, decoded));
        overlap
    }

    /// Records an overlapped step, which has failed or completes before the next step. Learns how long it took to sample
    /// the `outputs` of the step that it overlaps with.
    pub(super) fn finish_overlap(
        &mut self,
        overlap: StepOverlap,
        sampling_time: Duration,
        outputs: usize,
    ) {
        let estimate = &mut self.overlap;
        if outputs > 0 {
            let difference = sampling_time.as_secs_f64() - estimate.sampling_seconds;
            estimate.sampling_seconds += LATEST_WEIGHT * difference;
        }
        estimate.call_time = overlap.call_time;
        let Some((step, decoded)) = overlap.started else {
            return;
        };
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
