//! What is computed while a step's rows are sampled: a part of the prompts that wait.
//!
//! It is begun when the outputs of the step are at hand, and not waited for: the next step is. What the call
//! itself takes (most of it to build a graph; on a processor all of the computation) is counted with that next
//! step, as the rest is.

use super::Worker;
use crate::backend::{Backend, DecodeError};
use crate::metrics::{add, add_time};
use corral_scheduler::Step;
use std::time::{Duration, Instant};

/// What the latest step counts for in the usual time of sampling.
const LATEST: f64 = 0.1;

/// How long sampling takes, and what was begun before it.
#[derive(Debug, Default)]
pub(super) struct Pastime {
    /// Seconds that the rows of a step usually take to be sampled.
    usual: f64,
    /// What beginning to go ahead took, and is to be counted with the next step.
    owed: Duration,
}

/// A step that was begun ahead.
pub(super) struct Begun {
    step: Step,
    decoded: Result<(), DecodeError>,
    /// What the call took.
    pub took: Duration,
}

impl Pastime {
    /// The rows of a step were sampled in so long.
    pub fn sampled(&mut self, took: Duration) {
        self.usual += LATEST * (took.as_secs_f64() - self.usual);
    }

    /// What the step before left to be counted with this one.
    pub fn settle(&mut self) -> Duration {
        std::mem::take(&mut self.owed)
    }
}

impl<B: Backend> Worker<B> {
    /// Begins what can be computed while rows are sampled.
    pub(super) fn begin_ahead(&mut self) -> Option<Begun> {
        if !self.backend.can_overlap() {
            return None;
        }
        let rest = Duration::from_secs_f64(self.pastime.usual);
        let step = self.scheduler.plan_overlap(rest)?;
        self.gather(&step.rows);
        let before = Instant::now();
        let decoded = self.backend.decode_overlapped(&self.inputs);
        let took = before.elapsed();
        add_time(&self.counters.compute_nanos, took);
        if decoded.is_ok() {
            self.count(&step);
        }
        Some(Begun {
            step,
            decoded,
            took,
        })
    }

    /// What was begun goes on or failed: its end is known by now, though it may not have come.
    pub(super) fn finish_ahead(&mut self, begun: Begun) {
        let Begun {
            step,
            decoded,
            took,
        } = begun;
        self.pastime.owed = took;
        self.scheduler.applied_overlap(decoded.is_ok());
        if let Err(error) = decoded {
            let tokens = step.shape.prefill;
            tracing::warn!(%error, tokens, "a step that was to run ahead failed");
            add(&self.counters.failed_steps, 1);
            return;
        }
        for row in &step.rows {
            let tokens = u64::from(row.tokens());
            if let Some(sequence) = self.sequences.get_mut(&row.request) {
                sequence.computed += tokens;
            } else if let Some(look) = self.looks.get_mut(&row.request) {
                look.computed += tokens;
            }
        }
    }
}
