//! `corral:inference/inference`: sequences, and generations over them.

use super::bindings::corral::inference::inference::{HostSequence, Token};
use super::counted_sequence::lock;
use super::generation::GenerationHandle;
use super::guest_sequence::GuestSequence;
use super::{GuestModel, GuestOptions, HostResult, invalid, wit};
use crate::counters::ResourceKind;
use crate::cpu_meter::thread_nanos;
use crate::quota::ReserveError;
use crate::state::State;
use corral_engine::{Engine, GenerationTrace, RequestObserver};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Handle, RuntimeFlavor};
use wasmtime::component::Resource;

fn check_can_fork(engine: &Engine) -> Result<(), wit::Error> {
    let info = engine.info();
    if info.can_truncate {
        return Ok(());
    }
    Err(wit::Error::Invalid(format!(
        "sequences of the model {} can be neither forked nor truncated, because its memory is recurrent or a \
         sliding window; create a new sequence",
        info.name
    )))
}

/// Lets the engine wake the readers of a step together, on a thread of this runtime. A runtime of one thread may not be driven
/// while readers of others wait, so it gets no such task.
fn spawn_wake_task(engine: &Engine) {
    if let Ok(runtime) = Handle::try_current()
        && runtime.runtime_flavor() == RuntimeFlavor::MultiThread
        && let Some(task) = engine.wake_task()
    {
        runtime.spawn(task);
    }
}

impl HostSequence for State {
    fn create(&mut self, model: Resource<GuestModel>) -> HostResult<Resource<GuestSequence>> {
        let engine = self.table.get(&model)?.0.clone();
        self.take_sequence_handle()?;
        let sequence = corral_engine::Sequence::new(engine.clone(), self.caller);
        self.add_sequence(engine, sequence, 0)
    }

    fn append(&mut self, sequence: Resource<GuestSequence>, tokens: Vec<Token>) -> HostResult<()> {
        let held = self.table.get(&sequence)?;
        held.check_unused()?;
        let shared = Arc::clone(&held.sequence);
        self.hold_tokens(tokens.len())?;
        if let Err(error) = lock(&shared).sequence.append(&tokens) {
            self.handles
                .counts
                .remove(ResourceKind::Tokens, tokens.len());
            return Err(error.into());
        }
        self.table.get_mut(&sequence)?.held_tokens += tokens.len();
        Ok(())
    }

    fn truncate(&mut self, sequence: Resource<GuestSequence>, length: u32) -> HostResult<()> {
        let held = self.table.get_mut(&sequence)?;
        held.check_unused()?;
        let mut sequence = lock(&held.sequence);
        sequence.sequence.truncate(length as usize)?;
        let length = sequence.len();
        sequence.quota_counted = sequence.quota_counted.min(length);
        drop(sequence);
        let removed = held.held_tokens.saturating_sub(length);
        held.held_tokens -= removed;
        self.handles.counts.remove(ResourceKind::Tokens, removed);
        Ok(())
    }

    fn fork(&mut self, sequence: Resource<GuestSequence>) -> HostResult<Resource<GuestSequence>> {
        let held = self.table.get(&sequence)?;
        held.check_unused()?;
        check_can_fork(&held.engine)?;
        self.take_sequence_handle()?;
        let held = self.table.get(&sequence)?;
        let (engine, adapter) = (held.engine.clone(), held.adapter.clone());
        let original = lock(&held.sequence);
        let (fork, quota_counted) = (original.sequence.fork(), original.quota_counted);
        drop(original);
        let fork = self.add_sequence(engine, fork, quota_counted)?;
        self.table.get_mut(&fork)?.adapter = adapter;
        Ok(fork)
    }

    fn set_adapter(
        &mut self,
        sequence: Resource<GuestSequence>,
        adapter: Option<String>,
    ) -> HostResult<()> {
        let held = self.table.get_mut(&sequence)?;
        held.check_unused()?;
        let known = &held.engine.info().adapters;
        if let Some(name) = &adapter
            && !known.contains(name)
        {
            let name: String = name.chars().take(64).collect();
            return invalid(format!(
                "there is no adapter {name:?} of this model; there is: {}",
                known.join(", ")
            ));
        }
        held.adapter = adapter;
        Ok(())
    }

    fn length(&mut self, sequence: Resource<GuestSequence>) -> wasmtime::Result<u32> {
        let length = lock(&self.table.get(&sequence)?.sequence).len();
        Ok(u32::try_from(length)?)
    }

    fn tokens(
        &mut self,
        sequence: Resource<GuestSequence>,
        start: u32,
    ) -> wasmtime::Result<Vec<Token>> {
        let sequence = lock(&self.table.get(&sequence)?.sequence);
        let tokens = sequence.sequence.tokens().get(start as usize..);
        Ok(tokens.unwrap_or_default().to_vec())
    }

    fn drop(&mut self, sequence: Resource<GuestSequence>) -> wasmtime::Result<()> {
        let sequence = self.table.delete(sequence)?;
        self.drop_sequence(sequence);
        Ok(())
    }
}

impl From<ReserveError> for wit::Error {
    fn from(error: ReserveError) -> Self {
        match error {
            ReserveError::Temporary(exceeded) => {
                let wait = exceeded.retry_after.unwrap_or_default();
                Self::Refused(wit::Refusal {
                    reason: exceeded.to_string(),
                    retry_after_ms: u32::try_from(wait.as_nanos().div_ceil(1_000_000))
                        .unwrap_or(u32::MAX),
                })
            }
            ReserveError::Permanent(text) => Self::NotGranted(text),
        }
    }
}

impl State {
    /// Starts a generation. Reserves the tokens that it may use: those that were appended since tokens were
    /// last counted, and all that it may generate.
    pub(super) fn start_generation(
        &mut self,
        sequence: &Resource<GuestSequence>,
        options: &Resource<GuestOptions>,
    ) -> HostResult<GenerationHandle> {
        let max_tokens = self.table.get(options)?.max_tokens();
        let held = self.table.get(sequence)?;
        held.check_unused()?;
        let (engine, shared) = (held.engine.clone(), Arc::clone(&held.sequence));
        let mut locked = lock(&shared);
        let length = locked.len();
        if length == 0 {
            return invalid("the sequence is empty; append at least one token");
        }
        if max_tokens == 0 {
            return invalid("max-tokens is 0; it must be at least 1");
        }
        let appended = locked.uncounted();
        let context = engine.info().context;
        let room = u64::from(context).saturating_sub(length as u64);
        let tokens = appended + u64::from(max_tokens).min(room);
        let permit = self.quota_permit.as_ref();
        let reservation = permit.map(|permit| permit.reserve(tokens)).transpose();
        let mut reservation = reservation.map_err(wit::Error::from)?;
        let began = thread_nanos();
        let mut options = self.table.get(options)?.for_engine(&engine)?;
        let spent = thread_nanos().saturating_sub(began);
        self.meter.charge(Duration::from_nanos(spent));
        let adapter = options.adapter.take();
        options.adapter = adapter.or_else(|| held.adapter.clone());
        self.usage.set_model(&engine.info().name);
        let trace = self.sampled_trace().map(|trace| {
            GenerationTrace::new(Arc::clone(trace) as _, &engine.info().name, max_tokens)
        });
        options.observer = Some(RequestObserver {
            metrics: self.counters.generations(&engine.info().name),
            usage: Arc::clone(&self.usage),
            trace: trace.clone(),
        });
        let started = locked.sequence.generate(options);
        if let (Some(trace), Err(error)) = (&trace, &started) {
            trace.failed(error);
        }
        let generation = self.counters.count_cells_limit(started, context)?;
        spawn_wake_task(&engine);
        if let Some(reservation) = &mut reservation {
            reservation.mark_used(appended);
        }
        locked.count_all();
        drop(locked);
        let counters = Arc::clone(&self.counters);
        let generation = GenerationHandle::new(
            generation,
            shared,
            counters,
            self.grants.system.clocks,
            reservation,
            trace,
        );
        self.table.get_mut(sequence)?.generation = Some(generation.clone());
        Ok(generation)
    }
}
