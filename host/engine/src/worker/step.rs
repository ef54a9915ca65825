//! Executes a planned step: memory operations, decode, sampling, and the report to the scheduler.

use super::{ConstrainedSampler, Worker};
use crate::Error;
use crate::backend::{Backend, DecodeError, TokenInput};
use crate::cpu_time::thread_cpu_time;
use crate::metrics::{add, add_time, set};
use crate::request_observer::GenerationPhase;
use corral_scheduler::{MemoryOp, RequestId, Row, Step, StepResult};
use std::time::{Duration, Instant};

impl<B: Backend> Worker<B> {
    /// Executes a step. Returns false if it had nothing to do.
    pub(super) fn run_step(&mut self, step: &Step, now: Instant) -> bool {
        for &(id, expired) in &step.expired {
            self.expire(id, expired);
        }
        let swap_ins = self.swap.requested();
        let moves_state =
            |op: &MemoryOp| matches!(op, MemoryOp::SwapOut { .. } | MemoryOp::Compact(_));
        if step.memory_ops.iter().any(moves_state) {
            // An overlapped step may still run. Its time must not count as time of the moves.
            self.backend.wait();
        }
        let before_moves = Instant::now();
        self.apply_memory_ops(&step.memory_ops);
        let move_time = before_moves.elapsed();
        for &id in &step.admitted {
            self.admit(id, now);
        }
        if step.rows.is_empty() {
            // A failed swap-out may have queued operations, and the next step may be far away.
            self.run_memory_ops();
            let compacts = |op: &MemoryOp| matches!(op, MemoryOp::Compact(_));
            return step.memory_ops.iter().any(compacts) || self.swap.requested() > swap_ins;
        }
        // Readers do not wait for the decode.
        self.wake_batch.flush();
        self.fill_inputs(&step.rows);
        let decoded = self.decode(step);
        let decoded_at = Instant::now();
        match decoded {
            Ok(()) => {
                self.count_step(step);
                self.finish_step(step, now, decoded_at, move_time);
            }
            Err(error) => {
                tracing::warn!(%error, tokens = self.inputs.len(), "a step failed");
                add(&self.metrics.failed_steps, 1);
                self.overlap.step_failed();
                let now = self.time(decoded_at);
                if let Some(id) = self.scheduler.step_done(StepResult::Failed { now }) {
                    self.fail(id, Error::Failed(error.to_string()));
                }
            }
        }
        true
    }

    fn admit(&mut self, id: RequestId, now: Instant) {
        // A request that the same plan preempted has none. It is admitted again.
        let tenant = self.scheduler.tenant(id);
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let is_first = request.admitted.is_none();
        request.admitted.get_or_insert(now);
        let waited = now.saturating_duration_since(request.arrived);
        let prompt_tokens = request.generation().map(|one| one.prompt_tokens);
        if let (Some(observer), Some(prompt), true) =
            (&mut request.observer, prompt_tokens, is_first)
        {
            observer.enter(GenerationPhase::Prefill);
            observer.admitted(waited, prompt);
        }
        let Some(generation) = request.generation_mut() else {
            return;
        };
        if let Some(external) = &mut generation.external {
            external.start();
        }
        if let (Some(constraint), Some(tenant)) = (&generation.options.constraint, tenant) {
            let start = || ConstrainedSampler::new(constraint.start(tenant.0));
            generation.constrained.get_or_insert_with(start);
        }
    }

    /// Decodes `inputs` and waits for the result.
    fn decode(&mut self, step: &Step) -> Result<(), DecodeError> {
        let now = self.time(Instant::now());
        self.compute_threads.begin_step(&mut self.backend, now);
        let (before, cpu_before) = (Instant::now(), thread_cpu_time());
        let adapter = self.backend.set_adapter(step.adapter);
        let decoded = adapter.and_then(|()| self.backend.decode(&self.inputs));
        if decoded.is_ok() {
            self.backend.wait();
        }
        let computed = before.elapsed();
        add_time(&self.metrics.compute_nanos, computed);
        let cpu_time = thread_cpu_time().saturating_sub(cpu_before);
        add_time(&self.metrics.compute_cpu_nanos, cpu_time);
        let (threads, backend) = (&mut self.compute_threads, &mut self.backend);
        let lowered = threads.end_step(backend, now + computed, computed);
        set(&self.metrics.compute_threads, threads.threads().into());
        add(&self.metrics.compute_threads_lowered, u64::from(lowered));
        decoded
    }

    /// Samples the rows of a decoded step and reports it to the scheduler.
    fn finish_step(
        &mut self,
        step: &Step,
        planned_at: Instant,
        decoded_at: Instant,
        move_time: Duration,
    ) {
        let overlap = self.begin_overlap();
        let before = Instant::now();
        let compute_time = decoded_at.duration_since(planned_at);
        let output = self.sample(&step.rows, decoded_at, compute_time);
        let sampling_time = before.elapsed();
        add_time(&self.metrics.sampling_nanos, sampling_time);
        // The metric covers the whole step, without the overlapped one, which counts with the next step.
        let step_time = planned_at.elapsed().saturating_sub(overlap.call_time);
        self.metrics.step_duration.observe(step_time.as_secs_f64());
        // The scheduler predicts the cost of rows, which excludes constraints and moves.
        let excluded = output.constraint_time + move_time;
        let took = (step_time + overlap.earlier_call_time).saturating_sub(excluded);
        self.scheduler.step_done(StepResult::Decoded {
            gained: &output.tokens,
            finished: &output.finished,
            awaits_sampler: &output.awaits_sampler,
            needs_all_logits: &output.needs_all_logits,
            took,
        });
        self.scheduler.defer_sampling(&output.deferred);
        add(
            &self.metrics.sampling_deferrals,
            output.deferred.len() as u64,
        );
        // Rows that the step left out still come first in their next step.
        let requests = &self.requests;
        self.deferred.retain(|id| {
            requests.contains_key(id) && step.rows.iter().all(|row| row.request != *id)
        });
        self.deferred.extend(&output.deferred);
        let outputs = step.rows.iter().filter(|row| row.output).count();
        self.finish_overlap(overlap, sampling_time, outputs);
        for &id in &output.failed {
            self.scheduler.fail(id);
        }
        self.propose_drafts(&output);
    }

    /// Replaces `inputs` by the tokens of these rows.
    pub(super) fn fill_inputs(&mut self, rows: &[Row]) {
        self.inputs.clear();
        for row in rows {
            let tokens = self.scheduler.tokens(row.request);
            let known = tokens.get(row.from as usize..row.known_end() as usize);
            debug_assert!(known.is_some(), "a row's request must exist");
            let tokens = known.unwrap_or_default().iter();
            let tokens = tokens.chain(self.scheduler.drafts_of(row));
            for (&token, position) in tokens.zip(row.from..row.to) {
                self.inputs.push(TokenInput {
                    token,
                    position,
                    seq: row.seq,
                    output: row.is_output(position),
                });
            }
        }
    }
}
